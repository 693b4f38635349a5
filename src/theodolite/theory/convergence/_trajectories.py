r"""Gradient descent on a linear read-out in closed form, at any step and from any start.

Along each singular direction the error shrinks by :math:`q_i = 1 - \eta\sigma_i^2` a step and the
directions do not interact. The formulas hold for every step size, rank and shape; ``diverges`` says
whether the run they describe converges.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from theodolite.linalg import LabelProjections, array_function, double, safe_sqrt
from theodolite.theory.convergence._powers import one_minus_power, power, progress, times
from theodolite.theory.convergence._setting import StartingPoint, Steps, initial_mass, rates

__all__ = [
    "gradient_descent_gap",
    "gradient_descent_loss",
    "gradient_descent_reduction",
    "gradient_descent_weight_distance",
    "gradient_descent_weight_norm",
    "gradient_descent_weights",
    "weight_norm",
]


@array_function
def gradient_descent_loss(
    projections: LabelProjections,
    step_size: float,
    steps: Steps,
    *,
    start: StartingPoint | None = None,
) -> Float[Tensor, "*t"]:
    r"""Sum of squared errors after some steps of gradient descent.

    .. math:: \|\Phi w_t - y\|^2 = \sum_i (1-\eta\sigma_i^2)^{2t}\,(c_i - \sigma_i w_{0,i})^2
              + \|y\|^2 - \sum_i c_i^2

    Summed over target columns; divide by ``projections.count`` for the mean squared error.

    Args:
        projections: :math:`\sigma_i, c_i`, the result of ``label_projections``.
        step_size: :math:`\eta`, for half the sum of squares (``convert_step_size``).
        steps: :math:`t`, one number or many; whole numbers where :math:`\eta\sigma_1^2 > 1`.
        start: Initial weights from ``project_start``; zero if absent.

    Raises:
        DomainError: If the step size is not positive, or steps are negative or not finite.

    Example:
        >>> projections = LabelProjections(
        ...     torch.tensor([1.0, 0.5]), torch.ones(2, 1), torch.zeros(1), count=2
        ... )
        >>> gradient_descent_loss(projections, 0.5, torch.tensor([0, 1, 10]))
        tensor([2.0000, 1.0156, 0.0692])

    References:
        [imani2022], Proposition 1.
        Differs from paper: any rank and shape, any step size, any start.
    """
    gap = _gap(projections, step_size, steps, start)
    return gap + double(projections.residual).sum()


@array_function
def gradient_descent_gap(
    projections: LabelProjections,
    step_size: float,
    steps: Steps,
    *,
    start: StartingPoint | None = None,
) -> Float[Tensor, "*t"]:
    r"""Squared distance of the predictions from those of the least-squares solution.

    .. math:: \|\Phi w_t - \Phi w^*\|^2 = \sum_i (1-\eta\sigma_i^2)^{2t}(c_i - \sigma_i w_{0,i})^2

    Args:
        projections: :math:`\sigma_i, c_i`, the result of ``label_projections``.
        step_size: :math:`\eta`, for half the sum of squares.
        steps: :math:`t`, one number or many; whole numbers where :math:`\eta\sigma_1^2 > 1`.
        start: Initial weights from ``project_start``; zero if absent.

    Raises:
        DomainError: If the step size is not positive, or steps are negative or not finite.

    Example:
        >>> one = LabelProjections(torch.ones(1), torch.ones(1, 1), torch.ones(1), 2)
        >>> gradient_descent_gap(one, 0.5, 1)
        tensor(0.2500)

    References:
        [imani2022], Proposition 1, Eq. (3).
    """
    return _gap(projections, step_size, steps, start)


@array_function
def gradient_descent_reduction(
    projections: LabelProjections,
    step_size: float,
    steps: Steps,
    *,
    start: StartingPoint | None = None,
) -> Float[Tensor, "*t"]:
    r"""How much the sum of squared errors has dropped, without cancellation.

    .. math:: L(w_0) - L(w_t) = \sum_i \bigl(1 - (1-\eta\sigma_i^2)^{2t}\bigr)
              (c_i - \sigma_i w_{0,i})^2

    Args:
        projections: :math:`\sigma_i, c_i`, the result of ``label_projections``.
        step_size: :math:`\eta`, for half the sum of squares.
        steps: :math:`t`, one number or many; whole numbers where :math:`\eta\sigma_1^2 > 1`.
        start: Initial weights from ``project_start``; zero if absent.

    Raises:
        DomainError: If the step size is not positive, or steps are negative or not finite.

    Example:
        >>> one = LabelProjections(torch.ones(1), torch.ones(1, 1), torch.ones(1), 2)
        >>> gradient_descent_reduction(one, 0.5, 1)
        tensor(0.7500)

    References:
        [imani2022], proof of Proposition 2.
    """
    rate, t = rates(projections, step_size, steps)
    terms = times(one_minus_power(rate, 2 * t), initial_mass(projections, start))
    return terms.sum(-1).reshape(_shape(steps))


@array_function
def gradient_descent_weights(
    projections: LabelProjections,
    step_size: float,
    steps: Steps,
    *,
    start: StartingPoint | None = None,
) -> Float[Tensor, "*t r c"]:
    r"""Weights after some steps, in the right singular basis of the features.

    .. math:: v_i^\top w_t = (1-\eta\sigma_i^2)^t\, v_i^\top w_0
              + \bigl(1 - (1-\eta\sigma_i^2)^t\bigr)\, c_i/\sigma_i

    Evaluated as :math:`\eta\sigma_i c_i\,(1-q_i^t)/(1-q_i)`, finite however small
    :math:`\sigma_i` is.

    Args:
        projections: :math:`\sigma_i, c_i`, the result of ``label_projections``.
        step_size: :math:`\eta`, for half the sum of squares.
        steps: :math:`t`, one number or many; whole numbers where :math:`\eta\sigma_1^2 > 1`.
        start: Initial weights from ``project_start``; zero if absent.

    Raises:
        DomainError: If the step size is not positive, or steps are negative or not finite.

    Example:
        >>> one = LabelProjections(torch.ones(1), torch.ones(1, 1), torch.ones(1), 2)
        >>> gradient_descent_weights(one, 0.5, torch.tensor([1, 2])).flatten()
        tensor([0.5000, 0.7500])

    References:
        [imani2022], proof of Proposition 1.
    """
    return _weights(projections, step_size, steps, start)


@array_function
def gradient_descent_weight_norm(
    projections: LabelProjections,
    step_size: float,
    steps: Steps,
    *,
    start: StartingPoint | None = None,
) -> Float[Tensor, "*t"]:
    r"""Norm of the weights after some steps (Frobenius norm over several outputs).

    .. math:: \|w_t\|^2 = \sum_i \Bigl(\frac{1 - (1-\eta\sigma_i^2)^t}{\sigma_i}\Bigr)^2 c_i^2
              \quad\text{from}\quad w_0 = 0

    Args:
        projections: :math:`\sigma_i, c_i`, the result of ``label_projections``.
        step_size: :math:`\eta`, for half the sum of squares.
        steps: :math:`t`, one number or many; whole numbers where :math:`\eta\sigma_1^2 > 1`.
        start: Initial weights from ``project_start``; zero if absent.

    Raises:
        DomainError: If the step size is not positive, or steps are negative or not finite.

    Example:
        >>> two = LabelProjections(
        ...     torch.tensor([1.0, 0.5]), torch.ones(2, 1), torch.zeros(1), count=2
        ... )
        >>> gradient_descent_weight_norm(two, 1.0, torch.tensor([1, 1000]))
        tensor([1.1180, 2.2361])

    References:
        [imani2022], Proposition 1 and Figure 11.
    """
    return weight_norm(projections, step_size, steps, start)


@array_function
def gradient_descent_weight_distance(
    projections: LabelProjections,
    step_size: float,
    steps: Steps,
    *,
    start: StartingPoint | None = None,
) -> Float[Tensor, "*t"]:
    r"""Distance of the weights from where they end, the least-squares solution nearest the start.

    .. math:: \|w_t - w_\infty\|^2 = \sum_i (1-\eta\sigma_i^2)^{2t}
              \Bigl(\frac{c_i}{\sigma_i} - w_{0,i}\Bigr)^2

    From zero the end is the minimum-norm solution :math:`w^*`.

    Args:
        projections: :math:`\sigma_i, c_i`, the result of ``label_projections``.
        step_size: :math:`\eta`, for half the sum of squares.
        steps: :math:`t`, one number or many; whole numbers where :math:`\eta\sigma_1^2 > 1`.
        start: Initial weights from ``project_start``; zero if absent.

    Raises:
        DomainError: If the step size is not positive, or steps are negative or not finite.

    Example:
        >>> one = LabelProjections(torch.tensor([0.5]), torch.ones(1, 1), torch.ones(1), 2)
        >>> gradient_descent_weight_distance(one, 1.0, torch.tensor([0, 1]))
        tensor([2.0000, 1.5000])

    References:
        [imani2022], proof of Proposition 1.
    """
    rate, t = rates(projections, step_size, steps)
    sigma = double(projections.singular_values)
    terms = times(power(rate, t), initial_mass(projections, start).sqrt() / sigma).square()
    return safe_sqrt(terms.sum(-1)).reshape(_shape(steps))


def _gap(
    projections: LabelProjections, step_size: float, steps: Steps, start: StartingPoint | None
) -> Tensor:
    rate, t = rates(projections, step_size, steps)
    terms = times(power(rate, 2 * t), initial_mass(projections, start))
    return terms.sum(-1).reshape(_shape(steps))


def _weights(
    projections: LabelProjections, step_size: float, steps: Steps, start: StartingPoint | None
) -> Tensor:
    rate, t = rates(projections, step_size, steps)
    pull = step_size * double(projections.singular_values).unsqueeze(1)
    weights = times(progress(rate, t).unsqueeze(-1), pull * double(projections.coefficients))
    if start is not None:
        weights = weights + times(power(rate, t).unsqueeze(-1), double(start.coordinates))
    return weights.reshape(*_shape(steps), *projections.coefficients.shape)


def weight_norm(
    projections: LabelProjections,
    step_size: float,
    steps: Steps,
    start: StartingPoint | None = None,
) -> Tensor:
    """``gradient_descent_weight_norm`` in float64."""
    if start is not None:
        weights = _weights(projections, step_size, steps, start)
        return safe_sqrt(weights.square().sum((-2, -1)) + double(start.outside).sum())
    rate, t = rates(projections, step_size, steps)
    pull = step_size * double(projections.singular_values) * _root_mass(projections)
    terms = times(progress(rate, t), pull).square()
    return safe_sqrt(terms.sum(-1)).reshape(_shape(steps))


def _shape(steps: Steps) -> tuple[int, ...]:
    return tuple(steps.shape) if isinstance(steps, Tensor) else ()


def _root_mass(projections: LabelProjections) -> Tensor:
    return torch.linalg.vector_norm(double(projections.coefficients), dim=1)
