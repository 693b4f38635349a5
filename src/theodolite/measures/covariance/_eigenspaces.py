"""Eigenspaces of a data covariance: eigenvectors with near-equal eigenvalues belong together."""

from dataclasses import dataclass

import torch
from torch import Tensor

from theodolite.checks import require_between, require_count
from theodolite.errors import DomainError
from theodolite.linalg import (
    eigenvalue_groups,
    eps_of,
    equality_tolerance,
    symmetric_eigen,
    top_eigen,
)
from theodolite.measures.covariance._validation import symmetrized

__all__ = [
    "Eigenspaces",
    "eigenspaces",
    "grouping_tolerance",
    "leading_eigenspaces",
    "whole_leading_eigenspaces",
]


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
    """The relative gap asked for, or the one that rounding in the matrix's dtype explains."""
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
