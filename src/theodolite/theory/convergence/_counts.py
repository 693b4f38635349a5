"""Exact counts: the first whole step at which gradient descent has reached a goal."""

import torch
from jaxtyping import Float
from torch import Tensor

from theodolite.checks import require_nonnegative
from theodolite.linalg import LabelProjections, array_function, double, nan_unless
from theodolite.theory.convergence._powers import one_minus_power, times
from theodolite.theory.convergence._setting import StartingPoint, initial_mass, require_convergence
from theodolite.theory.convergence._trajectories import weight_norm

__all__ = ["first_step", "steps_to_reduce", "weight_norm_after"]

_DOUBLINGS = 1080  # beyond the largest float
_BITS = 54  # of a count: counts above 2**53 are rounded
_SLACK = 8 * torch.finfo(torch.float64).eps  # a goal that was itself computed as a reduction


def first_step(rate: Tensor, mass: Tensor, goal: Tensor) -> Tensor:
    """Smallest whole ``t`` with ``sum (1 - q^(2t)) mass >= goal``; inf if there is none.

    ``rate`` and ``mass`` carry directions on their last axis and broadcast against ``goal`` in the
    others. A goal equal to the whole mass is reached only if one step removes everything.
    """
    mass = torch.where((rate > 0) & (rate < 2), mass, torch.zeros_like(mass))
    whole = mass.sum(-1)

    def reached(steps: Tensor) -> Tensor:
        gained = times(one_minus_power(rate, 2 * steps.unsqueeze(-1)), mass).sum(-1)
        return gained >= goal * (1 - _SLACK)

    high = torch.ones_like(goal)
    for _ in range(_DOUBLINGS):
        missing = ~reached(high) & (goal < whole)
        if not missing.any():
            break
        high = torch.where(missing, 2 * high, high)
    low = torch.where(high > 1, high / 2, torch.zeros_like(high))
    for _ in range(_BITS):
        middle = torch.floor((low + high) / 2)
        if not (middle > low).any():
            break
        low, high = _halve(low, middle, high, reached(middle))
    return torch.where(goal <= 0, torch.zeros_like(high), _or_never(high, goal, whole, rate, mass))


def _halve(low: Tensor, middle: Tensor, high: Tensor, below: Tensor) -> tuple[Tensor, Tensor]:
    inside = middle > low
    return torch.where(inside & ~below, middle, low), torch.where(inside & below, middle, high)


def _or_never(high: Tensor, goal: Tensor, whole: Tensor, rate: Tensor, mass: Tensor) -> Tensor:
    one_step = ((mass == 0) | (rate == 1)).all(-1) & (goal <= whole)
    endless = torch.where(one_step, torch.ones_like(high), torch.full_like(high, torch.inf))
    return torch.where(goal < whole, high, endless)


@array_function
def steps_to_reduce(
    projections: LabelProjections,
    reduction: float | Float[Tensor, "*b"],
    step_size: float,
    *,
    start: StartingPoint | None = None,
) -> Float[Tensor, "*b"]:
    r"""The exact number of gradient-descent steps that lower the loss by a given amount.

    .. math:: \min\{t \in \mathbb N : L(w_0) - L(w_t) \ge \omega\}

    Infinite if no number of steps does: only what lies in the range of the features can go.

    Args:
        projections: :math:`\sigma_i, c_i`, the result of ``label_projections``.
        reduction: :math:`\omega \ge 0`, on the sum of squared errors; one number or many.
        step_size: :math:`\eta`, for half the sum of squares.
        start: Initial weights from ``project_start``; zero if absent.

    Raises:
        DomainError: If the reduction is negative or the step size makes the run diverge.

    Example:
        >>> one = LabelProjections(torch.ones(1), torch.ones(1, 1), torch.ones(1), 2)
        >>> steps_to_reduce(one, torch.tensor([0.0, 0.75, 0.9, 1.5]), 0.5)
        tensor([0., 1., 2., inf])

    References:
        [imani2022], Proposition 1 solved for the step.
    """
    return _steps_to_reduce(projections, reduction, step_size, start)


def _steps_to_reduce(
    projections: LabelProjections,
    reduction: float | Tensor,
    step_size: float,
    start: StartingPoint | None,
) -> Tensor:
    require_convergence(projections, step_size)
    rate = step_size * double(projections.singular_values).square()
    goal = torch.as_tensor(reduction, dtype=torch.float64, device=rate.device)
    require_nonnegative(reduction=goal)
    return first_step(rate, initial_mass(projections, start), goal)


@array_function
def weight_norm_after(
    projections: LabelProjections, reduction: float | Float[Tensor, "*b"], step_size: float
) -> Float[Tensor, "*b"]:
    r"""Norm of the weights when gradient descent from zero has lowered the loss by an amount.

    .. math:: \|w_T\|,\qquad T = \min\{t : L(0) - L(w_t) \ge \omega\}

    Undefined (``nan``): the reduction is never reached.

    Args:
        projections: :math:`\sigma_i, c_i`, the result of ``label_projections``.
        reduction: :math:`\omega \ge 0`, on the sum of squared errors; one number or many.
        step_size: :math:`\eta`, for half the sum of squares.

    Raises:
        DomainError: If the reduction is negative or the step size makes the run diverge.

    Example:
        >>> one = LabelProjections(torch.ones(1), torch.ones(1, 1), torch.ones(1), 2)
        >>> weight_norm_after(one, torch.tensor([0.75, 2.0]), 0.5)
        tensor([0.5000,    nan])

    References:
        [imani2022], Figure 11 (c, d).
    """
    steps = _steps_to_reduce(projections, reduction, step_size, None)
    reached = steps.isfinite()
    safe = torch.where(reached, steps, torch.zeros_like(steps))
    return nan_unless(reached, weight_norm(projections, step_size, safe))
