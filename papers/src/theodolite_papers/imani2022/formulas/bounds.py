r"""Numbers of gradient-descent steps that are enough at a given alignment.

All bounds need :math:`\eta\sigma_1^2 \le 1`. For larger step sizes they are false.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from theodolite.checks import require_finite, require_positive
from theodolite.errors import DomainError
from theodolite.linalg import LabelProjections, array_function, double, prints_shapes
from theodolite.theory.convergence import initial_mass, require_projections, steps_to_reduce

Number = float | Float[Tensor, "*b"]

_ROUNDING = 1 + 8 * torch.finfo(torch.float64).eps  # step_size = 1 / sigma_1**2 may exceed by this


@prints_shapes
@dataclass(frozen=True)
class IterationBounds:
    """Bounds on the steps to a reduction, and the exact count; round bounds up to whole steps."""

    paper: Float[Tensor, ""]
    sharp: Float[Tensor, ""]
    best: Float[Tensor, ""]  # the paper's form at the threshold that makes it smallest
    best_threshold: Float[Tensor, ""]
    exact: Float[Tensor, ""]


@array_function
def iteration_bound(
    alignment: Number,
    reduction: Number,
    step_size: Number,
    threshold: Number,
    *,
    largest: Number | None = None,
) -> Float[Tensor, "*b"]:
    r"""Steps after which gradient descent has surely lowered the loss by a given amount.

    .. math:: T = -\frac{\log(1 - \omega/\delta)}{2\eta\tau^2}

    A real number; the guarantee is for ``ceil(T)`` steps from zero weights. All arguments
    broadcast.

    Args:
        alignment: :math:`\delta > 0`, the label mass on singular values of at least ``threshold``.
        reduction: :math:`0 \le \omega < \delta`, the drop of the sum of squared errors.
        step_size: :math:`\eta`, for half the sum of squares.
        threshold: :math:`\tau > 0`, at most :math:`\sigma_1`.
        largest: :math:`\sigma_1`. The bound is false where :math:`\eta\sigma_1^2 > 1`; without
            this argument only :math:`\eta\tau^2 \le 1` can be checked
            (:func:`iteration_bounds` knows it and always checks).

    Raises:
        DomainError: If an argument is outside these domains.

    Examples:
        >>> round(iteration_bound(1.0, 0.9, 0.1, 2.0).item(), 4)
        2.8782

    References:
        [imani2022], Proposition 2.
        Differs from paper: equality :math:`\eta\sigma_1^2 = 1` is allowed.
    """
    delta, omega, eta, tau = _checked(alignment, reduction, step_size, threshold, largest)
    return -torch.log1p(-omega / delta) / (2 * eta * tau.square())


@array_function
def sharp_iteration_bound(
    alignment: Number,
    reduction: Number,
    step_size: Number,
    threshold: Number,
    *,
    largest: Number | None = None,
) -> Float[Tensor, "*b"]:
    r"""The bound without its last inequality; attained when all the mass sits at the threshold.

    .. math:: \frac{\log(1 - \omega/\delta)}{2\log(1 - \eta\tau^2)}

    At :math:`\eta\tau^2 = 1` one step does it: 1, or 0 for :math:`\omega = 0`.

    Args:
        alignment: :math:`\delta > 0`, the label mass on singular values of at least ``threshold``.
        reduction: :math:`0 \le \omega < \delta`, the drop of the sum of squared errors.
        step_size: :math:`\eta`, for half the sum of squares.
        threshold: :math:`\tau > 0`, at most :math:`\sigma_1`.
        largest: :math:`\sigma_1`; as in :func:`iteration_bound`.

    Raises:
        DomainError: If an argument is outside these domains.

    Examples:
        >>> round(sharp_iteration_bound(1.0, 0.9, 0.1, 2.0).item(), 4)
        2.2538

    References:
        [imani2022], proof of Proposition 2, before :math:`1 - x \le e^{-x}`.
    """
    delta, omega, eta, tau = _checked(alignment, reduction, step_size, threshold, largest)
    rate = (eta * tau.square()).clamp(max=1)
    steps = torch.log1p(-omega / delta) / (2 * torch.log1p(-rate))
    return torch.where(rate == 1, (omega > 0).to(steps), steps)


@array_function
def best_iteration_bound(
    projections: LabelProjections, reduction: float, step_size: float
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    r"""The smallest bound over all thresholds, and the threshold that gives it.

    .. math:: \min_\tau\; -\frac{\log(1 - \omega/A(\tau))}{2\eta\tau^2}

    Between two singular values a larger threshold is better, so only they can be optimal.

    Args:
        projections: :math:`\sigma_i, c_i`.
        reduction: :math:`\omega \ge 0`, below the mass in the range of the features.
        step_size: :math:`\eta`, for half the sum of squares, at most :math:`1/\sigma_1^2`.

    Raises:
        DomainError: If the reduction cannot be reached or the step size is too large.

    Examples:
        >>> two = LabelProjections(torch.tensor([1.0, 0.1]), torch.ones(2, 1), torch.zeros(1), 2)
        >>> bound, threshold = best_iteration_bound(two, 0.9, 1.0)
        >>> round(bound.item(), 4), threshold
        (1.1513, tensor(1.))

    References:
        [imani2022], Proposition 2, minimised over the threshold.
    """
    return _best(projections, reduction, step_size)


@array_function
def iteration_bounds(
    projections: LabelProjections, reduction: float, step_size: float, threshold: float
) -> IterationBounds:
    r"""Every bound on the steps to a reduction, and the exact count.

    ``exact <= ceil(sharp) <= ceil(paper)`` and ``exact <= ceil(best) <= ceil(paper)``.

    Args:
        projections: :math:`\sigma_i, c_i`.
        reduction: :math:`\omega`, below the alignment at the threshold.
        step_size: :math:`\eta`, for half the sum of squares, at most :math:`1/\sigma_1^2`.
        threshold: :math:`\tau`, in :math:`(0, \sigma_1]`.

    Raises:
        DomainError: If an argument is outside these domains; where the reduction exceeds the
            alignment, the message names the threshold that would do.

    Examples:
        >>> two = LabelProjections(torch.tensor([1.0, 0.5]), torch.ones(2, 1), torch.zeros(1), 2)
        >>> bounds = iteration_bounds(two, 1.5, step_size=0.5, threshold=0.5)
        >>> round(bounds.paper.item(), 4), round(bounds.sharp.item(), 4), bounds.exact.item()
        (5.5452, 5.1909, 3.0)

    References:
        [imani2022], Propositions 1 and 2.
    """
    best, best_threshold = _best(projections, reduction, step_size)
    sigma = double(projections.singular_values)
    alignment = initial_mass(projections)[sigma >= threshold].sum()
    if not reduction < alignment:
        raise DomainError(
            f"reduction: expected less than the alignment {alignment.item():.6g} at threshold "
            f"{threshold}, got {reduction}; a threshold of {best_threshold.item():.6g} would do"
        )
    arguments = alignment, reduction, step_size, threshold
    largest = float(sigma.max())
    return IterationBounds(
        paper=iteration_bound(*arguments, largest=largest),
        sharp=sharp_iteration_bound(*arguments, largest=largest),
        best=best,
        best_threshold=best_threshold,
        exact=steps_to_reduce(projections, reduction, step_size),
    )


def _best(
    projections: LabelProjections, reduction: float, step_size: float
) -> tuple[Tensor, Tensor]:
    require_projections(projections)
    require_positive(step_size=step_size)
    sigma, masses = double(projections.singular_values), initial_mass(projections).cumsum(0)
    _require_small_step(step_size, sigma)
    if not (math.isfinite(reduction) and len(masses) and 0 <= reduction < float(masses[-1])):
        top = float(masses[-1]) if len(masses) else 0.0
        raise DomainError(
            f"reduction: expected a number in [0, {top:.6g}), the label mass in the range of the "
            f"features, got {reduction}; no number of steps removes more"
        )
    bounds = bounds_by_threshold(step_size * sigma.square(), masses, masses.new_tensor(reduction))
    index = int(bounds.argmin())
    return bounds[index], sigma[index]


def bounds_by_threshold(rate: Tensor, alignment: Tensor, reduction: Tensor) -> Tensor:
    """The paper's bound with every singular value as threshold; inf if the alignment is too small.

    Directions on the last axis, largest singular value first; ``alignment`` is their running mass.
    """
    goal = reduction.unsqueeze(-1)
    usable = alignment > goal
    ratio = torch.where(usable, goal / alignment.clamp(min=1e-300), torch.zeros_like(alignment))
    bounds = -torch.log1p(-ratio) / (2 * rate)
    return torch.where(usable, bounds, torch.full_like(bounds, torch.inf))


def _require_small_step(step_size: float | Tensor, largest: Tensor) -> None:
    rate = (step_size * largest.square()).max() if largest.numel() else torch.zeros(())
    if not rate <= _ROUNDING:
        raise DomainError(
            f"step_size: expected step_size * sigma_1^2 of at most 1, got {rate.item():.6g}; "
            "the bound is false beyond it: take a smaller step size, or steps_to_reduce, "
            "which counts exactly"
        )


def _checked(
    alignment: Number,
    reduction: Number,
    step_size: Number,
    threshold: Number,
    largest: Number | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The arguments in float64, inside the domain of Proposition 2."""
    given = alignment, reduction, step_size, threshold, threshold if largest is None else largest
    tensors = (torch.as_tensor(value, dtype=torch.float64) for value in given)
    delta, omega, eta, tau, top = tensors
    require_finite(alignment=delta, reduction=omega, step_size=eta, threshold=tau, largest=top)
    for name, value in [("alignment", delta), ("step_size", eta), ("threshold", tau)]:
        if not (value > 0).all():
            raise DomainError(f"{name}: expected more than 0, got {value.min().item():.6g}")
    if not ((omega >= 0) & (omega < delta)).all():
        raise DomainError(
            "reduction: expected at least 0 and less than the alignment; got up to "
            f"{omega.max().item():.6g} against {delta.min().item():.6g}; lower the threshold until "
            "the alignment exceeds the reduction"
        )
    if not (tau <= top * _ROUNDING).all():
        raise DomainError(
            f"threshold: expected at most sigma_1 = {top.min().item():.6g}, "
            f"got {tau.max().item():.6g}"
        )
    _require_small_step(eta, top)
    return delta, omega, eta, tau
