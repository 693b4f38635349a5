"""The squared loss of a linear probe, one process per singular direction, and the L-curve."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from theodolite.checks import (
    require_between,
    require_finite,
    require_nonnegative,
    require_positive,
    require_same_shape,
)
from theodolite.linalg import LabelProjections, array_function, double, prints_shapes
from theodolite.theory.convergence import log_contraction, require_projections


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

    Examples:
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

    Examples:
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
    r"""Weights of the minimum-norm solution, one for each right singular direction.

    .. math:: v_i^\top w^* = c_i/\sigma_i

    Args:
        projections: :math:`\sigma_i, c_i`.

    Examples:
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
    r"""Steps until the loss along one singular direction has fallen to a given share.

    .. math:: t_i = \frac{\log\varepsilon}{2\log|1-\eta\sigma_i^2|}

    Infinite where :math:`\eta\sigma_i^2 \ge 2` or :math:`\sigma_i = 0`, 1 at
    :math:`\eta\sigma_i^2 = 1`.

    Args:
        singular_values: :math:`\sigma_i \ge 0`.
        step_size: :math:`\eta`, for half the sum of squares.
        remaining: :math:`\varepsilon`, in (0, 1).

    Raises:
        DomainError: If an argument is out of range.

    Examples:
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

    Examples:
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
