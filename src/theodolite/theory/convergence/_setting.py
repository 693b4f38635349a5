r"""A linear read-out, its start and its step size; one process for each singular direction.

``rate`` is :math:`\eta\sigma^2`: one step of gradient descent multiplies the error along a singular
direction by ``q``. Between 1 and 2 the base is negative and odd powers keep its sign; close to 2
a power inherits the rounding of the rate times the number of steps.

The update is :math:`w_{t+1} = w_t - \eta\,\Phi^\top(\Phi w_t - y)`: the step size
:math:`\eta` belongs to the loss :math:`\tfrac12\|\Phi w - y\|^2`; see :func:`convert_step_size`
for the others.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from theodolite.checks import (
    require_axes,
    require_between,
    require_choice,
    require_count,
    require_finite,
    require_nonempty,
    require_nonnegative,
    require_positive,
    require_same_length,
    require_same_shape,
)
from theodolite.errors import DomainError, DtypeError, ShapeError
from theodolite.linalg import (
    LabelProjections,
    array_function,
    double,
    eps_of,
    numerical_rank,
    prints_shapes,
    thin_svd,
)

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
    signed = torch.where(_is_negative(rate, steps), -magnitude, magnitude)
    return torch.where(steps == 0, torch.ones_like(signed), signed)  # not nan for 0 * -inf


def one_minus_power(rate: Tensor, steps: Tensor) -> Tensor:
    """``1 - (1 - rate) ** steps`` without cancellation."""
    exponent = steps * log_contraction(rate)
    odd_and_negative = _is_negative(rate, steps)
    value = torch.where(odd_and_negative, 1 + exponent.exp(), -torch.expm1(exponent))
    return torch.where(steps == 0, torch.zeros_like(value), value)


def progress(rate: Tensor, steps: Tensor) -> Tensor:
    """``(1 - (1 - rate) ** steps) / rate``, which tends to ``steps`` as the rate vanishes."""
    safe = torch.where(rate > 0, rate, torch.ones_like(rate))
    return torch.where(
        rate > 0, one_minus_power(rate, steps) / safe, steps + torch.zeros_like(rate)
    )


def times(factor: Tensor, amount: Tensor) -> Tensor:
    """``factor * amount``, zero where the amount is, also where the factor has overflowed."""
    return torch.where(amount == 0, torch.zeros_like(factor * amount), factor * amount)


def _is_negative(rate: Tensor, steps: Tensor) -> Tensor:
    return (rate > 1) & (steps.remainder(2) == 1)


@prints_shapes
@dataclass(frozen=True)
class StartingPoint:
    """Initial weights in the right singular basis of the features."""

    coordinates: Float[Tensor, "r c"]
    outside: Float[Tensor, " c"]  # squared norm outside the row space, where nothing ever moves


def convert_step_size(learning_rate: float, loss: str, count: int) -> float:
    r"""The step size :math:`\eta` of this module for a learning rate on some scaling of the loss.

    .. math:: \eta = \mathrm{lr},\; 2\,\mathrm{lr},\; \mathrm{lr}/n,\; 2\,\mathrm{lr}/n
              \quad\text{for}\quad \tfrac12\Sigma,\; \Sigma,\; \tfrac1{2n}\Sigma,\; \tfrac1n\Sigma,
              \qquad \Sigma = \|\Phi w - y\|^2

    Args:
        learning_rate: What multiplies the gradient of the loss.
        loss: ``"half_sum"``, ``"sum"``, ``"half_mean"`` or ``"mean"`` (over examples).
        count: :math:`n`, the number of examples. ``torch.nn.MSELoss`` also averages over the
            :math:`k` outputs: pass ``"mean"`` and :math:`n k`.

    Raises:
        DomainError: If the rate is not positive or the loss is unknown.

    Example:
        >>> convert_step_size(0.1, "mean", count=50)
        0.004

    References:
        [imani2022], Proposition 1.
        Differs from paper: it drops the factor 2 of the gradient without saying so.
    """
    require_positive(learning_rate=learning_rate)
    require_choice(list(_LOSS_FACTORS), loss=loss)
    require_count(1, count=count)
    step_size = learning_rate * _LOSS_FACTORS[loss]
    return step_size / count if loss.endswith("mean") else step_size


@array_function
def project_start(
    features: Float[Tensor, "n d"], targets: Float[Tensor, "n c"], weights: Float[Tensor, "d c"]
) -> tuple[LabelProjections, StartingPoint]:
    r"""Targets and initial weights in one and the same singular basis of the features.

    Singular vectors have no sign of their own, so both must come from one decomposition.

    Args:
        features: :math:`\Phi`.
        targets: :math:`y`, one column per output.
        weights: :math:`w_0`.

    Raises:
        ShapeError: If rows, columns or outputs do not match.
        DomainError: If anything is not finite.

    Example:
        >>> features = torch.diag(torch.tensor([2.0, 1.0]))
        >>> projections, start = project_start(features, torch.ones(2, 1), torch.ones(2, 1))
        >>> projections.coefficients.abs().flatten(), start.coordinates.abs().flatten()
        (tensor([1., 1.]), tensor([1., 1.]))

    References:
        [imani2022], Eq. (1).
    """
    require_axes(2, features=features, targets=targets, weights=weights)
    require_nonempty(features=features, targets=targets)
    require_same_length(features=features, targets=targets)
    if weights.shape != (features.shape[1], targets.shape[1]):
        raise ShapeError(
            f"weights: expected one row per feature and one column per target, "
            f"({features.shape[1]}, {targets.shape[1]}), got {tuple(weights.shape)}"
        )
    require_finite(features=features, targets=targets, weights=weights)
    left, values, right = thin_svd(features)
    rank = numerical_rank(values, features.shape, eps_of(features))
    left, values, right = left[:, :rank], values[:rank], right[:, :rank]
    y, w = double(targets), double(weights)
    coefficients, coordinates = left.mT @ y, right.mT @ w
    residual = (y - left @ coefficients).square().sum(0)
    outside = (w - right @ coordinates).square().sum(0)
    projections = LabelProjections(values, coefficients, residual, len(y))
    return projections, StartingPoint(coordinates, outside)


def diverges(projections: LabelProjections, step_size: float) -> bool:
    r"""Whether gradient descent diverges: :math:`\eta\sigma_1^2 \ge 2`.

    Args:
        projections: Result of ``label_projections``.
        step_size: :math:`\eta`, for half the sum of squares.

    Raises:
        DomainError: If the step size is not positive and finite.

    Example:
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
    """What ``label_projections`` returns, not the features themselves."""
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


def initial_mass(projections: LabelProjections, start: StartingPoint | None) -> Tensor:
    """Loss that each direction owns at the start, summed over target columns."""
    error = double(projections.coefficients)
    if start is not None:
        require_same_shape(coefficients=error, start=start.coordinates)
        error = error - double(projections.singular_values).unsqueeze(1) * double(start.coordinates)
    return error.square().sum(1)


def require_convergence(projections: LabelProjections, step_size: float) -> None:
    """A step size with which gradient descent does not diverge."""
    if diverges(projections, step_size):
        largest = float(projections.singular_values.max())
        raise DomainError(
            f"step_size: expected less than 2 / sigma_1^2 = {2 / largest**2:.4g}, got {step_size}; "
            "gradient descent diverges and no count exists"
        )


@prints_shapes
@dataclass(frozen=True)
class LossProcesses:
    """Sum of squared errors, split by singular direction."""

    reducible: Float[Tensor, "r c"]
    floor: Float[Tensor, " c"]  # no weights remove this part

    @property
    def total(self) -> Float[Tensor, ""]:
        """The whole loss, summed over directions and target columns."""
        return self.reducible.sum() + self.floor.sum()


@prints_shapes
@dataclass(frozen=True)
class RidgeCurve:
    """Residual norm and weight norm of ridge regression, one entry for each ridge."""

    residual_norm: Float[Tensor, " k"]
    weight_norm: Float[Tensor, " k"]


@array_function
def loss_processes(
    projections: LabelProjections, coordinates: Float[Tensor, "r c"]
) -> LossProcesses:
    r"""The squared loss of given weights, split by singular direction.

    .. math:: \|\Phi w - y\|^2 = \sum_{i\le r} (\sigma_i\, v_i^\top w - c_i)^2
              + \|y\|^2 - \sum_{i\le r} c_i^2

    Args:
        projections: :math:`\sigma_i, c_i`.
        coordinates: :math:`v_i^\top w`, the weights in the right singular basis.

    Raises:
        ShapeError: If coordinates and coefficients differ in shape.
        DomainError: If a coordinate is not finite.

    Example:
        >>> two = LabelProjections(torch.tensor([2.0, 1.0]), torch.ones(2, 1), torch.ones(1), 3)
        >>> loss_processes(two, torch.tensor([[0.5], [0.0]])).total
        tensor(2.)

    References:
        [imani2022], Eq. (1).
    """
    require_projections(projections)
    require_same_shape(coefficients=projections.coefficients, coordinates=coordinates)
    require_finite(coordinates=coordinates)
    sigma = double(projections.singular_values).unsqueeze(1)
    errors = sigma * double(coordinates) - double(projections.coefficients)
    return LossProcesses(errors.square(), double(projections.residual))


@array_function
def loss_gradient(
    projections: LabelProjections, coordinates: Float[Tensor, "r c"]
) -> Float[Tensor, "r c"]:
    r"""Gradient of the sum of squared errors, in the right singular basis.

    .. math:: v_i^\top\nabla_w\|\Phi w - y\|^2 = 2\sigma_i^2\,(v_i^\top w - c_i/\sigma_i)

    Args:
        projections: :math:`\sigma_i, c_i`.
        coordinates: :math:`v_i^\top w`, the weights in the right singular basis.

    Raises:
        ShapeError: If coordinates and coefficients differ in shape.
        DomainError: If a coordinate is not finite.

    Example:
        >>> one = LabelProjections(torch.tensor([2.0]), torch.ones(1, 1), torch.ones(1), 3)
        >>> loss_gradient(one, torch.tensor([[1.0]]))
        tensor([[4.]])

    References:
        [imani2022], after Eq. (1), where it is announced but not printed.
    """
    require_projections(projections)
    require_same_shape(coefficients=projections.coefficients, coordinates=coordinates)
    require_finite(coordinates=coordinates)
    sigma = double(projections.singular_values).unsqueeze(1)
    return 2 * sigma * (sigma * double(coordinates) - double(projections.coefficients))


@array_function
def process_goals(projections: LabelProjections) -> Float[Tensor, "r c"]:
    r"""Where each process ends: the minimum-norm solution in the right singular basis.

    .. math:: v_i^\top w^* = c_i/\sigma_i

    Args:
        projections: :math:`\sigma_i, c_i`.

    Example:
        >>> one = LabelProjections(torch.tensor([2.0]), torch.ones(1, 1), torch.ones(1), 3)
        >>> process_goals(one)
        tensor([[0.5000]])

    References:
        [imani2022], section 2; [hansen1990] for the ratios' absolute values.
    """
    require_projections(projections)
    return double(projections.coefficients) / double(projections.singular_values).unsqueeze(1)


@array_function
def process_steps(
    singular_values: Float[Tensor, " r"], step_size: float, remaining: float = 0.05
) -> Float[Tensor, " r"]:
    r"""Steps until one process keeps a given share of its loss.

    .. math:: t_i = \frac{\log\varepsilon}{2\log|1-\eta\sigma_i^2|}

    Infinite where :math:`\eta\sigma_i^2 \ge 2` or :math:`\sigma_i = 0`, 1 at
    :math:`\eta\sigma_i^2 = 1`.

    Args:
        singular_values: :math:`\sigma_i \ge 0`.
        step_size: :math:`\eta`, for half the sum of squares.
        remaining: :math:`\varepsilon`, in (0, 1).

    Raises:
        DomainError: If an argument is out of range.

    Example:
        >>> process_steps(torch.tensor([1.0, 0.1]), 0.5).round(decimals=2)
        tensor([  2.1600, 298.8200])

    References:
        [imani2022], section 6.1.
    """
    require_positive(step_size=step_size)
    require_between(0.0, 1.0, open_low=True, open_high=True, remaining=remaining)
    require_nonnegative(singular_values=singular_values)
    rate = step_size * double(singular_values).square()
    log = log_contraction(rate)
    steps = math.log(remaining) / (2 * log)
    steps = torch.where(rate == 1, torch.ones_like(steps), steps)
    return torch.where((rate >= 2) | (rate == 0), torch.full_like(steps, torch.inf), steps)


@array_function
def ridge_curve(projections: LabelProjections, ridges: Float[Tensor, " k"]) -> RidgeCurve:
    r"""The L-curve: residual norm against weight norm of ridge solutions.

    .. math:: \|\Phi w_\lambda - y\|^2
              = \sum_i \Bigl(\frac{\lambda}{\sigma_i^2+\lambda}\Bigr)^2 c_i^2
              + \|y\|^2 - \sum_i c_i^2, \qquad
              \|w_\lambda\|^2 = \sum_i \Bigl(\frac{\sigma_i}{\sigma_i^2+\lambda}\Bigr)^2 c_i^2

    The residual norm grows with the ridge, the weight norm falls; an "L" means that much of the
    residual goes away with small weights.

    Args:
        projections: :math:`\sigma_i, c_i`.
        ridges: :math:`\lambda \ge 0`; the penalty is :math:`\lambda\|w\|^2` on the sum of squares.

    Raises:
        DomainError: If a ridge is negative or not finite.

    Example:
        >>> one = LabelProjections(torch.ones(1), torch.ones(1, 1), torch.zeros(1), 1)
        >>> curve = ridge_curve(one, torch.tensor([0.0, 1.0]))
        >>> curve.residual_norm, curve.weight_norm
        (tensor([0.0000, 0.5000]), tensor([1.0000, 0.5000]))

    References:
        [hansen1992], section 2.
    """
    require_nonnegative(ridges=ridges)
    penalty = double(ridges).unsqueeze(1)
    require_projections(projections)
    sigma = double(projections.singular_values)
    mass = double(projections.coefficients).square().sum(1)
    denominator = sigma.square() + penalty
    residual = ((penalty / denominator).square() * mass).sum(1) + double(projections.residual).sum()
    weights = ((sigma / denominator).square() * mass).sum(1)
    return RidgeCurve(residual.sqrt(), weights.sqrt())
