"""Misalignment with any orthonormal basis in the place of the data's eigenvectors."""

from jaxtyping import Float
from torch import Tensor

from theodolite.linalg import array_function, eps_of
from theodolite.measures.covariance.matrices import (
    basis_scores,
    positive_definite_factor,
    require_dimension,
    require_orthonormal,
    require_symmetric_stack,
)


@array_function
def basis_misalignment(
    basis: Float[Tensor, "*bases d d"], weight_covariance: Float[Tensor, "*batch d d"]
) -> Float[Tensor, "..."]:
    r"""Misalignment of a weight covariance with an orthonormal basis in place of eigenvectors.

    .. math:: M = \sum_i \left( \sqrt{(v_i^\top B v_i) (v_i^\top B^{-1} v_i)} - 1 \right)

    Range: [0, inf); at most the bound of :func:`kantorovich_bound`.
    Invariant to: scaling B; inverting B; signs and order of the basis vectors.
    Undefined: never.

    Args:
        basis: :math:`v_i` as orthonormal columns; a stack of bases broadcasts with the weights.
        weight_covariance: :math:`B`, positive definite, or a stack.

    Returns:
        One number for every pair of a basis and a weight covariance.

    Raises:
        ShapeError: If the matrices are not square or differ in size.
        DomainError: If the basis is not orthonormal, or :math:`B` not symmetric, finite, definite.

    Examples:
        >>> weights = torch.diag(torch.tensor([1.0, 2.0]))
        >>> basis = torch.tensor([[1.0, 1.0], [1.0, -1.0]]) / 2**0.5
        >>> round(basis_misalignment(basis, weights).item(), 4)
        0.1213

    References:
        [maennel2020], Appendix A.6. Differs from paper: the -1 is inside the sum.
    """
    return _basis_terms(basis, weight_covariance).sum(-1).clamp(min=0)


@array_function
def basis_misalignment_terms(
    basis: Float[Tensor, "*bases d d"], weight_covariance: Float[Tensor, "*batch d d"]
) -> Float[Tensor, "... d"]:
    r"""The summands of :func:`basis_misalignment`, one for each basis vector.

    .. math:: m_i = \sqrt{(v_i^\top B v_i) (v_i^\top B^{-1} v_i)} - 1

    Range: [0, inf).
    Invariant to: scaling B; inverting B; signs of the basis vectors.
    Undefined: never.

    Args:
        basis: orthonormal columns, or a stack of bases.
        weight_covariance: positive definite, or a stack.

    Returns:
        One number for every basis vector, along the last axis.

    Raises:
        ShapeError: If the matrices are not square or differ in size.
        DomainError: As in :func:`basis_misalignment`.

    Examples:
        >>> weights = torch.tensor([[1.0, 0.6], [0.6, 1.0]])
        >>> basis_misalignment_terms(torch.eye(2), weights).round(decimals=4).tolist()
        [0.25, 0.25]

    References:
        [maennel2020], Appendix A.6.
    """
    return _basis_terms(basis, weight_covariance).clamp(min=0)


def _basis_terms(basis: Tensor, weight_covariance: Tensor) -> Tensor:
    require_orthonormal(basis=basis)
    require_symmetric_stack(weight_covariance=weight_covariance)
    require_dimension(basis.shape[-1], weight_covariance=weight_covariance)
    L = positive_definite_factor(weight_covariance, "weight_covariance", eps_of(weight_covariance))
    return basis_scores(basis, L)
