"""Cumulative power: how much of a target the leading modes of a kernel carry."""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Integer, Shaped
from torch import Tensor

from theodolite.checks import require_choice, require_same_length, require_symmetric
from theodolite.linalg import (
    array_function,
    center_columns,
    double,
    eps_of,
    nan_unless,
    unit_peak,
    vanishes_when_centered,
)
from theodolite.measures.kernel._spectrum import KernelSpectrum, gram_modes
from theodolite.measures.kernel._targets import target_matrix

__all__ = ["CumulativePower", "cumulative_power"]


@dataclass(frozen=True)
class CumulativePower:
    """Share of the target's power in the first modes, from none of them to all that were listed."""

    curve: Float[Tensor, "*modes"]  # (modes + 1,), or (modes + 1, c) per class; starts at 0
    null_power: Float[Tensor, "*c"]  # outside the kernel's range; nan if not all modes are known
    rank: int


@array_function
def cumulative_power(
    kernel: Float[Tensor, "n n"] | KernelSpectrum,
    targets: Integer[Tensor, " n"] | Shaped[Tensor, "n c"],
    ties: Literal["canonical", "raw"] = "canonical",
    per_class: bool = False,
) -> CumulativePower:
    r"""Share of the target that lies in the leading eigenmodes of a kernel.

    .. math:: C(\rho) = \frac{\sum_{\gamma \le \rho} |a_\gamma|^2}{\sum_\gamma |a_\gamma|^2},
              \qquad a_\gamma = \tfrac1n \sum_\mu \bar f(x^\mu)\,\phi_\gamma(x^\mu)

    The earlier it reaches one, the better the task fits the kernel. :math:`1 - C(r)` at the rank,
    ``null_power``, is the share that no linear probe on the features can fit. Inside an eigenspace
    the basis is arbitrary: the canonical curve spreads its power evenly over its modes, the raw one
    keeps what the solver gave; the null space is always spread.

    A spectrum from :func:`linear_spectrum` serves features, one with ``count=`` gives the start of
    the curve (exact, except inside an eigenspace that the cut divides), a centred one centres the
    targets too.

    Range: [0, 1], nondecreasing.
    Invariant to: scaling of either argument; orthogonal maps of the targets' columns; a joint
        permutation of examples.
    Undefined (``nan``): targets are zero (after centring, up to rounding).

    Args:
        kernel: a Gram matrix :math:`K`, or a spectrum.
        targets: integer class labels, or a matrix with one target vector per row.
        ties: what happens inside an eigenspace of several modes.
        per_class: one curve per target column instead of their sum.

    Raises:
        ShapeError: If there is not one target per example.
        DomainError: If an entry is not finite or the kernel is not positive semi-definite.

    Example:
        >>> K = torch.diag(torch.tensor([3.0, 2.0, 1.0]))
        >>> cumulative_power(K, torch.tensor([[2.0], [1.0], [0.0]])).curve
        tensor([0.0000, 0.8000, 1.0000, 1.0000])

    References:
        [canatar2022], Eq. (2) and (3).

    Differs from paper: Eq. (3) sums strictly below the mode; this is the same curve shifted by one,
        as the text uses it.
    """
    require_choice(("canonical", "raw"), ties=ties)
    spectrum = _spectrum_of(kernel)
    raw = unit_peak(target_matrix(targets))
    require_same_length(kernel=spectrum.eigenfunctions, targets=raw)
    Y = center_columns(raw) if spectrum.centered else raw
    phi = double(spectrum.eigenfunctions.detach())[:, : spectrum.rank]
    power = (phi.mT @ Y).square() / len(Y)
    total = Y.square().sum(0)
    defined = torch.linalg.vector_norm(Y, dim=0) > 8 * eps_of(targets, raw) * raw.norm(dim=0)
    if not per_class:
        power, total = power.sum(1, keepdim=True), total.sum(0, keepdim=True)
        defined = ~vanishes_when_centered(Y, raw, eps_of(targets, raw)).unsqueeze(0)
    shares = power / torch.where(defined, total, torch.ones_like(total))
    curve, null = _curve(_even(shares, spectrum) if ties == "canonical" else shares, spectrum)
    curve, null = nan_unless(defined.expand_as(curve), curve), nan_unless(defined, null)
    if not per_class:
        curve, null = curve.squeeze(1), null.squeeze(0)
    return CumulativePower(curve, null, spectrum.rank)


def _spectrum_of(kernel: Tensor | KernelSpectrum) -> KernelSpectrum:
    """The spectrum itself, or that of a Gram matrix, in float64; eigenspaces have no gradient."""
    if isinstance(kernel, KernelSpectrum):
        return kernel
    require_symmetric(kernel=kernel)
    return gram_modes(kernel.detach(), name="kernel")


def _even(shares: Float[Tensor, "r k"], spectrum: KernelSpectrum) -> Float[Tensor, "r k"]:
    """The power of every eigenspace spread evenly over its modes."""
    blocks = [shares[a:b].mean(0, keepdim=True).expand(b - a, -1) for a, b in spectrum.groups]
    return torch.cat(blocks) if blocks else shares


def _curve(
    shares: Float[Tensor, "r k"], spectrum: KernelSpectrum
) -> tuple[Float[Tensor, "m k"], Float[Tensor, " k"]]:
    """Running sums, over the null space too where it is known, and the power in the null space."""
    start = shares.new_zeros(1, shares.shape[1])
    curve = torch.cat([start, shares.cumsum(0)])
    if not spectrum.complete:
        return curve, torch.full_like(curve[-1], torch.nan)
    null = (1 - curve[-1]).clamp(min=0)
    modes = spectrum.count - spectrum.rank
    steps = torch.arange(1, modes + 1).to(curve).unsqueeze(1) / max(modes, 1)
    return torch.cat([curve, curve[-1] + null * steps]), null
