r"""Linear probes and kernel regression: the predictors, and their average test error from theory.

Eigenvalues :math:`\eta_\rho` and power :math:`|a_\rho|^2` are those of the population. Estimates
from :math:`P'` samples may replace them if there are far fewer training examples, :math:`P \ll P'`.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from theodolite.checks import (
    require_axes,
    require_between,
    require_count,
    require_finite,
    require_nonempty,
    require_nonnegative,
    require_same_length,
    require_same_shape,
    require_symmetric,
)
from theodolite.errors import DomainError, ShapeError
from theodolite.linalg import (
    array_function,
    double,
    eps_of,
    numerical_rank,
    prints_shapes,
    symmetric_eigen,
    thin_svd,
)

__all__ = [
    "SampleFreedom",
    "effective_ridge",
    "error_with_more",
    "generalization_error",
    "kernel_regression",
    "linear_probe",
    "sample_freedom",
]
Samples = int | float | Float[Tensor, "*p"]
_HALVINGS = 80  # geometric bisection over 300 decades to the last bit


@array_function
def linear_probe(
    features: Float[Tensor, "n d"], targets: Float[Tensor, "n c"], ridge: float = 0.0
) -> Float[Tensor, "d c"]:
    r"""Weights of the ridge regression of targets on frozen features.

    .. math:: W = \arg\min_W \|F W - Y\|_F^2 + \lambda\|W\|_F^2
              = V\,\mathrm{diag}\Bigl(\frac{\sigma_i}{\sigma_i^2+\lambda}\Bigr)\,U^\top Y

    At ridge 0 this is the solution of smallest norm. Singular values within rounding of zero
    (:func:`theodolite.linalg.rank_tolerance`) count as zero. Predictions equal those of
    :func:`kernel_regression` with the linear kernel.

    Args:
        features: :math:`F`.
        targets: :math:`Y`.
        ridge: :math:`\lambda \ge 0`, on the sum of squares.

    Returns:
        Weights: one row per feature, one column per output.

    Raises:
        ShapeError: If the numbers of examples differ.
        DomainError: If the ridge is negative or an entry is not finite.

    Examples:
        >>> linear_probe(torch.tensor([[1.0], [2.0]]), torch.tensor([[2.0], [4.0]]))
        tensor([[2.]])

    References:
        [canatar2022], section II.
    """
    require_axes(2, features=features, targets=targets)
    require_nonempty(features=features, targets=targets)
    require_same_length(features=features, targets=targets)
    require_finite(features=features, targets=targets)
    require_between(0.0, float("inf"), open_high=True, ridge=ridge)
    left, values, right = thin_svd(features)
    rank = numerical_rank(values, features.shape, eps_of(features))
    left, values, right = left[:, :rank], values[:rank], right[:, :rank]
    shrunk = values / (values.square() + ridge)
    return right @ (shrunk.unsqueeze(1) * (left.mT @ double(targets)))


@array_function
def kernel_regression(
    gram: Float[Tensor, "n n"] | Float[Tensor, "n c n c"],
    targets: Float[Tensor, "n c"],
    cross: Float[Tensor, "m n"] | Float[Tensor, "m c n c"],
    ridge: float = 0.0,
) -> Float[Tensor, "m c"]:
    r"""Predictions of kernel ridge regression.

    .. math:: f(x) = k(x)^\top (K + \lambda I)^{-1} Y

    A ridge above the rounding of the Gram matrix keeps every mode. At ridge 0, or one that rounding
    exceeds, this is the pseudo-inverse: eigenvalues within rounding of zero
    (:func:`theodolite.linalg.rank_tolerance`) count as zero.

    An operator-valued kernel, e.g. a tangent kernel of a network with c outputs, has the axes
    example, output, example, output. All pairs of example and output are then regressed together.

    Args:
        gram: :math:`K`, the kernel between the training examples.
        targets: :math:`Y`, the targets of the training examples.
        cross: :math:`k(x)^\top`, one row per example to predict; axes as those of ``gram``.
        ridge: :math:`\lambda \ge 0`, added to the diagonal of the Gram matrix.

    Returns:
        Predictions: one row per new example, one column per output.

    Raises:
        ShapeError: If sizes do not match.
        DomainError: If the Gram matrix is not symmetric or the ridge is negative.

    Examples:
        >>> gram, cross = torch.tensor([[1.0]]), torch.tensor([[2.0], [-1.0]])
        >>> kernel_regression(gram, torch.tensor([[3.0]]), cross)
        tensor([[ 6.],
                [-3.]])

    References:
        [canatar2022], section II.
    """
    require_between(0.0, float("inf"), open_high=True, ridge=ridge)
    K, Y, k = stacked_problem(gram, targets, cross)
    assert k is not None
    values, vectors = symmetric_eigen(K)
    values = values.clamp(min=0)
    # Independent rounding of n x n entries moves eigenvalues by its norm over the root of n.
    eps, size = eps_of(gram), len(K)
    rounding = 8 * eps * torch.linalg.matrix_norm(double(K)) / size**0.5
    noise = torch.maximum(rounding, size * torch.finfo(torch.float64).eps * values.max())
    rank = size if ridge > float(noise) else numerical_rank(values, K.shape, eps)
    weights = (vectors[:, :rank].mT @ Y) / (values[:rank] + ridge).unsqueeze(1)
    return unstacked(k @ (vectors[:, :rank] @ weights), targets)


def stacked_problem(
    gram: Tensor, targets: Tensor, cross: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Kernel, targets and rows to predict over stacked pairs of example and output, checked."""
    require_axes(2, targets=targets)
    if gram.ndim == 4:
        if gram.shape != (*targets.shape, *targets.shape):
            raise ShapeError(
                f"gram: expected shape (n, c, n, c) for targets (n, c) = {tuple(targets.shape)}, "
                f"got {tuple(gram.shape)}"
            )
        gram = gram.flatten(2).flatten(0, 1)
        if cross is not None and cross.ndim == 4:
            cross = cross.flatten(2).flatten(0, 1)
        targets = targets.reshape(-1, 1)
    require_symmetric(gram=gram)
    require_same_length(gram=gram, targets=targets)
    require_finite(targets=targets)
    if cross is None:
        return double(gram), double(targets), None
    require_axes(2, cross=cross)
    if cross.shape[1] != len(gram):
        raise ShapeError(
            f"cross: expected one column per training example, {len(gram)}, "
            f"got shape {tuple(cross.shape)}"
        )
    require_finite(cross=cross)
    return double(gram), double(targets), double(cross)


def unstacked(predictions: Tensor, targets: Tensor) -> Tensor:
    """Undo the stacking of outputs: one column per output."""
    outputs = targets.shape[1]
    if predictions.shape[-1] == outputs:
        return predictions
    return predictions.reshape(*predictions.shape[:-2], -1, outputs)


@array_function
def effective_ridge(
    eigenvalues: Float[Tensor, " r"], samples: Samples, ridge: float = 0.0
) -> Float[Tensor, "*p"]:
    r"""The self-consistent ridge :math:`\kappa` of kernel regression.

    .. math:: \kappa = \lambda + \sum_\rho \frac{\kappa\,\eta_\rho}{\kappa + P\eta_\rho},
              \qquad \lambda \le \kappa \le \lambda + \sum_\rho \eta_\rho

    It is zero if and only if :math:`\lambda = 0` and :math:`P` is at least the number of nonzero
    modes. Modes with :math:`P\eta_\rho \gg \kappa` are learned, the others are not.

    Args:
        eigenvalues: :math:`\eta_\rho \ge 0`; set those that are rounding noise to zero first.
        samples: :math:`P \ge 0`, one number or many.
        ridge: :math:`\lambda \ge 0`, added to the Gram matrix.

    Returns:
        One number for every training-set size.

    Raises:
        DomainError: If an argument is negative or not finite.

    Examples:
        >>> effective_ridge(torch.ones(10), 5.0)
        tensor(5.)

    References:
        [canatar2021], Eq. (4).
    """
    eta, count = checked_spectrum(eigenvalues, samples, ridge)
    return solve_effective_ridge(eta, count, ridge)


@array_function
def generalization_error(
    eigenvalues: Float[Tensor, " r"],
    power: Float[Tensor, " r"],
    samples: Samples,
    ridge: float = 0.0,
    noise: float = 0.0,
) -> Float[Tensor, "*p"]:
    r"""Average test error of kernel ridge regression; over many sample sizes, its learning curve.

    .. math:: E_g = \frac{1}{1-\gamma} \sum_\rho
              \frac{\kappa^2 |a_\rho|^2 + s^2 P\eta_\rho^2}{(\kappa + P\eta_\rho)^2}, \qquad
              \gamma = \sum_\rho \frac{P\eta_\rho^2}{(\kappa + P\eta_\rho)^2}

    This is the squared error on noiseless targets, summed over outputs and averaged over training
    sets. Zero modes keep their power. The error is infinite at the interpolation peak (ridge 0 and
    :math:`P` equal to the rank).

    Args:
        eigenvalues: :math:`\eta_\rho \ge 0` of the kernel's integral operator.
        power: :math:`|a_\rho|^2 \ge 0`, the target's power on each mode.
        samples: :math:`P \ge 0`, one number or many.
        ridge: :math:`\lambda \ge 0`, added to the Gram matrix.
        noise: :math:`s^2 \ge 0`, variance of the label noise, summed over outputs.

    Returns:
        One error for every training-set size.

    Raises:
        ShapeError: If eigenvalues and power differ in length.
        DomainError: If an argument is negative or not finite.

    Examples:
        >>> eigenvalues, power = torch.tensor([1.0, 0.1, 0.01]), torch.tensor([0.9, 0.1, 0.0])
        >>> generalization_error(eigenvalues, power, torch.tensor([0.0, 1.0, 2.0]))
        tensor([1.0000, 0.3013, 0.0298])

    References:
        [canatar2021], Eq. (4).
    """
    eta, count = checked_spectrum(eigenvalues, samples, ridge)
    require_same_shape(eigenvalues=eigenvalues, power=power)
    require_nonnegative(power=power)
    require_between(0.0, float("inf"), open_high=True, noise=noise)
    kappa = solve_effective_ridge(eta, count, ridge)
    unlearned = unlearned_shares(eta, count, kappa)
    freedom = remaining_freedom(eta, count, kappa, ridge)
    signal = (unlearned.square() * double(power)).sum(-1) + noise * (1 - freedom)
    peak = torch.full_like(signal, torch.inf)
    return torch.where(freedom > 0, signal / freedom.clamp(min=1e-300), peak)


@prints_shapes
@dataclass(frozen=True)
class SampleFreedom:
    r"""Effective ridge and degrees of freedom of a regression, from the sample it is fitted to.

    Args:
        effective_ridge: :math:`\kappa` for each ridge, in the units of :math:`\lambda`: that of
            :func:`effective_ridge` divided by the number of examples.
        first: :math:`\mathrm{df}_1`, the sum of :math:`\eta / (\eta + \kappa)` over the population.
        second: :math:`\mathrm{df}_2`, the sum of the squares of these shares.
    """

    effective_ridge: Float[Tensor, " k"]
    first: Float[Tensor, " k"]
    second: Float[Tensor, " k"]


@array_function
def sample_freedom(
    eigenvalues: Float[Tensor, " r"], ridges: Float[Tensor, " k"], samples: int
) -> SampleFreedom:
    r"""Effective ridge and degrees of freedom in the population, from the spectrum of a sample.

    .. math:: \kappa = \frac{\lambda}{s(\lambda)}, \qquad
              s = 1 - \frac1n\sum_i \frac{\mu_i}{\mu_i + \lambda}, \qquad
              \mathrm{df}_1 = n(1 - s), \qquad
              \mathrm{df}_2 = n\Bigl(1 - \frac{d\lambda}{d\kappa}\Bigr)

    The spectrum of few examples does not estimate the spectrum of the population. It does estimate
    these three numbers, which appear in the equation of :func:`effective_ridge`.

    Args:
        eigenvalues: :math:`n\mu_i` of the Gram matrix of the sample; zeros may be left out.
        ridges: :math:`n\lambda > 0`, added to that Gram matrix.
        samples: :math:`n`.

    Returns:
        Effective ridge and degrees of freedom, one of each for every ridge.

    Raises:
        DomainError: If an argument is negative or not finite, or a ridge zero.

    Examples:
        >>> found = sample_freedom(torch.tensor([2.0, 2.0]), torch.tensor([2.0]), samples=4)
        >>> found.first.item(), round(found.second.item(), 4)
        (1.0, 0.4)

    References:
        [wei2022more], Section 3; [canatar2021], Eq. (4) between population and sample.
    """
    require_axes(1, eigenvalues=eigenvalues, ridges=ridges)
    require_nonnegative(eigenvalues=eigenvalues, ridges=ridges)
    require_count(1, samples=samples)
    if not bool((ridges > 0).all()):
        raise DomainError("ridges: expected numbers above 0, got 0; pass a small one instead")
    mu = double(eigenvalues) / samples
    lam = double(ridges).unsqueeze(1) / samples
    first = (mu / (mu + lam)).sum(1)
    left = 1 - first / samples
    slope = (mu / (mu + lam).square()).sum(1) / samples  # of what is left
    change = (left - lam.squeeze(1) * slope) / left.square()  # of kappa with lambda
    return SampleFreedom(lam.squeeze(1) / left, first, samples * (1 - 1 / change))


@array_function
def error_with_more(
    error: Float[Tensor, " k"], freedom: Float[Tensor, " k"], samples: int, others: Samples
) -> Float[Tensor, "*p"]:
    r"""Average test error with another number of examples.

    .. math:: E(m) = \min_\kappa E(n, \kappa)\,
              \frac{1 - \mathrm{df}_2(\kappa)/n}{1 - \mathrm{df}_2(\kappa)/m}

    The part that a regression leaves unexplained depends on the effective ridge :math:`\kappa`
    alone. The number of examples determines how much error the fit to this sample adds. So the
    errors of a sample over a range of ridges, noise included, predict those of a larger sample.

    Args:
        error: :math:`E(n, \kappa)`, the leave-one-out error of each ridge.
        freedom: :math:`\mathrm{df}_2(\kappa)`, from :func:`sample_freedom`.
        samples: :math:`n`, the number of examples.
        others: :math:`m`, one number or many. Ridges with :math:`\mathrm{df}_2 \ge m` are skipped.

    Returns:
        One error for every training-set size.

    Raises:
        ShapeError: If there is not one error for each degree of freedom.
        DomainError: If an argument is negative or not finite.

    Examples:
        >>> error, freedom = torch.tensor([0.5, 0.6]), torch.tensor([20.0, 50.0])
        >>> error_with_more(error, freedom, 100, torch.tensor([100.0, 1000.0]))
        tensor([0.5000, 0.3158])

    References:
        [canatar2021], Eq. (4): the same :math:`\kappa` for two numbers of examples.
    """
    require_same_shape(error=error, freedom=freedom)
    require_nonempty(error=error)
    require_nonnegative(error=error, freedom=freedom)
    require_count(1, samples=samples)
    wanted = torch.as_tensor(others, dtype=torch.float64, device=error.device)
    require_nonnegative(others=wanted)
    unexplained = double(error) * (1 - double(freedom) / samples).clamp_min(0.0)
    kept = 1 - double(freedom) / wanted.unsqueeze(-1).clamp_min(1e-300)
    each = unexplained / torch.where(kept > 0, kept, torch.ones_like(kept))
    return torch.where(kept > 0, each, torch.full_like(each, torch.inf)).amin(-1)


def checked_spectrum(eigenvalues: Tensor, samples: Samples, ridge: float) -> tuple[Tensor, Tensor]:
    """Eigenvalues and sample sizes in float64."""
    require_axes(1, eigenvalues=eigenvalues)
    require_nonempty(eigenvalues=eigenvalues)
    require_nonnegative(eigenvalues=eigenvalues)
    require_between(0.0, float("inf"), open_high=True, ridge=ridge)
    eta = double(eigenvalues)
    count = torch.as_tensor(samples, dtype=torch.float64, device=eta.device)
    require_nonnegative(samples=count)
    return eta, count


def solve_effective_ridge(eta: Tensor, count: Tensor, ridge: float) -> Tensor:
    """The root for eigenvalues (..., r) and sample sizes that broadcast against ``...``."""
    scale = eta.amax(-1) + ridge  # kappa scales with the kernel and its ridge
    unit = torch.where(scale > 0, scale, torch.ones_like(scale))
    values, penalty, P = eta / unit.unsqueeze(-1), ridge / unit, count.unsqueeze(-1)
    high = penalty + values.sum(-1) + torch.zeros_like(count)
    low = torch.maximum(penalty, high * 1e-300)
    for _ in range(_HALVINGS):
        middle = low.sqrt() * high.sqrt()  # geometric: kappa may be hundreds of decades smaller
        kappa = middle.unsqueeze(-1)
        excess = penalty / middle + (values / (kappa + P * values)).sum(-1) > 1
        low, high = torch.where(excess, middle, low), torch.where(excess, high, middle)
    none_left = (penalty == 0) & (count >= (values > 0).sum(-1))
    root = torch.where(count == 0, penalty + values.sum(-1), high)
    return torch.where(none_left, torch.zeros_like(high), root) * unit


def unlearned_shares(eta: Tensor, count: Tensor, kappa: Tensor) -> Tensor:
    """``kappa / (kappa + P eta)`` on every mode: 1 on zero modes, whatever kappa is."""
    product = count.unsqueeze(-1) * eta
    total = kappa.unsqueeze(-1) + product
    safe = torch.where(total > 0, total, torch.ones_like(total))
    return torch.where(product > 0, kappa.unsqueeze(-1) / safe, torch.ones_like(total))


def remaining_freedom(eta: Tensor, count: Tensor, kappa: Tensor, ridge: float) -> Tensor:
    """``1 - gamma``, from the equation of kappa (``lambda/kappa + ...``), without cancellation."""
    unlearned = unlearned_shares(eta, count, kappa)
    per_sample = ((1 - unlearned) * unlearned).sum(-1) / count.clamp(min=1e-300)
    safe = torch.where(kappa > 0, kappa, torch.ones_like(kappa))
    over = 1 - (eta > 0).sum(-1) / count.clamp(min=1e-300)  # kappa = 0: every mode is learned
    value = torch.where(kappa > 0, ridge / safe + per_sample, over)
    return torch.where(count > 0, value, torch.ones_like(value))
