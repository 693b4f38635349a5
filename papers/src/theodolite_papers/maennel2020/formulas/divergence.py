"""Divergences and Fisher information of zero-mean Gaussians, identified with their covariances."""

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.linalg import solve_triangular

from theodolite.checks import require_count, require_finite
from theodolite.errors import DomainError, ShapeError
from theodolite.linalg import array_function, double, eps_of, safe_sqrt
from theodolite.measures.covariance.matrices import (
    positive_definite_factor,
    require_dimension,
    require_symmetric_stack,
    stacked_eigenvalues,
    symmetrized,
)

Numbers = Float[Tensor, "*batch"] | float


@array_function
def symmetric_kl(
    covariance_1: Float[Tensor, "*batch d d"], covariance_2: Float[Tensor, "*batch d d"]
) -> Float[Tensor, "*batch"]:
    r"""Sum of the two Kullback-Leibler divergences between zero-mean Gaussians.

    .. math:: D(S_1, S_2) = \tfrac12 \operatorname{tr}(S_1^{-1} S_2 + S_2^{-1} S_1) - d
              = \tfrac12 \operatorname{tr}(S_1^{-1} \Delta\, S_2^{-1} \Delta),
              \qquad \Delta = S_2 - S_1

    The second form is what is computed: a squared norm, which keeps its relative accuracy where
    the matrices are nearly equal.

    Range: [0, inf).
    Invariant to: swapping; congruence of both, hence rotation and common scaling; inverting both.
    Undefined: never.

    Args:
        covariance_1: :math:`S_1`, positive definite.
        covariance_2: :math:`S_2`, positive definite.

    Raises:
        ShapeError: If the matrices are not square or differ in shape.
        DomainError: If a matrix is not symmetric, not finite or not positive definite.

    Examples:
        >>> round(symmetric_kl(torch.eye(2), 2 * torch.eye(2)).item(), 4)
        0.5

    References:
        [maennel2020], Definition 2. Differs from paper: Appendix D.4 also calls it the average of
        the divergences and half the integral of the Fisher information; it is the sum, and all.
    """
    L1, L2 = _factors(covariance_1, covariance_2)
    half = solve_triangular(L1, symmetrized(covariance_2) - symmetrized(covariance_1), upper=False)
    return solve_triangular(L2, half.mT, upper=False).square().sum((-2, -1)) / 2


@array_function
def gaussian_kl(
    covariance_1: Float[Tensor, "*batch d d"], covariance_2: Float[Tensor, "*batch d d"]
) -> Float[Tensor, "*batch"]:
    r"""Kullback-Leibler divergence of one zero-mean Gaussian from another.

    .. math:: \mathrm{KL}(S_1 \| S_2) = \tfrac12 \left( \operatorname{tr}(S_2^{-1} S_1) - d
              + \log\det S_2 - \log\det S_1 \right)

    Range: [0, inf).
    Invariant to: congruence of both, hence rotation and common scaling.
    Undefined: never.

    Args:
        covariance_1: :math:`S_1`, positive definite.
        covariance_2: :math:`S_2`, positive definite.

    Raises:
        ShapeError: If the matrices are not square or differ in shape.
        DomainError: If a matrix is not symmetric, not finite or not positive definite.

    Examples:
        >>> round(gaussian_kl(torch.eye(2), 2 * torch.eye(2)).item(), 4)
        0.1931

    References:
        [maennel2020], Appendix D.4.
    """
    excess, logarithm = _relative_eigenvalues(covariance_1, covariance_2)
    near = excess.abs() < 1e-2
    difference = excess - logarithm
    return torch.where(near, _minus_log1p(excess, near), difference).sum(-1) / 2


@array_function
def fisher_rao_length(
    covariance_1: Float[Tensor, "*batch d d"], covariance_2: Float[Tensor, "*batch d d"]
) -> Float[Tensor, "*batch"]:
    r"""Length of the geodesic between zero-mean Gaussians in the Fisher-Rao metric.

    .. math:: \sqrt{\tfrac12 \sum_i \log^2 \lambda_i(S_1^{-1} S_2)}

    Its square is at most :func:`symmetric_kl`, and close to it for nearby matrices.

    Range: [0, inf).
    Invariant to: swapping; congruence of both, hence rotation and common scaling; inverting both.
    Undefined: never; at equality, where there is no gradient, the gradient is zero.

    Args:
        covariance_1: :math:`S_1`, positive definite.
        covariance_2: :math:`S_2`, positive definite.

    Raises:
        ShapeError: If the matrices are not square or differ in shape.
        DomainError: If a matrix is not symmetric, not finite or not positive definite.

    Examples:
        >>> round(fisher_rao_length(torch.eye(2), 2 * torch.eye(2)).item(), 4)
        0.6931

    References:
        [maennel2020], Appendix D.3, which takes the closed form for unknown; it is classical.
    """
    _, logarithm = _relative_eigenvalues(covariance_1, covariance_2)
    return safe_sqrt(logarithm.square().sum(-1) / 2)


@array_function
def gaussian_information(
    covariance: Float[Tensor, "*batch d d"], direction: Float[Tensor, "*batch d d"]
) -> Float[Tensor, "*batch"]:
    r"""Fisher information of a zero-mean Gaussian about a direction of change of its covariance.

    .. math:: I(U) = \tfrac12 \operatorname{tr}(S^{-1} U S^{-1} U)

    The expected squared score. A parameter estimated from :math:`n` samples has variance of about
    :math:`1 / (n I)`.

    Range: [0, inf).
    Invariant to: rotating both; negating the direction.
    Undefined: never.

    Args:
        covariance: :math:`S`, positive definite.
        direction: :math:`U`, symmetric.

    Raises:
        ShapeError: If the matrices are not square or differ in shape.
        DomainError: If a matrix is not symmetric or not finite, or the covariance not definite.

    Examples:
        >>> round(gaussian_information(2 * torch.eye(3), torch.eye(3)).item(), 4)
        0.375

    References:
        [maennel2020], Appendix D.3.
    """
    require_symmetric_stack(covariance=covariance, direction=direction)
    _require_same_stack(covariance=covariance, direction=direction)
    L = positive_definite_factor(covariance, "covariance", eps_of(covariance))
    return _whitened(L, symmetrized(direction)).square().sum((-2, -1)) / 2


def _factors(covariance_1: Tensor, covariance_2: Tensor) -> tuple[Tensor, Tensor]:
    require_symmetric_stack(covariance_1=covariance_1, covariance_2=covariance_2)
    _require_same_stack(covariance_1=covariance_1, covariance_2=covariance_2)
    return (
        positive_definite_factor(covariance_1, "covariance_1", eps_of(covariance_1)),
        positive_definite_factor(covariance_2, "covariance_2", eps_of(covariance_2)),
    )


def _require_same_stack(**tensors: Tensor) -> None:
    (_, first), (name, second) = tensors.items()
    require_dimension(first.shape[-1], **{name: second})
    if first.shape != second.shape:
        raise ShapeError(
            f"{name}: expected shape {tuple(first.shape)} as of the other argument, got "
            f"{tuple(second.shape)}; expand the leading axes of one of them"
        )


def _whitened(L: Tensor, symmetric: Tensor) -> Tensor:
    """``L^-1 M L^-T``."""
    half = solve_triangular(L, symmetric, upper=False)
    whitened = solve_triangular(L, half.mT, upper=False)
    return (whitened + whitened.mT) / 2


def _relative_eigenvalues(covariance_1: Tensor, covariance_2: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues of ``S2^-1 S1`` minus 1, and their logarithms.

    The large ones come from ``S2^-1 S1``, the small ones from ``S1^-1 S2``, which has their
    inverses: rounding is relative to the largest eigenvalue of each, or to 1. Differences from 1
    keep the digits of nearly equal matrices.
    """
    L1, L2 = _factors(covariance_1, covariance_2)
    difference = symmetrized(covariance_1) - symmetrized(covariance_2)
    tiny = torch.finfo(torch.float64).eps - 1  # definite, so above -1
    above = stacked_eigenvalues(_whitened(L2, difference)).clamp(min=tiny)  # lambda - 1
    below = stacked_eigenvalues(_whitened(L1, -difference)).flip(-1).clamp(min=tiny)  # 1/lambda - 1
    squares = ((1 + above) / (1 + below)).detach()
    largest, smallest = (end.clamp(min=0) for end in (above[..., :1], below[..., -1:]))
    large = squares >= ((1 + largest) / (1 + smallest)).detach()
    above = torch.where(large, above, torch.zeros_like(above))
    below = torch.where(large, torch.zeros_like(below), below)
    return above - below / (1 + below), above.log1p() - below.log1p()


def _minus_log1p(x: Tensor, near: Tensor) -> Tensor:
    """``x - log(1 + x)`` by its series, where the difference would cancel."""
    small = torch.where(near, x, torch.zeros_like(x))
    series = torch.zeros_like(x)
    for order in range(9, 1, -1):  # x^2/2 - x^3/3 + ...; the next term is below eps
        series = (-1) ** order / order + series * small
    return series * small.square()


@array_function
def rotation_information(eigenvalue_1: Numbers, eigenvalue_2: Numbers) -> Float[Tensor, "*batch"]:
    r"""Fisher information about the angle of a two-dimensional Gaussian with given eigenvalues.

    .. math:: I(\alpha) = \frac{(\lambda_1 - \lambda_2)^2}{\lambda_1 \lambda_2}

    Range: [0, inf); 0 for equal eigenvalues, where no angle can be measured.
    Invariant to: swapping; common scaling.
    Undefined: never.

    Args:
        eigenvalue_1: :math:`\lambda_1 > 0`, a number or an array.
        eigenvalue_2: :math:`\lambda_2 > 0`.

    Raises:
        ShapeError: If shapes do not broadcast.
        DomainError: If an eigenvalue is not a positive finite number.

    Examples:
        >>> round(100 * rotation_information(11.0, 1.0).item(), 2)
        909.09

    References:
        [maennel2020], Appendix D.3.
    """
    l1, l2 = _positive(eigenvalue_1=eigenvalue_1, eigenvalue_2=eigenvalue_2)
    return _information(l1, l2)


@array_function
def rotation_angle_deviation(
    eigenvalue_1: Numbers, eigenvalue_2: Numbers, count: int
) -> Float[Tensor, "*batch"]:
    r"""Standard deviation of an eigenvector's angle estimated from samples, in radians.

    .. math:: \frac{1}{\sqrt{n\, I(\alpha)}}

    First order in :math:`1/n`: estimates cannot spread by more than a uniform angle does,
    :math:`\pi / \sqrt{12} = 0.907`.

    Range: (0, inf]; infinite for equal eigenvalues.
    Invariant to: swapping; common scaling.
    Undefined: never.

    Args:
        eigenvalue_1: :math:`\lambda_1 > 0`, a number or an array.
        eigenvalue_2: :math:`\lambda_2 > 0`.
        count: :math:`n`, the number of samples.

    Raises:
        ShapeError: If shapes do not broadcast.
        DomainError: If an eigenvalue is not a positive finite number, or there is no sample.

    Examples:
        >>> round(rotation_angle_deviation(11.0, 1.0, count=100).item(), 4)
        0.0332

    References:
        [maennel2020], Appendix D.3, Figure 19.
    """
    require_count(1, count=count)
    l1, l2 = _positive(eigenvalue_1=eigenvalue_1, eigenvalue_2=eigenvalue_2)
    scale = safe_sqrt(count * _information(l1, l2))
    differ = scale > 0
    inverse = torch.where(differ, scale, torch.ones_like(scale)).reciprocal()
    return torch.where(differ, inverse, torch.full_like(scale, torch.inf))


@array_function
def rotation_length(
    angle: Numbers, eigenvalue_1: Numbers, eigenvalue_2: Numbers
) -> Float[Tensor, "*batch"]:
    r"""Length, in the Fisher-Rao metric, of the path that turns a Gaussian by an angle.

    .. math:: \delta = |\alpha| \sqrt{I(\alpha)}

    Range: [0, inf).
    Invariant to: swapping the eigenvalues; scaling them together; negating the angle.
    Undefined: never.

    Args:
        angle: :math:`\alpha` in radians, a number or an array.
        eigenvalue_1: :math:`\lambda_1 > 0`.
        eigenvalue_2: :math:`\lambda_2 > 0`.

    Raises:
        ShapeError: If shapes do not broadcast.
        DomainError: If an eigenvalue is not a positive finite number, or the angle not finite.

    Examples:
        >>> round(rotation_length(0.1, 11.0, 1.0).item(), 4)
        0.3015

    References:
        [maennel2020], Appendix D.3.
    """
    l1, l2 = _positive(eigenvalue_1=eigenvalue_1, eigenvalue_2=eigenvalue_2)
    alpha = _wide(angle)
    require_finite(angle=alpha)
    alpha, l1, l2 = _broadcast(angle=alpha, eigenvalue_1=l1, eigenvalue_2=l2)
    return alpha.abs() * safe_sqrt(_information(l1, l2))


@array_function
def rotation_chain(
    angle: Numbers, eigenvalue_1: Numbers, eigenvalue_2: Numbers, count: int
) -> Float[Tensor, "*batch"]:
    r"""How many Gaussians fit between one and its rotation, neighbours indistinguishable.

    .. math:: \lfloor \delta \sqrt n \rfloor

    Args:
        angle: :math:`\alpha` in radians, a number or an array.
        eigenvalue_1: :math:`\lambda_1 > 0`.
        eigenvalue_2: :math:`\lambda_2 > 0`.
        count: :math:`n`, the number of samples for distinguishing them.

    Raises:
        ShapeError: If shapes do not broadcast.
        DomainError: If an eigenvalue is not a positive finite number, or there is no sample.

    Examples:
        >>> rotation_chain(0.5, 11.0, 1.0, count=100).item()
        15.0

    References:
        [maennel2020], Appendix D.3.
    """
    require_count(1, count=count)
    length: Tensor = rotation_length(angle, eigenvalue_1, eigenvalue_2)
    return (double(length) * count**0.5).floor()


def _information(l1: Tensor, l2: Tensor) -> Tensor:
    return ((l1 - l2) / l1) * ((l1 - l2) / l2)


def _wide(value: Tensor | float) -> Tensor:
    return double(torch.as_tensor(value, dtype=None if isinstance(value, Tensor) else torch.double))


def _positive(**values: Tensor | float) -> list[Tensor]:
    wide = {name: _wide(value) for name, value in values.items()}
    require_finite(**wide)
    for name, value in wide.items():
        if not bool((value > 0).all()):
            raise DomainError(
                f"{name}: expected positive eigenvalues, got {value.min().item()}; "
                "leave out directions in which nothing varies"
            )
    return _broadcast(**wide)


def _broadcast(**values: Tensor) -> list[Tensor]:
    try:
        shape = np.broadcast_shapes(*(tuple(value.shape) for value in values.values()))
    except ValueError:
        listed = ", ".join(f"{name} is {tuple(value.shape)}" for name, value in values.items())
        raise ShapeError(f"expected shapes that broadcast, but {listed}") from None
    return [value.expand(shape) for value in values.values()]
