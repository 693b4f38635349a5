r"""The setting of every formula here: a linear read-out, its start and its step size.

The update is :math:`w_{t+1} = w_t - \eta\,\Phi^\top(\Phi w_t - y)`: the step size
:math:`\eta` belongs to the loss :math:`\tfrac12\|\Phi w - y\|^2`; see :func:`convert_step_size`
for the others.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from theodolite.checks import (
    require_axes,
    require_choice,
    require_count,
    require_finite,
    require_nonempty,
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
    thin_svd,
)

__all__ = [
    "StartingPoint",
    "Steps",
    "convert_step_size",
    "diverges",
    "initial_mass",
    "project_start",
    "rates",
    "require_convergence",
    "require_projections",
]

Steps = int | float | Int[Tensor, "*t"] | Float[Tensor, "*t"]

# Gradient of each loss in units of the gradient of half the sum of squares; "mean" divides by n.
_LOSS_FACTORS = {"half_sum": 1.0, "sum": 2.0, "half_mean": 1.0, "mean": 2.0}


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
