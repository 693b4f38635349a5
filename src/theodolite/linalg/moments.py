"""Mergeable sufficient statistics: raw float64 sums about a fixed shift.

Sums about one shift add, across batches, shards and processes, by plain summation. Statistics
about different shifts are rebased first, exactly. The shift (the mean of the first batch) keeps
the numbers small, so that features with a large mean lose no digits when they are centred.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from theodolite.checks import (
    require_axes,
    require_nonempty,
    require_same_length,
    require_same_shape,
)
from theodolite.linalg.arrays import double

__all__ = ["ClassSums", "CrossMoments", "Moments", "row_chunks"]

_CHUNK_BYTES = 32 * 2**20  # float64 copy of one chunk: fits the cache hierarchy
_DEVICE_CHUNK_BYTES = 256 * 2**20  # on an accelerator: amortises launches


def row_chunks(*tensors: Tensor) -> list[tuple[Tensor, ...]]:
    """The tensors in chunks of rows whose float64 copies stay below 32 MiB (GPU: 256 MiB) each.

    Memory beyond the input is then independent of the number of rows.
    """
    widest = max(tensor[0].numel() if len(tensor) else 1 for tensor in tensors)
    size = _CHUNK_BYTES if tensors[0].device.type == "cpu" else _DEVICE_CHUNK_BYTES
    rows = max(1, size // (8 * max(widest, 1)))
    return list(zip(*(torch.split(tensor, rows) for tensor in tensors), strict=True))


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
        """Moments of one batch; without a shift, about its own mean."""
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
        """The same rows, about another shift."""
        require_same_shape(shift=shift, own=self.shift)
        if shift is self.shift:  # a stream keeps its shift: adding a batch costs one addition
            return self
        move = self.shift - double(shift)
        cross = torch.outer(self.total, move)
        scatter = self.scatter + cross + cross.mT + self.count * torch.outer(move, move)
        return Moments(self.count, double(shift), self.total + self.count * move, scatter)

    def __add__(self, other: "Moments") -> "Moments":
        """Moments of both groups of rows together, about this one's shift."""
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
        center = self.mean if centered else torch.zeros_like(self.shift)
        return self.rebase(center).scatter / (self.count - ddof)


@dataclass(frozen=True)
class CrossMoments:
    r"""Joint moments of paired rows ``x`` and ``y`` of the same examples.

    The moments of the rows ``[x, y]`` side by side; blocks of the scatter are
    :math:`X^\top X`, :math:`X^\top Y` and :math:`Y^\top Y`.
    """

    both: Moments
    split: int  # columns of x

    @classmethod
    def of(cls, x: Float[Tensor, "n d"], y: Float[Tensor, "n e"]) -> "CrossMoments":
        """Joint moments of one batch, each side about its own mean."""
        require_axes(2, x=x, y=y)
        require_same_length(x=x, y=y)
        return cls(Moments.of(torch.cat([double(x), double(y)], dim=1)), x.shape[1])

    def __add__(self, other: "CrossMoments") -> "CrossMoments":
        """Joint moments of both groups of examples together."""
        return CrossMoments(self.both + other.both, self.split)

    def blocks(self, *, centered: bool) -> tuple[Tensor, Tensor, Tensor]:
        """``X.T @ X, X.T @ Y, Y.T @ Y``, about the means or about zero."""
        count = self.both.count
        full = self.both.covariance(centered=centered) * count
        k = self.split
        return full[:k, :k], full[:k, k:], full[k:, k:]


@dataclass(frozen=True)
class ClassSums:
    """Per class: number of examples and sum of their rows about a shift."""

    counts: Float[Tensor, " k"]
    shift: Float[Tensor, " d"]
    totals: Float[Tensor, "k d"]

    @classmethod
    def of(
        cls,
        rows: Float[Tensor, "n d"],
        labels: Tensor,
        num_classes: int,
        shift: Float[Tensor, " d"] | None = None,
    ) -> "ClassSums":
        """Sums of one batch; without a shift, about its own mean."""
        require_axes(2, rows=rows)
        require_same_length(rows=rows, labels=labels)
        center = double(rows.double().mean(0) if shift is None else shift)
        totals = center.new_zeros(num_classes, len(center))
        for chunk, classes in row_chunks(rows, labels):
            totals = totals.index_add(0, classes.long(), double(chunk) - center)
        counts = torch.bincount(labels.long(), minlength=num_classes).to(center)
        return cls(counts, center, totals)

    def rebase(self, shift: Float[Tensor, " d"]) -> "ClassSums":
        """The same rows, about another shift."""
        if shift is self.shift:
            return self
        move = self.shift - double(shift)
        return ClassSums(self.counts, double(shift), self.totals + torch.outer(self.counts, move))

    def __add__(self, other: "ClassSums") -> "ClassSums":
        """Sums of both groups of examples together, about this one's shift."""
        require_same_shape(left=self.totals, right=other.totals)
        moved = other.rebase(self.shift)
        return ClassSums(self.counts + moved.counts, self.shift, self.totals + moved.totals)

    @property
    def means(self) -> Float[Tensor, "k d"]:
        """Mean row per class; nan for a class without examples."""
        return self.shift + self.totals / self.counts.unsqueeze(1)
