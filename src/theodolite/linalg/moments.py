"""Mergeable sufficient statistics of rows: raw float64 sums about a fixed shift, and triangles.

Sums about one shift add up across batches, shards and processes. Statistics about different shifts
are first converted, exactly. The shift (the mean of the first batch) keeps the numbers small, so
that features with a large mean lose no digits when they are centred.

``R.T @ R`` equals the Gram matrix of all rows. But R keeps singular values down to ``eps`` times
the largest, and a Gram matrix only those above ``sqrt(eps)``.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from theodolite.checks import (
    require_axes,
    require_count,
    require_finite,
    require_flag,
    require_nonempty,
    require_same_shape,
)
from theodolite.linalg.arrays import double, prints_shapes
from theodolite.linalg.spectra import Eigen, top_eigen

_CHUNK_BYTES = 8 * 2**20  # float64 copy of one chunk; fits into the cache
_SMALL = 1024  # matrices with fewer rows are decomposed faster by a CPU
_DEVICE_CHUNK_BYTES = 256 * 2**20  # the same on an accelerator, where launches cost time


def row_chunks(*tensors: Tensor) -> list[tuple[Tensor, ...]]:
    """The tensors in chunks of rows whose float64 copies stay below 8 MiB (GPU: 256 MiB) each.

    So memory beyond the input does not depend on the number of rows.
    """
    widest = max(tensor[0].numel() if len(tensor) else 1 for tensor in tensors)
    size = _CHUNK_BYTES if tensors[0].device.type == "cpu" else _DEVICE_CHUNK_BYTES
    rows = max(1, size // (8 * max(widest, 1)))
    return list(zip(*(torch.split(tensor, rows) for tensor in tensors), strict=True))


@prints_shapes
@dataclass(frozen=True)
class Moments:
    r"""Count, sum and scatter of rows about a shift :math:`s`.

    .. math:: n,\qquad \sum_i (x_i - s),\qquad \sum_i (x_i - s)(x_i - s)^\top
    """

    count: Float[Tensor, ""]
    shift: Float[Tensor, " d"]
    total: Float[Tensor, " d"]
    scatter: Float[Tensor, "d d"]

    @classmethod
    def of(cls, rows: Float[Tensor, "n d"], shift: Float[Tensor, " d"] | None = None) -> "Moments":
        """Moments of one batch; by default about its own mean."""
        require_axes(2, rows=rows)
        require_nonempty(rows=rows)
        center = double(rows.double().mean(0) if shift is None else shift)
        total = torch.zeros_like(center)
        scatter = center.new_zeros(len(center), len(center))
        for (chunk,) in row_chunks(rows):
            offset = double(chunk) - center
            total = total + offset.sum(0)
            scatter = scatter + offset.mT @ offset
        return cls(center.new_tensor(float(len(rows))), center, total, scatter)

    def rebase(self, shift: Float[Tensor, " d"]) -> "Moments":
        """The same moments about another shift."""
        require_same_shape(shift=shift, own=self.shift)
        if shift is self.shift:  # a stream keeps its shift, so adding a batch costs one addition
            return self
        move = self.shift - double(shift)
        cross = torch.outer(self.total, move)
        scatter = self.scatter + cross + cross.mT + self.count * torch.outer(move, move)
        return Moments(self.count, double(shift), self.total + self.count * move, scatter)

    def __add__(self, other: "Moments") -> "Moments":
        """Moments of both groups of rows together, about the shift of this one."""
        moved = other.rebase(self.shift)
        return Moments(
            self.count + moved.count,
            self.shift,
            self.total + moved.total,
            self.scatter + moved.scatter,
        )

    @property
    def mean(self) -> Float[Tensor, " d"]:
        """Mean row."""
        return self.shift + self.total / self.count

    def covariance(self, *, centered: bool = True, ddof: int = 0) -> Float[Tensor, "d d"]:
        """Covariance about the mean (or second moment about zero), divided by ``count - ddof``."""
        require_flag(centered=centered)
        require_count(0, ddof=ddof)
        center = self.mean if centered else torch.zeros_like(self.shift)
        return self.rebase(center).scatter / (self.count - ddof)

    def leading(self, count: int, *, tolerance: float = 1e-11) -> Eigen:
        """Leading eigenpairs of the covariance about the mean; the CPU computes small ones."""
        rounded = self.covariance()
        require_finite(covariance=rounded)
        matrix = (rounded + rounded.mT) / 2  # rounding makes products of patches asymmetric
        matrix = matrix.cpu() if len(matrix) <= _SMALL else matrix
        values, vectors = top_eigen(matrix, count, tolerance=tolerance)
        return Eigen(values.clamp(min=0.0), vectors)


@prints_shapes
@dataclass(frozen=True)
class RowSample:
    r"""Few rows with many entries, whose covariance is never formed.

    .. math:: \Sigma v = \lambda v \iff \tfrac1n X X^\top u = \lambda u,\quad
              v = \frac{X^\top u}{\sqrt{n \lambda}}
    """

    rows: Float[Tensor, "n d"]

    def __add__(self, other: "RowSample") -> "RowSample":
        """Both groups of rows together."""
        return RowSample(torch.cat([self.rows, other.rows]))

    def moments(self) -> Moments:
        """Sums of the same rows."""
        return Moments.of(self.rows)

    def leading(self, count: int, *, tolerance: float = 1e-11) -> Eigen:
        """Leading eigenpairs of the covariance about the mean; fewer than n are nonzero.

        Further pairs have the value zero and arbitrary directions in which no row varies.
        """
        require_finite(rows=self.rows)
        X = double(self.rows)
        X = X - X.mean(0)
        own = min(count, len(X))
        values, left = top_eigen(X @ X.mT, own, tolerance=tolerance)
        turned = X.mT @ left
        scaled = turned / turned.norm(dim=0).clamp(min=torch.finfo(X.dtype).tiny)
        draws = torch.Generator(X.device).manual_seed(0)
        shape = X.shape[1], count - own
        others = torch.randn(shape, generator=draws, dtype=X.dtype, device=X.device)
        # Directions of vanishing values are not orthogonal.
        vectors, signs = torch.linalg.qr(torch.cat([scaled, others], 1))
        signs = torch.where(signs.diagonal() < 0, -1.0, 1.0)
        values = torch.cat([values.clamp(min=0.0) / len(X), values.new_zeros(count - own)])
        return Eigen(values, vectors * signs)


@prints_shapes
@dataclass(frozen=True)
class TriangularState:
    """The triangle ``R`` (d x d, with zero rows for fewer rows) of a stream of rows."""

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
        """State after some more rows."""
        stacked = torch.cat([self.triangle, double(rows)])
        return TriangularState(torch.linalg.qr(stacked, mode="r").R)

    def __add__(self, other: "TriangularState") -> "TriangularState":
        """State of both streams together."""
        require_same_shape(left=self.triangle, right=other.triangle)
        return self.extend(other.triangle)

    def split(self, columns: int) -> tuple[Tensor, Tensor]:
        """``R[:, :columns], R[:, columns:]``: features, and the targets appended to them."""
        return self.triangle[:, :columns], self.triangle[:, columns:]
