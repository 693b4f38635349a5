"""Misalignment with a basis in place of the data's eigenvectors: given, or drawn at random."""

import torch
from jaxtyping import Float
from torch import Tensor

from theodolite.checks import require_count
from theodolite.linalg import array_function, eps_of
from theodolite.measures.covariance._haar import haar_basis
from theodolite.measures.covariance._misalignment import quadratic_forms
from theodolite.measures.covariance._validation import (
    positive_definite_factor,
    require_dimension,
    require_orthonormal,
    require_symmetric_stack,
)

__all__ = [
    "basis_misalignment",
    "basis_misalignment_terms",
    "basis_scores",
    "random_basis_misalignment",
    "random_scores",
]


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

    Raises:
        ShapeError: If the matrices are not square or differ in size.
        DomainError: If the basis is not orthonormal, or :math:`B` not symmetric, finite, definite.

    Example:
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

    Raises:
        ShapeError: If the matrices are not square or differ in size.
        DomainError: As in :func:`basis_misalignment`.

    Example:
        >>> weights = torch.tensor([[1.0, 0.6], [0.6, 1.0]])
        >>> basis_misalignment_terms(torch.eye(2), weights).round(decimals=4).tolist()
        [0.25, 0.25]

    References:
        [maennel2020], Appendix A.6.
    """
    return _basis_terms(basis, weight_covariance).clamp(min=0)


@array_function
def random_basis_misalignment(
    weight_covariance: Float[Tensor, "*batch d d"],
    draws: int = 10,
    generator: torch.Generator | None = None,
) -> Float[Tensor, "*batch draws"]:
    """Misalignment with uniformly random bases: what a layer that ignores the data would score.

    Range: [0, inf); the mean over bases is below :func:`haar_bound`.
    Invariant, in distribution, to: rotating, scaling and inverting the weight covariance.
    Undefined: never.

    Args:
        weight_covariance: positive definite; matrices of a stack (checkpoints) all meet the same
            bases, so that their scores can be compared.
        draws: number of bases.
        generator: of the bases; torch's global one if not given.

    Returns:
        All draws, along the last axis; take their mean and their range.

    Raises:
        ShapeError: If the matrix is not square.
        DomainError: If it is not symmetric, finite and positive definite, or there are no draws.

    Example:
        >>> weights = torch.diag(torch.tensor([1.0, 2.0, 4.0]))
        >>> scores = random_basis_misalignment(weights, generator=torch.Generator().manual_seed(0))
        >>> tuple(scores.shape), bool((scores > 0).all())
        ((10,), True)

    References:
        [maennel2020], Section 2.2, Figure 2. The paper does not say how many bases; ours: 10.
    """
    require_count(1, draws=draws)
    require_symmetric_stack(weight_covariance=weight_covariance)
    L = positive_definite_factor(weight_covariance, "weight_covariance", eps_of(weight_covariance))
    return random_scores(L, draws, generator)


def random_scores(L: Tensor, draws: int, generator: torch.Generator | None) -> Tensor:
    """Misalignment of ``B = L L^T`` with uniformly random bases, draws last."""
    size = L.shape[-1]
    whitener = torch.linalg.solve_triangular(L, torch.eye(size).to(L), upper=False)
    scores = []
    for _ in range(draws):  # one basis at a time: memory does not grow with the draws
        Q = haar_basis(size, generator).to(L)
        forms, inverse_forms = ((M @ Q).square().sum(-2) for M in (L.mT, whitener))
        scores.append(((forms * inverse_forms).sqrt() - 1).sum(-1).clamp(min=0))
    return torch.stack(scores, -1)


def basis_scores(basis: Tensor, L: Tensor) -> Tensor:
    """The summands for ``B = L L^T``, one for each basis vector."""
    forms, inverse_forms = quadratic_forms(basis.to(L), L)
    return (forms * inverse_forms).sqrt() - 1


def _basis_terms(basis: Tensor, weight_covariance: Tensor) -> Tensor:
    require_orthonormal(basis=basis)
    require_symmetric_stack(weight_covariance=weight_covariance)
    require_dimension(basis.shape[-1], weight_covariance=weight_covariance)
    L = positive_definite_factor(weight_covariance, "weight_covariance", eps_of(weight_covariance))
    return basis_scores(basis, L)
