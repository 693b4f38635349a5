"""Weights, their norms and the fast and slow phases of gradient descent on a linear probe."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from theodolite.checks import (
    require_axes,
    require_between,
    require_finite,
    require_nonempty,
    require_positive,
    require_same_length,
    require_same_shape,
)
from theodolite.errors import ShapeError
from theodolite.linalg import (
    LabelProjections,
    array_function,
    double,
    eps_of,
    nan_unless,
    numerical_rank,
    prints_shapes,
    safe_sqrt,
    thin_svd,
)
from theodolite.theory.convergence import (
    Steps,
    first_step,
    gap_after,
    initial_mass,
    is_negative,
    log_contraction,
    power,
    rates,
    require_convergence,
    shape_of,
    steps_to_reduce,
    times,
)


@prints_shapes
@dataclass(frozen=True)
class StartingPoint:
    """Initial weights in the right singular basis of the features."""

    coordinates: Float[Tensor, "r c"]
    outside: Float[Tensor, " c"]  # squared norm outside the row space, which training never changes


@array_function
def project_start(
    features: Float[Tensor, "n d"], targets: Float[Tensor, "n c"], weights: Float[Tensor, "d c"]
) -> tuple[LabelProjections, StartingPoint]:
    r"""Targets and initial weights in the same singular basis of the features.

    The sign of singular vectors is arbitrary, so both must come from one decomposition.

    Args:
        features: :math:`\Phi`.
        targets: :math:`y`, one column per output.
        weights: :math:`w_0`.

    Returns:
        Projections of the targets, and the initial weights in the same basis.

    Raises:
        ShapeError: If rows, columns or outputs do not match.
        DomainError: If anything is not finite.

    Examples:
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


def moved(projections: LabelProjections, start: StartingPoint | None) -> LabelProjections:
    """Projections of what the initial weights leave of the targets."""
    if start is None:
        return projections
    coefficients = double(projections.coefficients)
    require_same_shape(coefficients=coefficients, start=start.coordinates)
    pull = double(projections.singular_values).unsqueeze(1) * double(start.coordinates)
    return replace(projections, coefficients=coefficients - pull)


def one_minus_power(rate: Tensor, steps: Tensor) -> Tensor:
    """``1 - (1 - rate) ** steps`` without cancellation."""
    exponent = steps * log_contraction(rate)
    odd_and_negative = is_negative(rate, steps)
    value = torch.where(odd_and_negative, 1 + exponent.exp(), -torch.expm1(exponent))
    return torch.where(steps == 0, torch.zeros_like(value), value)


def progress(rate: Tensor, steps: Tensor) -> Tensor:
    """``(1 - (1 - rate) ** steps) / rate``, which tends to ``steps`` as the rate vanishes."""
    safe = torch.where(rate > 0, rate, torch.ones_like(rate))
    return torch.where(
        rate > 0, one_minus_power(rate, steps) / safe, steps + torch.zeros_like(rate)
    )


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
        start: initial weights from :func:`project_start`; zero if absent.

    Raises:
        DomainError: If the step size is not positive, or steps are negative or not finite.

    Examples:
        >>> one = LabelProjections(torch.ones(1), torch.ones(1, 1), torch.ones(1), 2)
        >>> gradient_descent_gap(one, 0.5, 1)
        tensor(0.2500)

    References:
        [imani2022], Proposition 1, Eq. (3).
    """
    return gap_after(moved(projections, start), step_size, steps)


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
        start: initial weights from :func:`project_start`; zero if absent.

    Raises:
        DomainError: If the step size is not positive, or steps are negative or not finite.

    Examples:
        >>> one = LabelProjections(torch.ones(1), torch.ones(1, 1), torch.ones(1), 2)
        >>> gradient_descent_reduction(one, 0.5, 1)
        tensor(0.7500)

    References:
        [imani2022], proof of Proposition 2.
    """
    rate, t = rates(projections, step_size, steps)
    terms = times(one_minus_power(rate, 2 * t), initial_mass(moved(projections, start)))
    return terms.sum(-1).reshape(shape_of(steps))


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
        start: initial weights from :func:`project_start`; zero if absent.

    Raises:
        DomainError: If the step size is not positive, or steps are negative or not finite.

    Examples:
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
        start: initial weights from :func:`project_start`; zero if absent.

    Raises:
        DomainError: If the step size is not positive, or steps are negative or not finite.

    Examples:
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
        start: initial weights from :func:`project_start`; zero if absent.

    Raises:
        DomainError: If the step size is not positive, or steps are negative or not finite.

    Examples:
        >>> one = LabelProjections(torch.tensor([0.5]), torch.ones(1, 1), torch.ones(1), 2)
        >>> gradient_descent_weight_distance(one, 1.0, torch.tensor([0, 1]))
        tensor([2.0000, 1.5000])

    References:
        [imani2022], proof of Proposition 1.
    """
    rate, t = rates(projections, step_size, steps)
    sigma = double(projections.singular_values)
    terms = times(power(rate, t), initial_mass(moved(projections, start)).sqrt() / sigma).square()
    return safe_sqrt(terms.sum(-1)).reshape(shape_of(steps))


def _weights(
    projections: LabelProjections, step_size: float, steps: Steps, start: StartingPoint | None
) -> Tensor:
    rate, t = rates(projections, step_size, steps)
    pull = step_size * double(projections.singular_values).unsqueeze(1)
    weights = times(progress(rate, t).unsqueeze(-1), pull * double(projections.coefficients))
    if start is not None:
        weights = weights + times(power(rate, t).unsqueeze(-1), double(start.coordinates))
    return weights.reshape(*shape_of(steps), *projections.coefficients.shape)


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
    terms = _squared_weights(projections, step_size, steps)
    return safe_sqrt(terms.sum(-1)).reshape(shape_of(steps))


def _squared_weights(projections: LabelProjections, step_size: float, steps: Steps) -> Tensor:
    """Of every direction, after some steps from zero: (steps, directions)."""
    rate, t = rates(projections, step_size, steps)
    goal = torch.linalg.vector_norm(double(projections.coefficients), dim=1)
    pull = step_size * double(projections.singular_values) * goal
    return times(progress(rate, t), pull).square()


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

    Examples:
        >>> one = LabelProjections(torch.ones(1), torch.ones(1, 1), torch.ones(1), 2)
        >>> weight_norm_after(one, torch.tensor([0.75, 2.0]), 0.5)
        tensor([0.5000,    nan])

    References:
        [imani2022], Figure 11 (c, d).
    """
    steps = steps_to_reduce(projections, reduction, step_size)
    reached = steps.isfinite()
    safe = torch.where(reached, steps, torch.zeros_like(steps))
    return nan_unless(reached, weight_norm(projections, step_size, safe))


@prints_shapes
@dataclass(frozen=True)
class Phases:
    """The loss and the weight norm, split at a threshold on singular values."""

    fast_loss: Float[Tensor, "*t"]
    slow_loss: Float[Tensor, "*t"]
    floor: Float[Tensor, ""]
    fast_weight_norm: Float[Tensor, "*t"]
    slow_weight_norm: Float[Tensor, "*t"]
    fast_share: Float[Tensor, ""]  # fast loss at step 0: the alignment at the threshold
    slow_share: Float[Tensor, ""]
    fast_end: Float[Tensor, ""]  # first step with at most ``remaining`` of the fast share left


@array_function
def phases(
    projections: LabelProjections,
    step_size: float,
    steps: Steps,
    threshold: float,
    remaining: float = 0.05,
) -> Phases:
    r"""Gradient descent from zero, split into fast, slow and irreducible parts.

    Fast: :math:`\sigma_i \ge \tau`; slow: :math:`0 < \sigma_i < \tau`; floor: :math:`\sigma_i = 0`.

    .. math:: L_\text{fast}(t) = \sum_\text{fast} (1-\eta\sigma_i^2)^{2t} c_i^2, \qquad
              \|w_\text{fast}(t)\|^2 = \sum_\text{fast}
              \Bigl(\frac{1-(1-\eta\sigma_i^2)^t}{\sigma_i}\Bigr)^2 c_i^2 \le A(\tau)/\tau^2

    Stopping at the end of the fast phase keeps the weights below that bound, up to the little that
    the slow processes have moved. (The inequality needs :math:`\eta\sigma_1^2 \le 1`.)

    Args:
        projections: :math:`\sigma_i, c_i`, the result of ``label_projections``.
        step_size: :math:`\eta`, for half the sum of squares.
        steps: :math:`t`, one number or many.
        threshold: :math:`\tau > 0`.
        remaining: Share of the fast loss that ends the fast phase, in (0, 1).

    Raises:
        DomainError: If an argument is out of range or gradient descent diverges.

    Examples:
        >>> two = LabelProjections(torch.tensor([1.0, 0.1]), torch.ones(2, 1), torch.ones(1), 3)
        >>> split = phases(two, 0.5, torch.tensor([0, 3]), threshold=0.5)
        >>> split.fast_loss, split.slow_loss, split.floor, split.fast_end
        (tensor([1.0000, 0.0156]), tensor([1.0000, 0.9704]), tensor(1.), tensor(3.))

    References:
        [imani2022], section 6.1 and Figure 8.
    """
    require_positive(threshold=threshold)
    require_between(0.0, 1.0, open_low=True, open_high=True, remaining=remaining)
    require_convergence(projections, step_size)
    rate, t = rates(projections, step_size, steps)
    sigma, mass = double(projections.singular_values), initial_mass(projections)
    fast = sigma >= threshold
    losses = times(power(rate, 2 * t), mass)
    squares = _squared_weights(projections, step_size, steps)
    shape = shape_of(steps)
    fast_mass = torch.where(fast, mass, torch.zeros_like(mass))
    return Phases(
        fast_loss=losses[:, fast].sum(1).reshape(shape),
        slow_loss=losses[:, ~fast].sum(1).reshape(shape),
        floor=double(projections.residual).sum(),
        fast_weight_norm=squares[:, fast].sum(1).sqrt().reshape(shape),
        slow_weight_norm=squares[:, ~fast].sum(1).sqrt().reshape(shape),
        fast_share=mass[fast].sum(),
        slow_share=mass[~fast].sum(),
        fast_end=first_step(rate, fast_mass, (1 - remaining) * fast_mass.sum()),
    )
