"""Gradient flow with a static kernel, and the test error from cumulative power."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from theodolite.checks import (
    require_between,
    require_count,
    require_finite,
    require_nonnegative,
    require_same_shape,
)
from theodolite.errors import DomainError
from theodolite.linalg import (
    array_function,
    double,
    eps_of,
    prints_shapes,
    rank_tolerance,
    ratio_or_nan,
    symmetric_eigen,
)
from theodolite.theory.kernel_regression import (
    checked_spectrum,
    remaining_freedom,
    solve_effective_ridge,
    stacked_problem,
    unlearned_shares,
    unstacked,
)


@array_function
def gradient_flow_predictions(
    gram: Float[Tensor, "n n"] | Float[Tensor, "n c n c"],
    targets: Float[Tensor, "n c"],
    times: Float[Tensor, " t"],
    start: Float[Tensor, "n c"] | None = None,
    *,
    cross: Float[Tensor, "m n"] | Float[Tensor, "m c n c"] | None = None,
    cross_start: Float[Tensor, "m c"] | None = None,
) -> Float[Tensor, "t k c"]:
    r"""Predictions under gradient flow with a static kernel, on training or on other examples.

    .. math:: f(t) = Y - e^{-Kt}(Y - f(0)), \qquad
              u_\rho^\top(Y - f(t)) = e^{-\lambda_\rho t}\, u_\rho^\top(Y - f(0))

    The flow of :math:`\tfrac12\|f - Y\|^2` at unit rate; each kernel mode decays on its own. On
    other examples :math:`f_*(t) = f_*(0) + k_*^\top K^{-1}(I - e^{-Kt})(Y - f(0))`, in which a
    mode of eigenvalue zero grows by :math:`t`.

    Args:
        gram: :math:`K`, symmetric positive semi-definite; a tangent kernel or feature kernel. An
            operator-valued kernel has the axes example, output, example, output.
        targets: :math:`Y`.
        times: :math:`t \ge 0`.
        start: :math:`f(0)`; zero if absent.
        cross: :math:`k_*^\top`, between the examples to predict and the training examples; absent,
            the training examples are predicted.
        cross_start: :math:`f_*(0)` of the examples to predict; zero if absent.

    Raises:
        ShapeError: If sizes do not match.
        DomainError: If the Gram matrix is not symmetric or a time is negative.

    Examples:
        >>> times = torch.tensor([0.0, 1.0])
        >>> gradient_flow_predictions(torch.eye(1), torch.ones(1, 1), times).flatten()
        tensor([0.0000, 0.6321])

    References:
        [canatar2022], Eq. (5).
    """
    require_nonnegative(times=times)
    K, Y, k = stacked_problem(gram, targets, cross)
    begin = torch.zeros_like(targets) if start is None else start
    require_same_shape(targets=targets, start=begin)
    require_finite(start=begin)
    values, vectors = symmetric_eigen(K)
    values, t = values.clamp(min=0), double(times)
    gap = vectors.mT @ (Y - _like_stacked(begin, gram))
    learned = -torch.expm1(-torch.outer(t, values))
    if k is None:
        moved = vectors @ (learned.unsqueeze(-1) * gap)
        return double(begin) + unstacked(moved, targets)
    known = values > rank_tolerance(K.shape, eps_of(gram)) * values.max()
    grown = learned / torch.where(known, values, torch.ones_like(values))
    grown = torch.where(known, grown, torch.zeros_like(grown))
    moved = unstacked(k @ (vectors @ (grown.unsqueeze(-1) * gap)), targets)
    if cross_start is None:
        return moved
    require_same_shape(cross_start=cross_start, predictions=moved[0])
    require_finite(cross_start=cross_start)
    return double(cross_start) + moved


def _like_stacked(values: Tensor, gram: Tensor) -> Tensor:
    return double(values).reshape(-1, 1) if gram.ndim == 4 else double(values)


@prints_shapes
@dataclass(frozen=True)
class PowerShortcut:
    """``1 - C(modes)`` as an estimate of the normalised error, with its guaranteed accuracy."""

    value: Float[Tensor, ""]  # 1 - C(modes)
    target: Float[Tensor, ""]  # (1 - gamma) E_g / total power, which the value approximates
    bound: Float[Tensor, ""]  # on their difference
    gamma: Float[Tensor, ""]  # 0: the target is the normalised error itself
    modes: int


@array_function
def power_shortcut(
    eigenvalues: Float[Tensor, " r"],
    power: Float[Tensor, " r"],
    samples: float,
    ridge: float = 0.0,
    modes: int | None = None,
) -> PowerShortcut:
    r"""Test error as the power outside the leading modes, and how far off this estimate can be.

    .. math:: E_g \approx 1 - C(\rho^*), \qquad
              \Bigl|\frac{(1-\gamma)E_g}{\sum|a|^2} - (1 - C(\rho^*))\Bigr| \le
              \max\bigl(g(\eta_{\rho^*})^2,\; 1 - g(\eta_{\rho^*+1})^2\bigr), \qquad
              g(\eta) = \frac{\kappa}{\kappa + P\eta}

    Good where :math:`\eta_{\rho^*+1} \ll \kappa/P \ll \eta_{\rho^*}` and :math:`\rho^* \ll P`.

    Undefined (``nan``): the power is all zero.

    Args:
        eigenvalues: :math:`\eta_\rho`, in decreasing order.
        power: :math:`|a_\rho|^2`.
        samples: :math:`P`.
        ridge: :math:`\lambda`, added to the Gram matrix.
        modes: :math:`\rho^*`; the modes with :math:`P\eta > \kappa` if absent.

    Raises:
        ShapeError: If eigenvalues and power differ in length.
        DomainError: If eigenvalues are not in decreasing order or an argument is negative.

    Examples:
        >>> eigenvalues, power = torch.tensor([1.0, 1e-9, 1e-9]), torch.tensor([0.7, 0.2, 0.1])
        >>> shortcut = power_shortcut(eigenvalues, power, samples=100.0, ridge=1e-3)
        >>> shortcut.modes, round(shortcut.value.item(), 4), round(shortcut.bound.item(), 4)
        (1, 0.3, 0.0002)

    References:
        [canatar2022], section III.
        Differs from paper: it asks for :math:`P \approx 1/\eta_{\rho^*}`, which presumes a kernel
        scaled so that :math:`\kappa` is of order one.
    """
    eta, count = checked_spectrum(eigenvalues, samples, ridge)
    require_same_shape(eigenvalues=eigenvalues, power=power)
    require_nonnegative(power=power)
    if (eta.diff() > 0).any():
        raise DomainError("eigenvalues: expected decreasing order; sort them with their power")
    kappa = solve_effective_ridge(eta, count, ridge)
    unlearned = unlearned_shares(eta, count, kappa).square()
    chosen = int((count * eta > kappa).sum()) if modes is None else modes
    require_count(0, modes=chosen)
    require_between(0.0, float(len(eta)), modes=float(chosen))
    value, target, bound = shortcut_parts(unlearned, double(power), chosen)
    gamma = 1 - remaining_freedom(eta, count, kappa, ridge)
    return PowerShortcut(value, target, bound, gamma, chosen)


def shortcut_parts(unlearned: Tensor, power: Tensor, modes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Estimate, what it estimates, and the bound on their difference; modes on the last axis.

    ``unlearned`` is the share of each mode's power that remains.
    """
    total, none = power.sum(-1), torch.zeros_like(unlearned[..., 0])
    learned = unlearned[..., modes - 1] if modes > 0 else none
    missed = 1 - unlearned[..., modes] if modes < unlearned.shape[-1] else none
    value = ratio_or_nan(power[..., modes:].sum(-1), total)
    return value, ratio_or_nan((unlearned * power).sum(-1), total), torch.maximum(learned, missed)


@array_function
def spectral_alignment(
    eigenvalues: Float[Tensor, " r"], power: Float[Tensor, " r"], target_gram_norm: float
) -> Float[Tensor, ""]:
    r"""Kernel-target alignment from the spectrum and the target's power alone.

    .. math:: A(K, YY^\top) = \frac{\sum_\rho \eta_\rho |a_\rho|^2}{|\eta|_2\,\|YY^\top\|_F/P}
              = \frac{\|Y\|_F^2}{|\eta|_2\,\|YY^\top\|_F}
              \sum_\rho (\eta_\rho - \eta_{\rho+1})\, C(\rho)

    An average of the cumulative power with the spectral gaps as weights, which is why it can miss
    structure of low variance.

    Undefined (``nan``): the kernel or the target is zero.

    Args:
        eigenvalues: :math:`\eta_\rho`, of the Gram matrix divided by :math:`P`.
        power: :math:`|a_\rho|^2`.
        target_gram_norm: :math:`\|YY^\top\|_F / P`.

    Raises:
        ShapeError: If eigenvalues and power differ in length.
        DomainError: If an argument is negative or not finite.

    Examples:
        >>> spectral_alignment(torch.tensor([2.0, 0.0]), torch.tensor([0.5, 0.0]), 0.5)
        tensor(1.)

    References:
        [canatar2022], Eq. (4), in the kernel's eigenbasis.
    """
    require_same_shape(eigenvalues=eigenvalues, power=power)
    require_nonnegative(eigenvalues=eigenvalues, power=power)
    require_between(0.0, float("inf"), open_high=True, target_gram_norm=target_gram_norm)
    eta = double(eigenvalues)
    product = (eta * double(power)).sum()
    return ratio_or_nan(product, torch.linalg.vector_norm(eta) * target_gram_norm)
