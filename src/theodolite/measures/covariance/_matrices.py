"""Symmetric matrices as arguments, and the eigenspaces that they have."""

from dataclasses import dataclass

import torch
from torch import Tensor

from theodolite.checks import (
    require_between,
    require_count,
    require_finite,
    require_nonempty,
    symmetry_tolerance,
)
from theodolite.errors import DomainError, ShapeError
from theodolite.linalg import (
    double,
    eigenvalue_groups,
    eps_of,
    equality_tolerance,
    prints_shapes,
    symmetric_eigen,
    symmetric_eigenvalues,
    top_eigen,
)


def symmetrized(matrix: Tensor) -> Tensor:
    """In float64, without the asymmetry that the check has put down to rounding."""
    wide = double(matrix)
    return (wide + wide.mT) / 2


def require_square_stack(**tensors: Tensor) -> None:
    """The last two axes of each tensor are those of a non-empty square matrix."""
    for name, tensor in tensors.items():
        if tensor.ndim < 2 or tensor.shape[-1] != tensor.shape[-2]:
            raise ShapeError(
                f"{name}: expected a square matrix or a stack of them, got shape "
                f"{tuple(tensor.shape)}; a covariance of rows is centered.T @ centered / n"
            )
    require_nonempty(**tensors)


def require_symmetric_stack(**tensors: Tensor) -> None:
    """Each matrix is square, finite and symmetric up to the rounding of its dtype."""
    require_square_stack(**tensors)
    require_finite(**tensors)
    for name, tensor in tensors.items():
        values = tensor.detach()
        asymmetry = (values - values.mT).abs().amax((-2, -1))
        scale = values.abs().amax((-2, -1))
        if bool((asymmetry > symmetry_tolerance(values.dtype) * scale).any()):
            worst = (asymmetry / scale.clamp(min=torch.finfo(scale.dtype).tiny)).max().item()
            raise DomainError(
                f"{name}: expected a symmetric matrix, got a relative asymmetry of {worst:.1e}; "
                "if it is rounding, pass (m + m.mT) / 2"
            )


def require_dimension(dimension: int, **tensors: Tensor) -> None:
    """The last axis of each tensor has the given length."""
    for name, tensor in tensors.items():
        if tensor.shape[-1] != dimension:
            raise ShapeError(
                f"{name}: expected dimension {dimension} as in the other argument, got shape "
                f"{tuple(tensor.shape)}; patches and filters must be flattened alike"
            )


def require_orthonormal(**bases: Tensor) -> None:
    """The columns of each (stack of) square matrix are orthonormal up to rounding."""
    require_square_stack(**bases)
    require_finite(**bases)
    for name, basis in bases.items():
        values = double(basis.detach())
        size = values.shape[-1]
        defect = (values.mT @ values - torch.eye(size).to(values)).abs().max().item()
        if defect > max(1e-8, 8 * size * eps_of(basis)):
            raise DomainError(
                f"{name}: expected orthonormal columns, got a deviation of {defect:.1e}; "
                "orthonormalise them, e.g. with torch.linalg.qr(basis).Q"
            )


def stacked_eigenvalues(matrices: Tensor) -> Tensor:
    """Eigenvalues of each symmetric matrix of a stack, largest first; differentiable at ties."""
    if matrices.ndim == 2:
        return symmetric_eigenvalues(matrices)
    try:
        return torch.linalg.eigvalsh(matrices).flip(-1)
    except RuntimeError:  # one matrix of the stack did not converge: its fall-backs find out which
        pass
    size = matrices.shape[-1]
    rows = [symmetric_eigenvalues(matrix) for matrix in matrices.reshape(-1, size, size)]
    return torch.stack(rows).reshape(matrices.shape[:-1])


def positive_definite_factor(matrix: Tensor, name: str, eps: float) -> Tensor:
    """Lower Cholesky factor in float64 of symmetric matrices that are definite beyond rounding.

    Raises:
        DomainError: If the smallest eigenvalue is at most ``d * eps`` times the largest.
    """
    wide = symmetrized(matrix)
    values = stacked_eigenvalues(wide.detach())
    low, high = values[..., -1], values[..., 0]
    factor, failed = torch.linalg.cholesky_ex(wide)
    singular = (low <= wide.shape[-1] * eps * high) | (failed != 0)
    if bool(singular.any()):
        first = int(singular.flatten().nonzero()[0])
        raise DomainError(
            f"{name}: expected a positive definite matrix, got eigenvalues from "
            f"{low.flatten()[first].item():.3g} to {high.flatten()[first].item():.3g}; fewer "
            "filters than dimensions are the usual cause: pool runs, or pass subspace= or ridge= "
            "where offered"
        )
    return factor


@prints_shapes
@dataclass(frozen=True)
class Eigenspaces:
    """Sorted eigenpairs in float64 and the runs of columns that share an eigenspace."""

    values: Tensor  # (k,), decreasing
    vectors: Tensor  # (d, k)
    groups: tuple[slice, ...]

    @property
    def dimensions(self) -> Tensor:
        """Dimension of each eigenspace, (r,)."""
        sizes = [group.stop - group.start for group in self.groups]
        return torch.tensor(sizes, device=self.values.device)

    @property
    def owner(self) -> Tensor:
        """Number of the eigenspace that each column belongs to, (k,)."""
        dimensions = self.dimensions
        return torch.arange(len(dimensions), device=dimensions.device).repeat_interleave(dimensions)

    @property
    def membership(self) -> Tensor:
        """One-hot columns, (k, r): ``x @ membership`` sums over each eigenspace."""
        return torch.nn.functional.one_hot(self.owner, len(self.groups)).to(self.values)

    def spread(self, per_space: Tensor) -> Tensor:
        """One number per eigenspace, (..., r), to one per column, (..., k)."""
        return per_space[..., self.owner]

    def means(self, per_column: Tensor) -> Tensor:
        """Average of one number per column, (..., k), over each eigenspace, (..., r)."""
        return per_column @ self.membership / self.dimensions


def grouping_tolerance(matrix: Tensor, rtol: float | None) -> float:
    """The given relative gap, or the one that rounding in the matrix's dtype explains."""
    if rtol is None:
        return equality_tolerance(len(matrix), eps_of(matrix))
    require_between(0.0, 1.0, rtol=rtol)
    return rtol


def eigenspaces(matrix: Tensor, rtol: float | None = None) -> Eigenspaces:
    """All eigenspaces. No gradient: eigenspaces are not continuous where eigenvalues meet."""
    values, vectors = symmetric_eigen(symmetrized(matrix.detach()))
    groups = eigenvalue_groups(values, grouping_tolerance(matrix, rtol))
    return Eigenspaces(values, vectors, tuple(groups))


def leading_eigenspaces(matrix: Tensor, count: int, rtol: float | None = None) -> Eigenspaces:
    """The ``count`` leading eigenvectors, if they are determined by the matrix.

    Raises:
        DomainError: If ``count`` exceeds the dimension or cuts an eigenspace in two.
    """
    require_count(1, subspace=count)
    if count > len(matrix):
        raise DomainError(f"subspace: expected at most {len(matrix)} directions, got {count}")
    spaces = whole_leading_eigenspaces(matrix, count, rtol)
    if len(spaces.values) < count:
        raise DomainError(
            f"subspace: expected a number of directions that keeps equal eigenvalues together, got "
            f"{count}, but eigenvalues {len(spaces.values) + 1} to {count + 1} (at least) of the "
            f"data covariance are equal up to rounding; pass {len(spaces.values) or 'a larger one'}"
        )
    return spaces


def whole_leading_eigenspaces(matrix: Tensor, count: int, rtol: float | None = None) -> Eigenspaces:
    """The leading eigenspaces of total dimension at most ``count``; possibly none."""
    values, vectors = top_eigen(symmetrized(matrix.detach()), min(count + 1, len(matrix)))
    groups = eigenvalue_groups(values, grouping_tolerance(matrix, rtol))
    if len(values) > count:  # the pair beyond the last shows whether its eigenspace goes on
        groups = groups[:-1]
    kept = groups[-1].stop if groups else 0
    return Eigenspaces(values[:kept], vectors[:, :kept], tuple(groups))
