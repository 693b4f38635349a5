r"""How gradient descent on a linear probe converges, in closed form.

Everything follows from :func:`theodolite.measures.representation.label_projections`: singular
values of the features and the targets' coordinates on the left singular vectors. Along each
singular direction one step multiplies the error by :math:`1 - \eta\sigma_i^2` (``rate`` is
:math:`\eta\sigma^2`). Directions do not interact. With a rate between 1 and 2 this factor is
negative, and so are its odd powers. Close to 2 the relative error of a power is the rounding of the
rate times the number of steps.

The update is :math:`w_{t+1} = w_t - \eta\,\Phi^\top(\Phi w_t - y)`: the step size
:math:`\eta` belongs to the loss :math:`\tfrac12\|\Phi w - y\|^2`; :func:`convert_step_size`
converts learning rates of other losses. Weights, phases, bounds and logistic regression are in
``theodolite_papers.imani2022.formulas``.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from theodolite.checks import (
    require_choice,
    require_count,
    require_nonnegative,
    require_positive,
)
from theodolite.errors import DomainError, DtypeError
from theodolite.linalg import (
    LabelProjections,
    array_function,
    double,
)

__all__ = [
    "LabelProjections",
    "convert_step_size",
    "diverges",
    "gradient_descent_loss",
    "steps_to_reduce",
]

Steps = int | float | Int[Tensor, "*t"] | Float[Tensor, "*t"]
# Gradient of each loss in units of the gradient of half the sum of squares; "mean" divides by n.
_LOSS_FACTORS = {"half_sum": 1.0, "sum": 2.0, "half_mean": 1.0, "mean": 2.0}


def log_contraction(rate: Tensor) -> Tensor:
    """``log|1 - rate|``, which is ``-inf`` at ``rate = 1``."""
    below = torch.log1p(-rate.clamp(max=1))  # log1p: a rate of 1e-24 would vanish in 1 - rate
    return torch.where(rate < 1, below, (rate - 1).clamp(min=0).log())


def power(rate: Tensor, steps: Tensor) -> Tensor:
    """``(1 - rate) ** steps``."""
    magnitude = torch.exp(steps * log_contraction(rate))
    signed = torch.where(is_negative(rate, steps), -magnitude, magnitude)
    return torch.where(steps == 0, torch.ones_like(signed), signed)  # avoids nan of 0 * -inf


def times(factor: Tensor, amount: Tensor) -> Tensor:
    """``factor * amount``; zero if the amount is zero, even if the factor is infinite."""
    return torch.where(amount == 0, torch.zeros_like(factor * amount), factor * amount)


def is_negative(rate: Tensor, steps: Tensor) -> Tensor:
    """Whether ``(1 - rate) ** steps`` is negative."""
    return (rate > 1) & (steps.remainder(2) == 1)


def convert_step_size(learning_rate: float, loss: str, count: int) -> float:
    r"""The step size :math:`\eta` of this module for a learning rate on some scaling of the loss.

    .. math:: \eta = \mathrm{lr},\; 2\,\mathrm{lr},\; \mathrm{lr}/n,\; 2\,\mathrm{lr}/n
              \quad\text{for}\quad \tfrac12\Sigma,\; \Sigma,\; \tfrac1{2n}\Sigma,\; \tfrac1n\Sigma,
              \qquad \Sigma = \|\Phi w - y\|^2

    Args:
        learning_rate: Factor of the gradient of the loss.
        loss: ``"half_sum"``, ``"sum"``, ``"half_mean"`` or ``"mean"`` (over examples).
        count: :math:`n`, the number of examples. ``torch.nn.MSELoss`` also averages over the
            :math:`k` outputs: pass ``"mean"`` and :math:`n k`.

    Returns:
        The step size of the formulas of this module.

    Raises:
        DomainError: If the rate is not positive or the loss is unknown.

    Examples:
        >>> convert_step_size(0.1, "mean", count=50)
        0.004

    References:
        [imani2022], Proposition 1.
        Differs from paper: the paper omits the factor 2 of the gradient.
    """
    require_positive(learning_rate=learning_rate)
    require_choice(list(_LOSS_FACTORS), loss=loss)
    require_count(1, count=count)
    step_size = learning_rate * _LOSS_FACTORS[loss]
    return step_size / count if loss.endswith("mean") else step_size


def diverges(projections: LabelProjections, step_size: float) -> bool:
    r"""Whether gradient descent diverges: :math:`\eta\sigma_1^2 \ge 2`.

    Args:
        projections: Result of ``label_projections``.
        step_size: :math:`\eta`, for half the sum of squares.

    Returns:
        True if the loss does not converge. Along a direction with initial error it grows without
        bound, or stays constant if the product is exactly 2.

    Raises:
        DomainError: If the step size is not positive and finite.

    Examples:
        >>> one = LabelProjections(torch.ones(1), torch.ones(1, 1), torch.zeros(1), 1)
        >>> diverges(one, 1.9), diverges(one, 2.0)
        (False, True)

    References:
        [imani2022], Proposition 1, which asks for :math:`\eta\sigma_1^2 < 1`.
    """
    require_projections(projections)
    require_positive(step_size=step_size)
    return bool((step_size * double(projections.singular_values).square() >= 2).any())


def require_projections(projections: object) -> None:
    """Check for a result of ``label_projections``, not features."""
    if not isinstance(projections, LabelProjections):
        raise DtypeError(
            "projections: expected the result of label_projections(features, targets), "
            f"got {type(projections).__name__}; call it first"
        )


def rates(projections: LabelProjections, step_size: float, steps: Steps) -> tuple[Tensor, Tensor]:
    """``eta sigma^2`` of shape (r,) and the steps, checked, of shape (t, 1)."""
    require_projections(projections)
    require_positive(step_size=step_size)
    rate = step_size * double(projections.singular_values).square()
    t = torch.as_tensor(steps, dtype=torch.float64, device=rate.device).reshape(-1, 1)
    if t.numel() and not (t.isfinite().all() and (t >= 0).all()):
        raise DomainError(f"steps: expected finite numbers of at least 0, got {steps}")
    if (rate > 1).any() and (t != t.round()).any():
        raise DomainError(
            "steps: expected whole numbers where step_size * sigma_1^2 exceeds 1 (errors change "
            f"sign every step), got {steps}; round them or take a smaller step size"
        )
    return rate, t


def initial_mass(projections: LabelProjections) -> Tensor:
    """Loss along each direction at the start, summed over target columns."""
    return double(projections.coefficients).square().sum(1)


def require_convergence(projections: LabelProjections, step_size: float) -> None:
    """Check that gradient descent with this step size does not diverge."""
    if diverges(projections, step_size):
        largest = float(projections.singular_values.max())
        raise DomainError(
            f"step_size: expected less than 2 / sigma_1^2 = {2 / largest**2:.4g}, got {step_size}; "
            "gradient descent diverges, so no number of steps is enough; pass a smaller step_size"
        )


_DOUBLINGS = 1080  # beyond the largest float
_BITS = 54  # bits of a count; counts above 2**53 are rounded
_SLACK = 8 * torch.finfo(torch.float64).eps  # for goals that were computed as reductions


@array_function
def gradient_descent_loss(
    projections: LabelProjections,
    step_size: float,
    steps: Steps,
) -> Float[Tensor, "*t"]:
    r"""Sum of squared errors after some steps of gradient descent.

    .. math:: \|\Phi w_t - y\|^2 = \sum_i (1-\eta\sigma_i^2)^{2t}\,c_i^2
              + \|y\|^2 - \sum_i c_i^2 \quad\text{from}\quad w_0 = 0

    The loss is summed over target columns. Divide it by ``projections.count`` for the mean squared
    error. To start from other weights :math:`w_0`, project the targets :math:`y - \Phi w_0`.

    Args:
        projections: :math:`\sigma_i, c_i`, the result of ``label_projections``.
        step_size: :math:`\eta`, for half the sum of squares (``convert_step_size``).
        steps: :math:`t`, one number or many; whole numbers where :math:`\eta\sigma_1^2 > 1`.

    Returns:
        One loss for every number of steps.

    Raises:
        DomainError: If the step size is not positive, or steps are negative or not finite.

    Examples:
        >>> projections = LabelProjections(
        ...     torch.tensor([1.0, 0.5]), torch.ones(2, 1), torch.zeros(1), count=2
        ... )
        >>> gradient_descent_loss(projections, 0.5, torch.tensor([0, 1, 10]))
        tensor([2.0000, 1.0156, 0.0692])

    References:
        [imani2022], Proposition 1.
        Differs from paper: any rank and shape, any step size, any start.
    """
    gap = gap_after(projections, step_size, steps)
    return gap + double(projections.residual).sum()


def gap_after(projections: LabelProjections, step_size: float, steps: Steps) -> Tensor:
    """Loss above its floor after some steps, summed over target columns."""
    rate, t = rates(projections, step_size, steps)
    terms = times(power(rate, 2 * t), initial_mass(projections))
    return terms.sum(-1).reshape(shape_of(steps))


def shape_of(steps: Steps) -> tuple[int, ...]:
    """Axes of the result for these steps; none for a single number."""
    return tuple(steps.shape) if isinstance(steps, Tensor) else ()


def first_step(rate: Tensor, mass: Tensor, goal: Tensor) -> Tensor:
    """Smallest whole ``t`` with ``sum (1 - q^(2t)) mass >= goal``; inf if there is none.

    The last axis of ``rate`` and ``mass`` has the directions; the other axes broadcast against
    ``goal``. A goal equal to the whole mass is reached only if one step removes everything.
    """
    inside = (rate > 0) & (rate < 2)
    mass = torch.where(inside, mass, torch.zeros_like(mass))
    whole, least = mass.sum(-1), goal * (1 - _SLACK)
    # Computed once, used dozens of times. Even powers have no sign.
    log = torch.where(inside, 2 * log_contraction(rate), -torch.ones_like(rate))

    def reached(steps: Tensor) -> Tensor:
        return -(torch.expm1(steps.unsqueeze(-1) * log) * mass).sum(-1) >= least

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
) -> Float[Tensor, "*b"]:
    r"""The exact number of gradient-descent steps that lower the loss by a given amount.

    .. math:: \min\{t \in \mathbb N : L(w_0) - L(w_t) \ge \omega\}

    Infinite if no number of steps is enough: training removes only the loss in the range of the
    features.

    Args:
        projections: :math:`\sigma_i, c_i`, the result of ``label_projections``.
        reduction: :math:`\omega \ge 0`, on the sum of squared errors; one number or many.
        step_size: :math:`\eta`, for half the sum of squares.

    Returns:
        One number of steps for every reduction; ``inf`` where it is never reached.

    Raises:
        DomainError: If the reduction is negative or the step size makes the run diverge.

    Examples:
        >>> one = LabelProjections(torch.ones(1), torch.ones(1, 1), torch.ones(1), 2)
        >>> steps_to_reduce(one, torch.tensor([0.0, 0.75, 0.9, 1.5]), 0.5)
        tensor([0., 1., 2., inf])

    References:
        [imani2022], Proposition 1 solved for the step.
    """
    require_convergence(projections, step_size)
    rate = step_size * double(projections.singular_values).square()
    goal = torch.as_tensor(reduction, dtype=torch.float64, device=rate.device)
    require_nonnegative(reduction=goal)
    return first_step(rate, initial_mass(projections), goal)
