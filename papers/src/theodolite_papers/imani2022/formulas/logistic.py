r"""Facts about the logistic loss of a linear probe; it has no closed trajectory.

With margins :math:`m_i = y_i\,\phi_i^\top w` and labels :math:`\pm1` the loss is
:math:`L(w) = \sum_i \log_2(1 + e^{-m_i})`, a sum over examples that equals n at zero weights.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from theodolite.checks import (
    require_axes,
    require_count,
    require_finite,
    require_nonempty,
    require_positive,
    require_same_length,
)
from theodolite.errors import DomainError, ShapeError
from theodolite.linalg import array_function, double, prints_shapes, thin_svd


@prints_shapes
@dataclass(frozen=True)
class LogisticRun:
    """Gradient descent on the logistic loss, entry t after t steps."""

    losses: Float[Tensor, " t"]
    errors: Float[Tensor, " t"]
    weight_norms: Float[Tensor, " t"]
    weights: Float[Tensor, " d"]  # after the last step


@array_function
def logistic_loss(
    features: Float[Tensor, "n d"], labels: Float[Tensor, " n"], weights: Float[Tensor, " d"]
) -> Float[Tensor, ""]:
    r"""Logistic loss in bits, summed over examples.

    .. math:: L(w) = \frac1{\log 2}\sum_i \log(1 + e^{-y_i\phi_i^\top w})

    Range: at least the number of misclassified examples; n at zero weights.

    Args:
        features: :math:`\Phi`.
        labels: :math:`y`, each -1 or +1.
        weights: :math:`w`.

    Raises:
        ShapeError: If lengths do not match.
        DomainError: If a label is neither -1 nor +1, or anything is not finite.

    Examples:
        >>> logistic_loss(torch.eye(2), torch.tensor([1.0, -1.0]), torch.zeros(2))
        tensor(2.)

    References:
        [imani2022], section 2.
    """
    return _loss(_margins(features, labels, weights))


@array_function
def logistic_gradient(
    features: Float[Tensor, "n d"], labels: Float[Tensor, " n"], weights: Float[Tensor, " d"]
) -> Float[Tensor, " d"]:
    r"""Gradient of :func:`logistic_loss`.

    .. math:: \nabla L = -\frac1{\log 2}\sum_i \frac{y_i\phi_i}{1 + e^{m_i}}

    Near zero it is :math:`\Phi^\top(\Phi w - 2y)/(4\log 2) + O(\|w\|^3)`.

    Args:
        features: :math:`\Phi`.
        labels: :math:`y`, each -1 or +1.
        weights: :math:`w`.

    Raises:
        ShapeError: If lengths do not match.
        DomainError: If a label is neither -1 nor +1, or anything is not finite.

    Examples:
        >>> logistic_gradient(torch.eye(2), torch.tensor([1.0, -1.0]), torch.zeros(2))
        tensor([-0.7213,  0.7213])

    References:
        [imani2022], section 2.
    """
    margins = _margins(features, labels, weights)
    return _gradient(double(features), double(labels), margins)


@array_function
def logistic_error(
    features: Float[Tensor, "n d"], labels: Float[Tensor, " n"], weights: Float[Tensor, " d"]
) -> Float[Tensor, ""]:
    r"""Share of examples whose margin is not positive; a zero margin is an error.

    Args:
        features: :math:`\Phi`.
        labels: :math:`y`, each -1 or +1.
        weights: :math:`w`.

    Raises:
        ShapeError: If lengths do not match.
        DomainError: If a label is neither -1 nor +1, or anything is not finite.

    Examples:
        >>> logistic_error(torch.eye(2), torch.tensor([1.0, 1.0]), torch.tensor([1.0, 0.0]))
        tensor(0.5000)

    References:
        [imani2022], section 2.
    """
    return (_margins(features, labels, weights) <= 0).double().mean()


@array_function
def logistic_step_limit(features: Float[Tensor, "n d"]) -> Float[Tensor, ""]:
    r"""Largest step size for which the loss is known to fall at every step.

    .. math:: \eta \le 4\log 2/\sigma_1^2, \qquad\text{since}\quad
              \nabla^2 L \preceq \frac{\sigma_1^2}{4\log 2}

    For the mean over examples multiply by n. Infinite for features that are all zero.

    Args:
        features: :math:`\Phi`.

    Raises:
        DomainError: If a feature is not finite.

    Examples:
        >>> logistic_step_limit(torch.eye(2))
        tensor(2.7726)

    References:
        [imani2022], section 2, the Hessian bounded.
    """
    require_axes(2, features=features)
    require_nonempty(features=features)
    require_finite(features=features)
    return 4 * math.log(2) / thin_svd(features).values[0].square()


@array_function
def logistic_first_step(
    features: Float[Tensor, "n d"], labels: Float[Tensor, " n"], step_size: float
) -> Float[Tensor, " d"]:
    r"""Weights after one step from zero: the direction of the squared loss's first step.

    .. math:: w_1 = \frac{\eta}{2\log 2}\,\Phi^\top y

    Args:
        features: :math:`\Phi`.
        labels: :math:`y`, each -1 or +1.
        step_size: :math:`\eta`, on the sum over examples.

    Raises:
        DomainError: If a label is neither -1 nor +1.

    Examples:
        >>> logistic_first_step(torch.eye(2), torch.tensor([1.0, -1.0]), 1.0)
        tensor([ 0.7213, -0.7213])

    References:
        [imani2022], section 2.
    """
    require_positive(step_size=step_size)
    _require_problem(features, labels)
    return step_size / (2 * math.log(2)) * (double(features).mT @ double(labels))


@array_function
def squared_loss_equivalent(
    labels: Float[Tensor, " n"], step_size: float
) -> tuple[Float[Tensor, " n"], float]:
    r"""Labels and step size with which the squared loss mimics early logistic descent.

    .. math:: y \to 2y, \qquad \eta \to \eta/(4\log 2)

    The first step agrees exactly, later ones up to the cube of the weight norm.

    Args:
        labels: :math:`y`, each -1 or +1.
        step_size: :math:`\eta` of the logistic run, on the sum over examples.

    Raises:
        DomainError: If a label is neither -1 nor +1 or the step size is not positive.

    Examples:
        >>> labels, step_size = squared_loss_equivalent(torch.tensor([1.0, -1.0]), 1.0)
        >>> labels, round(step_size, 4)
        (tensor([ 2., -2.]), 0.3607)

    References:
        [imani2022], section 2, the gradient expanded at zero.
    """
    require_positive(step_size=step_size)
    _require_signs(labels)
    return 2 * double(labels), step_size / (4 * math.log(2))


@array_function
def logistic_descent(
    features: Float[Tensor, "n d"], labels: Float[Tensor, " n"], step_size: float, steps: int
) -> LogisticRun:
    """Gradient descent on the logistic loss from zero weights, simulated.

    On separable data the loss tends to 0 and the weights grow without bound: the number of steps
    is the regulariser.

    Args:
        features: One row per example.
        labels: Each -1 or +1.
        step_size: On the sum over examples.
        steps: How many; the run has one more entry, the start.

    Raises:
        DomainError: If a label is neither -1 nor +1 or the step size is not positive.

    Examples:
        >>> run = logistic_descent(torch.eye(2), torch.tensor([1.0, -1.0]), 1.0, steps=2)
        >>> run.losses
        tensor([2.0000, 1.1431, 0.7642])

    References:
        [imani2022], Figure 1.
    """
    require_positive(step_size=step_size)
    require_count(0, steps=steps)
    _require_problem(features, labels)
    phi, y = double(features), double(labels)
    weights = torch.zeros_like(phi[0])
    rows = []
    for step in range(steps + 1):
        margins = y * (phi @ weights)
        wrong = (margins <= 0).double().mean()
        rows.append(torch.stack([_loss(margins), wrong, torch.linalg.vector_norm(weights)]))
        if step < steps:
            weights = weights - step_size * _gradient(phi, y, margins)
    losses, errors, norms = torch.stack(rows).unbind(1)
    return LogisticRun(losses, errors, norms, weights)


def _loss(margins: Tensor) -> Tensor:
    """Two stable halves; softplus would switch to its asymptote too early."""
    bits = torch.log1p(torch.exp(-margins.abs())) + (-margins).clamp(min=0)
    return bits.sum() / math.log(2)


def _gradient(phi: Tensor, y: Tensor, margins: Tensor) -> Tensor:
    return -(phi.mT @ (y * torch.sigmoid(-margins))) / math.log(2)


def _margins(features: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    _require_problem(features, labels)
    if weights.shape != features.shape[1:]:
        raise ShapeError(
            f"weights: expected one number per feature, ({features.shape[1]},), "
            f"got {tuple(weights.shape)}"
        )
    require_finite(weights=weights)
    return double(labels) * (double(features) @ double(weights))


def _require_problem(features: Tensor, labels: Tensor) -> None:
    require_axes(2, features=features)
    require_nonempty(features=features)
    require_same_length(features=features, labels=labels)
    require_finite(features=features)
    _require_signs(labels)


def _require_signs(labels: Tensor) -> None:
    require_axes(1, labels=labels)
    wrong = labels[labels.abs() != 1]
    if wrong.numel():
        raise DomainError(
            f"labels: expected -1 or +1, got {wrong[0].item()}; map two classes with 2 * y - 1"
        )
