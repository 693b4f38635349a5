"""How many directions a matrix really has: spectrum, stable rank, entropy rank. None centres."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.linalg import matrix_norm

from theodolite.checks import (
    require_axes,
    require_count,
    require_finite,
    require_nonempty,
    require_symmetric,
)
from theodolite.linalg import (
    array_function,
    double,
    eps_of,
    ratio_or_nan,
    singular_values,
    symmetric_eigenvalues,
    top_eigen,
    unit_peak,
)
from theodolite.measures.tangent._leading import spectral_norm

__all__ = ["effective_rank", "normalized_spectrum", "stable_rank"]

_DENSE_BELOW = 512


@array_function
def stable_rank(matrix: Float[Tensor, "n d"]) -> Float[Tensor, ""]:
    r"""Squared Frobenius norm over squared spectral norm: a rank that noise does not change.

    .. math:: R(W) = \frac{\|W\|_F^2}{\|W\|_2^2} = \sum_i \sigma_i^2 / \sigma_1^2

    Range: [1, rank].
    Invariant to: scaling, orthogonal maps on either side.
    Undefined (``nan``): the matrix is zero.

    Args:
        matrix: :math:`W`, any matrix. For a tangent kernel pass :func:`stacked_kernel`.

    Raises:
        ShapeError: If it is not a matrix, or empty.
        DomainError: If it is not finite.

    Example:
        >>> round(stable_rank(torch.diag(torch.tensor([2.0, 1.0, 1.0]))).item(), 4)
        1.5

    References:
        [lou2022], Appendix G.
    """
    _require_matrix(matrix)
    scaled = unit_peak(double(matrix))
    return ratio_or_nan(matrix_norm(scaled), spectral_norm(scaled)).square()


@array_function
def effective_rank(matrix: Float[Tensor, "n d"]) -> Float[Tensor, ""]:
    r"""Exponential of the entropy of the normalised singular values.

    .. math:: \exp\Bigl(-\sum_i p_i \log p_i\Bigr), \qquad p_i = \sigma_i / \textstyle\sum_j\sigma_j

    Range: [1, rank].
    Invariant to: scaling, orthogonal maps on either side.
    Undefined (``nan``): the matrix is zero.

    Args:
        matrix: any matrix. For a tangent kernel pass :func:`stacked_kernel`.

    Raises:
        ShapeError: If it is not a matrix, or empty.
        DomainError: If it is not finite.

    Example:
        >>> round(effective_rank(torch.eye(3)).item(), 4)
        3.0

    References:
        [roy2007], Definition 1.
    """
    _require_matrix(matrix)
    sigma = singular_values(unit_peak(double(matrix)))
    shares = ratio_or_nan(sigma, sigma.sum())
    return torch.special.entr(shares).sum().exp()


@array_function
def normalized_spectrum(matrix: Float[Tensor, "m m"], count: int = 200) -> Float[Tensor, " k"]:
    r"""Leading eigenvalues of a positive semi-definite matrix, over the largest.

    .. math:: \lambda_i / \lambda_1, \qquad i = 1 \dots \min(\mathrm{count}, m)

    What does not exceed the rounding noise :math:`m\,\varepsilon` is zero.

    Range: [0, 1]; starts at 1, non-increasing.
    Invariant to: positive scaling, orthogonal maps of both sides together.
    Undefined (``nan``): no eigenvalue is positive.

    Args:
        matrix: symmetric, e.g. a :func:`stacked_kernel`.
        count: how many, at most.

    Raises:
        ShapeError: If the matrix is not square.
        DomainError: If it is not symmetric or finite, or ``count`` is below 1.

    Example:
        >>> normalized_spectrum(torch.diag(torch.tensor([1.0, 4.0, 2.0])), count=2).tolist()
        [1.0, 0.5]

    References:
        [lou2022], Figure 19.
    """
    require_symmetric(matrix=matrix)
    require_count(1, count=count)
    values = _leading_eigenvalues(unit_peak(double(matrix)), count)
    ratios = ratio_or_nan(values, values[0].clamp(min=0).expand_as(values))
    return torch.where(ratios <= len(matrix) * eps_of(matrix), torch.zeros_like(ratios), ratios)


def _leading_eigenvalues(matrix: Tensor, count: int) -> Tensor:
    if len(matrix) <= _DENSE_BELOW or 4 * count >= len(matrix):
        return symmetric_eigenvalues(matrix)[:count]
    vectors = top_eigen(matrix.detach(), count).vectors
    return ((matrix @ vectors) * vectors).sum(0)  # vectors held fixed: differentiable


def _require_matrix(matrix: Tensor) -> None:
    require_axes(2, matrix=matrix)
    require_nonempty(matrix=matrix)
    require_finite(matrix=matrix)
