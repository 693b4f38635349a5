"""Cumulative power: how much of a target the leading modes carry, and numbers read off it."""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Integer, Shaped
from torch import Tensor

from theodolite.checks import (
    require_axes,
    require_between,
    require_choice,
    require_count,
    require_finite,
    require_nonempty,
    require_same_length,
)
from theodolite.errors import DomainError
from theodolite.linalg import (
    array_function,
    center_columns,
    double,
    eps_of,
    nan_unless,
    prints_shapes,
    ratio_or_nan,
    unit_peak,
    vanishes_when_centered,
)
from theodolite.measures.kernel._alignment import require_grams, target_matrix
from theodolite.measures.kernel._spectrum import KernelSpectrum, gram_modes

_SLACK = 1e-5  # rounding of curves that were kept in float32


@prints_shapes
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
    require_grams("pass linear_spectrum(features)", kernel=kernel)
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


def _require_curve(curve: Tensor) -> None:
    """A vector that starts at zero; an undefined curve (all nan) is allowed."""
    require_axes(1, curve=curve)
    require_nonempty(curve=curve)
    if curve.isnan().all():
        return
    require_finite(curve=curve)
    if curve[0].abs() > _SLACK or (curve[1:] < curve[:-1] - _SLACK).any():
        raise DomainError(
            "curve: expected cumulative power, 0 first and nondecreasing, got "
            f"{curve[:4].tolist()}...; pass cumulative_power(...).curve"
        )


@array_function
def modes_to_reach(
    curve: Float[Tensor, " m"] | CumulativePower, share: float = 0.95
) -> Float[Tensor, ""]:
    r"""Smallest number of leading modes that carry a given share of the target.

    .. math:: \rho_q = \min\{\rho : C(\rho) \ge q\}

    Only modes of the kernel count: pass the whole result of :func:`cumulative_power`, which knows
    its rank. Along the null space the curve goes on to 1, but no mode is there. A share that is
    reached up to rounding counts as reached.

    Range: 0 to the rank of the kernel; inf if all its modes together do not reach the share.
    Invariant to: what :func:`cumulative_power` is.
    Undefined (``nan``): the curve is, or it ends (leading modes only) before the share is reached.

    Args:
        curve: the result of :func:`cumulative_power`, or its :math:`C(0), C(1), ...` alone.
        share: :math:`q`.

    Raises:
        ShapeError: If the curve is not a vector.
        DomainError: If it does not start at 0 or falls, or the share is outside [0, 1].

    Example:
        >>> modes_to_reach(torch.tensor([0.0, 0.8, 1.0, 1.0]), 0.9).item()
        2.0

    References:
        [canatar2022], Fig. 3b; the number is ours.
    """
    if isinstance(curve, CumulativePower):
        values = curve.curve[: curve.rank + 1]
        beyond = torch.nan if curve.null_power.isnan().any() else torch.inf
    else:
        values, beyond = curve, torch.nan
    _require_curve(values)
    require_between(0.0, 1.0, share=share)
    reached = double(values) >= share - 8 * eps_of(values)
    first = reached.to(torch.int64).argmax().double()
    return torch.where(reached.any(), first, torch.full_like(first, beyond))


@array_function
def power_area(curve: Float[Tensor, " m"]) -> Float[Tensor, ""]:
    r"""Area under the cumulative power over all modes, as a share of the most possible.

    .. math:: \tfrac1n \sum_{\rho=1}^{n} C(\rho)

    About one half for a target that has nothing to do with the kernel.

    Range: [0, 1].
    Invariant to: what :func:`cumulative_power` is.
    Undefined (``nan``): the curve is, or it has no mode.

    Args:
        curve: :math:`C(0), C(1), ...` from :func:`cumulative_power`.

    Raises:
        ShapeError: If the curve is not a vector.
        DomainError: If it does not start at 0 or falls.

    Example:
        >>> round(power_area(torch.tensor([0.0, 0.8, 1.0, 1.0])).item(), 4)
        0.9333

    References:
        [canatar2022], Eq. (3); the number is ours.
    """
    _require_curve(curve)
    values = double(curve)[1:]
    return ratio_or_nan(values.sum(), values.new_tensor(float(len(values))))


@array_function
def power_evenness(curve: Float[Tensor, " m"], num_classes: int) -> Float[Tensor, ""]:
    r"""Largest distance of the cumulative power from an even spread over the first modes.

    .. math:: \max_{\rho \le C} |C(\rho) - \rho / C|

    Zero when the leading eigenspace is the span of balanced one-hot targets, as after collapse.

    Range: [0, 1].
    Invariant to: what :func:`cumulative_power` is.
    Undefined (``nan``): the curve is, or it ends before mode ``num_classes``.

    Args:
        curve: :math:`C(0), C(1), ...` from :func:`cumulative_power`.
        num_classes: :math:`C`, the number of modes compared.

    Raises:
        ShapeError: If the curve is not a vector.
        DomainError: If it does not start at 0 or falls, or there is no class.

    Example:
        >>> round(power_evenness(torch.tensor([0.0, 0.8, 1.0, 1.0]), num_classes=2).item(), 4)
        0.3

    References:
        [canatar2022], Fig. 3b; the number is ours.
    """
    _require_curve(curve)
    require_count(1, num_classes=num_classes)
    values = double(curve)[: num_classes + 1]
    if len(values) <= num_classes:
        return values.new_tensor(torch.nan)
    even = torch.arange(num_classes + 1).to(values) / num_classes
    return (values - even).abs().max()


@array_function
def spectral_gap(eigenvalues: Float[Tensor, " r"], num_classes: int) -> Float[Tensor, ""]:
    r"""Ratio of an eigenvalue to the next: does the spectrum break off after the classes?

    .. math:: \eta_C / \eta_{C+1}

    Range: at least 1; infinite if the kernel has exactly that rank.
    Invariant to: scaling.
    Undefined (``nan``): fewer than C + 1 eigenvalues are listed, or both are zero.

    Args:
        eigenvalues: :math:`\eta`, in decreasing order.
        num_classes: :math:`C`.

    Raises:
        ShapeError: If the eigenvalues are not a vector.
        DomainError: If one is negative or not finite, they are not sorted, or there is no class.

    Example:
        >>> spectral_gap(torch.tensor([3.0, 2.0, 0.5]), num_classes=2).item()
        4.0

    References:
        [canatar2022], Fig. 3a and 5a; the number is ours.
    """
    require_axes(1, eigenvalues=eigenvalues)
    require_nonempty(eigenvalues=eigenvalues)
    require_finite(eigenvalues=eigenvalues)
    require_count(1, num_classes=num_classes)
    if eigenvalues[-1] < 0 or (eigenvalues[1:] > eigenvalues[:-1]).any():
        raise DomainError(
            "eigenvalues: expected numbers of at least 0 in decreasing order, got "
            f"{eigenvalues[:4].tolist()}...; pass kernel_spectrum(...).eigenvalues"
        )
    eta = double(eigenvalues)
    if len(eta) <= num_classes:
        return eta.new_tensor(torch.nan)
    above, below = eta[num_classes - 1], eta[num_classes]
    ratio = ratio_or_nan(above, below)
    return torch.where((below == 0) & (above > 0), torch.full_like(ratio, torch.inf), ratio)
