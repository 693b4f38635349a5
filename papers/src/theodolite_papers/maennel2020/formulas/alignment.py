"""Definition 1: a matrix is aligned with another when it is constant on its eigenspaces."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from theodolite.checks import require_between, require_symmetric
from theodolite.linalg import (
    array_function,
    eps_of,
    nan_unless,
    prints_shapes,
    ratio_or_nan,
    safe_sqrt,
)
from theodolite.measures.covariance.matrices import (
    Eigenspaces,
    eigenspaces,
    require_dimension,
    require_symmetric_stack,
    symmetrized,
)


@array_function
def alignment_defect(
    matrix: Float[Tensor, "*batch d d"],
    reference: Float[Tensor, "d d"],
    *,
    rtol: float | None = None,
) -> Float[Tensor, "*batch"]:
    r"""How far a symmetric matrix is from being constant on each eigenspace of another.

    .. math:: \max_i \frac{\|A V_i - \mu_i V_i\|_F}{\|A\|_F},
              \qquad \mu_i = \frac{\operatorname{tr}(V_i^\top A V_i)}{\dim V_i}

    with :math:`V_i` orthonormal bases of the eigenspaces of :math:`B`. Zero exactly when every
    eigenspace of :math:`B` lies in an eigenspace of :math:`A`, that is when :math:`A = g(B)`.

    Range: [0, 1].
    Invariant to: rotating both; scaling either; negating either.
    Undefined: never; the zero matrix is aligned with everything and has defect 0.

    Args:
        matrix: :math:`A`, the one judged; a stack of them gives one number each.
        reference: :math:`B`, the one that provides the eigenspaces.
        rtol: eigenvalues of the reference closer than this times the largest share an eigenspace.

    Raises:
        ShapeError: If the matrices are not square or differ in size.
        DomainError: If a matrix is not symmetric or not finite.

    Examples:
        >>> round(alignment_defect(torch.diag(torch.tensor([1.0, 2.0])), torch.eye(2)).item(), 4)
        0.3162

    References:
        [maennel2020], Definition 1; the defect is ours.
    """
    A, spaces = _checked(matrix, reference, rtol)
    return _residuals(A, spaces).amax(-1)


@array_function
def is_aligned(
    matrix: Float[Tensor, "*batch d d"],
    reference: Float[Tensor, "d d"],
    *,
    tolerance: float | None = None,
    rtol: float | None = None,
) -> Bool[Tensor, "*batch"]:
    """Whether ``matrix`` is aligned with ``reference``: its defect is at most the tolerance.

    Not symmetric in its arguments: the identity is aligned with everything, only multiples of the
    identity are aligned with it. Covariances of samples are never exactly aligned; see
    :func:`misalignment` for a score.

    Args:
        matrix: the one judged, or a stack of them.
        reference: the one that provides the eigenspaces.
        tolerance: largest defect that counts as none; by default 1e-8, or what rounding in the
            dtype of the input explains where that is more.
        rtol: eigenvalues of the reference closer than this times the largest share an eigenspace.

    Raises:
        ShapeError: If the matrices are not square or differ in size.
        DomainError: If a matrix is not symmetric or not finite.

    Examples:
        >>> a, b = torch.eye(2), torch.diag(torch.tensor([1.0, 2.0]))
        >>> bool(is_aligned(a, b)), bool(is_aligned(b, a))
        (True, False)

    References:
        [maennel2020], Definition 1.
    """
    A, spaces = _checked(matrix, reference, rtol)
    return _residuals(A, spaces).amax(-1) <= _tolerance(tolerance, matrix, reference)


@prints_shapes
@dataclass(frozen=True)
class CorrespondingEigenvalues:
    """One entry per eigenspace of the reference, its eigenvalues decreasing."""

    reference: Float[Tensor, " r"]
    matrix: Float[Tensor, "*batch r"]  # nan where the matrix is not constant on the eigenspace
    dimensions: Int[Tensor, " r"]


@array_function
def corresponding_eigenvalues(
    matrix: Float[Tensor, "*batch d d"],
    reference: Float[Tensor, "d d"],
    *,
    tolerance: float | None = None,
    rtol: float | None = None,
) -> CorrespondingEigenvalues:
    """Eigenvalues of a matrix that belong to the eigenspaces of one that it is aligned with.

    Args:
        matrix: the one judged, or a stack of them.
        reference: the one that provides the eigenspaces.
        tolerance: largest defect that counts as none, see :func:`is_aligned`.
        rtol: eigenvalues of the reference closer than this times the largest share an eigenspace.

    Raises:
        ShapeError: If the matrices are not square or differ in size.
        DomainError: If a matrix is not symmetric or not finite.

    Examples:
        >>> b = torch.diag(torch.tensor([3.0, 2.0, 2.0]))
        >>> pairs = corresponding_eigenvalues(b @ b, b)
        >>> pairs.reference.tolist(), pairs.matrix.tolist(), pairs.dimensions.tolist()
        ([3.0, 2.0], [9.0, 4.0], [1, 2])

    References:
        [maennel2020], Definition 1.
    """
    A, spaces = _checked(matrix, reference, rtol)
    aligned = _residuals(A, spaces) <= _tolerance(tolerance, matrix, reference)
    means = spaces.means(_diagonal(A, spaces))
    return CorrespondingEigenvalues(
        spaces.means(spaces.values), nan_unless(aligned, means), spaces.dimensions
    )


def _checked(matrix: Tensor, reference: Tensor, rtol: float | None) -> tuple[Tensor, Eigenspaces]:
    require_symmetric(reference=reference)
    require_symmetric_stack(matrix=matrix)
    require_dimension(len(reference), matrix=matrix)
    return symmetrized(matrix), eigenspaces(reference, rtol)


def _tolerance(tolerance: float | None, *matrices: Tensor) -> float:
    if tolerance is None:
        return max(1e-8, 8 * matrices[0].shape[-1] * eps_of(*matrices))
    require_between(0.0, 1.0, tolerance=tolerance)
    return tolerance


def _diagonal(A: Tensor, spaces: Eigenspaces) -> Tensor:
    """The quadratic forms ``v_i^T A v_i``."""
    return (spaces.vectors * (A @ spaces.vectors)).sum(-2)


def _residuals(A: Tensor, spaces: Eigenspaces) -> Tensor:
    """Norms of ``A V_i - mu_i V_i`` over that of A, one for each eigenspace; 0 for a zero A."""
    V = spaces.vectors
    peak = A.detach().abs().amax((-2, -1), keepdim=True)
    A = A / torch.where(peak > 0, peak, torch.ones_like(peak))  # no square over- or underflows
    columns = A @ V - V * spaces.spread(spaces.means(_diagonal(A, spaces)))[..., None, :]
    squares = columns.square().sum(-2) @ spaces.membership
    total = A.square().sum((-2, -1))[..., None]
    return safe_sqrt(ratio_or_nan(squares, total).nan_to_num(nan=0.0))
