"""Triangular state of a stream of rows: what QR keeps when the Gram matrix would lose it.

``R.T @ R`` equals the Gram matrix of all rows seen, but singular values down to ``eps`` of the
largest survive in R, where the Gram keeps only those above ``sqrt(eps)``.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from theodolite.checks import require_axes, require_same_shape
from theodolite.linalg.arrays import double

__all__ = ["TriangularState"]


@dataclass(frozen=True)
class TriangularState:
    """The triangle ``R`` (d x d, zero rows where fewer rows were seen) of a stream of rows."""

    triangle: Float[Tensor, "d d"]

    @classmethod
    def of(cls, rows: Float[Tensor, "n d"]) -> "TriangularState":
        """State of one batch. Costs ``O(n d²)``."""
        require_axes(2, rows=rows)
        return cls.empty(rows.shape[1], rows.device).extend(rows)

    @classmethod
    def empty(cls, width: int, device: torch.device | None = None) -> "TriangularState":
        """State before the first row."""
        return cls(torch.zeros(width, width, dtype=torch.float64, device=device))

    def extend(self, rows: Float[Tensor, "n d"]) -> "TriangularState":
        """State after some more rows: stack and re-triangularise."""
        stacked = torch.cat([self.triangle, double(rows)])
        return TriangularState(torch.linalg.qr(stacked, mode="r").R)

    def __add__(self, other: "TriangularState") -> "TriangularState":
        """State of both streams together."""
        require_same_shape(left=self.triangle, right=other.triangle)
        return self.extend(other.triangle)

    def split(self, columns: int) -> tuple[Tensor, Tensor]:
        """``R[:, :columns], R[:, columns:]``: features and the targets that rode along."""
        return self.triangle[:, :columns], self.triangle[:, columns:]
