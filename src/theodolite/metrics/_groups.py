"""Second moments of features per group of examples, as Gram matrices or as triangles.

A group is the whole stream, or one class when tasks between pairs of classes are wanted. A task
gives each class a row of target values. From the statistics follows a *factor* of the task: a few
rows ``[R, z]`` with the same inner products as all rows ``[features, targets]``, whose singular
values and projections are therefore those of the task.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Integer
from torch import Tensor

from theodolite.checks import require_same_shape
from theodolite.linalg import TriangularState, double, row_chunks, symmetric_eigen

__all__ = ["Factor", "GroupGrams", "GroupTriangles", "Groups"]

_EPS = torch.finfo(torch.float64).eps
_FLOOR = 3e-7  # of the largest singular value: float64 Gram matrices resolve nothing below


@dataclass(frozen=True)
class Factor:
    """Rows that stand for a task, and the singular value below which they know nothing."""

    features: Float[Tensor, "r d"]
    targets: Float[Tensor, "r c"]
    resolved_above: float

    @property
    def rows(self) -> Float[Tensor, "r w"]:
        """``[R, z]``."""
        return torch.cat([self.features, self.targets], dim=1)


@dataclass(frozen=True)
class GroupGrams:
    """Counts and sums per class, scatter matrices per group, all about one shift."""

    counts: Float[Tensor, " k"]
    shift: Float[Tensor, " d"]
    totals: Float[Tensor, "k d"]
    scatters: Float[Tensor, "g d d"]  # g = 1 for the whole stream, else k

    @classmethod
    def of(
        cls,
        rows: Float[Tensor, "n d"],
        labels: Integer[Tensor, " n"],
        groups: tuple[int, int],
        shift: Float[Tensor, " d"] | None,
    ) -> "GroupGrams":
        """Statistics of one batch; ``groups`` are the numbers of classes and of groups."""
        classes, count = groups
        center = double(rows.double().mean(0) if shift is None else shift)
        totals = center.new_zeros(classes, len(center))
        scatters = center.new_zeros(count, len(center), len(center))
        for chunk, members in row_chunks(rows, labels.long()):
            offset = double(chunk) - center
            totals = totals.index_add(0, members, offset)
            for index, part in [(0, offset)] if count == 1 else by_class(offset, members):
                scatters[index].addmm_(part.mT, part)
        return cls(class_counts(labels, center, classes), center, totals, scatters)

    def rebase(self, shift: Float[Tensor, " d"]) -> "GroupGrams":
        """The same rows, about another shift."""
        require_same_shape(shift=shift, own=self.shift)
        if shift is self.shift:
            return self
        move = self.shift - shift
        whole = len(self.scatters) == 1
        n = self.counts.sum().reshape(1) if whole else self.counts
        t = self.totals.sum(0, keepdim=True) if whole else self.totals
        cross = torch.einsum("gi,j->gij", t, move)
        square = torch.einsum("g,i,j->gij", n, move, move)
        totals = self.totals + torch.outer(self.counts, move)
        return GroupGrams(self.counts, shift, totals, self.scatters + cross + cross.mT + square)

    def __add__(self, other: "Groups") -> "Groups":
        """Statistics of both sets of examples together; triangles win."""
        if isinstance(other, GroupTriangles):
            return other + self
        moved = other.rebase(self.shift)
        require_same_shape(left=self.totals, right=moved.totals)
        require_same_shape(left=self.scatters, right=moved.scatters)  # pairs or not
        return GroupGrams(
            self.counts + moved.counts,
            self.shift,
            self.totals + moved.totals,
            self.scatters + moved.scatters,
        )

    @property
    def width(self) -> int:
        """Number of feature columns."""
        return len(self.shift)

    def spread(self) -> float:
        """Root of the trace of the centred scatter: no singular value about the mean exceeds it."""
        total = self.totals.sum(0)
        trace = self.scatters.diagonal(dim1=1, dim2=2).sum()
        return float((trace - total @ total / self.counts.sum()).clamp(min=0).sqrt())

    def largest(self) -> float:
        """A lower bound of the largest singular value of the rows themselves."""
        n = self.counts.sum()
        mean = self.shift + self.totals.sum(0) / n
        share = self.spread() ** 2 / len(mean)
        return float((n * mean @ mean + share).sqrt()) / 2**0.5

    def factor(self, members: Sequence[int], targets: Float[Tensor, "m c"]) -> Factor:
        r"""Factor of the task that gives class ``members[i]`` the target row ``targets[i]``.

        The centred scatter :math:`V\Lambda V^\top` gives the rows :math:`[\Lambda^{1/2}V^\top,
        \Lambda^{-1/2}V^\top B]` with :math:`B` the centred cross moment; the mean is one more row.
        So a large mean is never squared into the matrix that is decomposed.
        """
        index = torch.tensor(list(members), device=self.counts.device)
        counts, totals = self.counts[index], self.totals[index]
        n, total = counts.sum(), totals.sum(0)
        scatter = self.scatters[0] if len(self.scatters) == 1 else self.scatters[index].sum(0)
        mean_y = counts @ targets / n
        cross = totals.mT @ targets - torch.outer(total, mean_y)
        energy = targets.mT @ (counts.unsqueeze(1) * targets) - n * torch.outer(mean_y, mean_y)
        values, vectors = symmetric_eigen(scatter - torch.outer(total, total) / n)
        limit = max(_FLOOR, (len(values) * _EPS) ** 0.5) * values.max().clamp(min=0).sqrt()
        kept = values > limit.square()
        sigma = values[kept].sqrt().unsqueeze(1)
        z = vectors[:, kept].mT @ cross / sigma
        rest = _root(energy - z.mT @ z)
        mean = self.shift + total / n
        features = torch.cat([sigma * vectors[:, kept].mT, rest.new_zeros(len(rest), len(mean))])
        complete = len(sigma) >= min(int(n) - 1, len(mean))
        return Factor(
            torch.cat([features, n.sqrt() * mean.unsqueeze(0)]),
            torch.cat([z, rest, n.sqrt() * mean_y.unsqueeze(0)]),
            0.0 if complete else float(limit),
        )

    def triangles(self) -> "GroupTriangles":
        """The same statistics as triangles, for what is to come; see :class:`GroupTriangles`."""
        classes, width = len(self.counts), len(self.shift)
        empty = GroupTriangles.empty((classes, len(self.scatters)), width, self.shift.device)
        stack = list(empty.stack)
        if len(stack) == 1:
            stack[0] = _extended(stack[0], self.factor(range(classes), _eye(self.counts)).rows)
        else:
            one = self.shift.new_ones(1, 1)
            for index in torch.nonzero(self.counts).flatten().tolist():
                stack[index] = _extended(stack[index], self.factor([index], one).rows)
        return GroupTriangles(self.counts, torch.stack(stack))


@dataclass(frozen=True)
class GroupTriangles:
    """Counts per class, and per group the triangle of its rows ``[features, targets]``.

    The targets are one-hot columns for the whole stream and a column of ones for one class.
    """

    counts: Float[Tensor, " k"]
    stack: Float[Tensor, "g w w"]

    @classmethod
    def empty(cls, groups: tuple[int, int], width: int, device: torch.device) -> "GroupTriangles":
        """Before the first row; ``groups`` are the numbers of classes and of groups."""
        classes, count = groups
        size = width + (classes if count == 1 else 1)
        triangle = TriangularState.empty(size, device).triangle
        return cls(triangle.new_zeros(classes), triangle.expand(count, size, size))

    def extend(self, rows: Float[Tensor, "n d"], labels: Integer[Tensor, " n"]) -> "GroupTriangles":
        """Statistics after some more rows."""
        counts = class_counts(labels, self.counts, len(self.counts))
        stack = list(self.stack)
        for chunk, members in row_chunks(rows, labels.long()):
            wide = double(chunk)
            if len(stack) == 1:
                one_hot = torch.nn.functional.one_hot(members, len(counts)).to(wide)
                stack[0] = _extended(stack[0], torch.cat([wide, one_hot], dim=1))
                continue
            for index, part in by_class(wide, members):
                both = torch.cat([part, part.new_ones(len(part), 1)], dim=1)
                stack[index] = _extended(stack[index], both)
        return GroupTriangles(self.counts + counts, torch.stack(stack))

    def __add__(self, other: "Groups") -> "Groups":
        """Statistics of both sets of examples together."""
        more = other.triangles() if isinstance(other, GroupGrams) else other
        require_same_shape(left=self.counts, right=more.counts)
        require_same_shape(left=self.stack, right=more.stack)
        stack = [_extended(mine, yours) for mine, yours in zip(self.stack, more.stack, strict=True)]
        return GroupTriangles(self.counts + more.counts, torch.stack(stack))

    @property
    def width(self) -> int:
        """Number of feature columns."""
        return self.stack.shape[1] - (len(self.counts) if len(self.stack) == 1 else 1)

    def factor(self, members: Sequence[int], targets: Float[Tensor, "m c"]) -> Factor:
        """Factor of the task that gives class ``members[i]`` the target row ``targets[i]``."""
        if len(self.stack) == 1:
            full = self.stack[0]
            return Factor(
                full[:, : self.width], full[:, self.width :][:, list(members)] @ targets, 0.0
            )
        parts = [self.stack[index] for index in members]
        columns = [part[:, -1:] * row for part, row in zip(parts, targets, strict=True)]
        return Factor(torch.cat([part[:, :-1] for part in parts]), torch.cat(columns), 0.0)


Groups = GroupGrams | GroupTriangles


def class_counts(labels: Tensor, like: Tensor, classes: int) -> Float[Tensor, " k"]:
    """Examples per class, without waiting for the device."""
    ones = like.new_ones(len(labels))
    return like.new_zeros(classes).index_add(0, labels.long(), ones)


def by_class(rows: Tensor, members: Tensor) -> Iterator[tuple[int, Tensor]]:
    """The rows of each class that occurs: sorted once, then cut."""
    classes, sizes = torch.unique(members, return_counts=True)
    ordered = rows[torch.argsort(members, stable=True)]
    yield from zip(classes.tolist(), torch.split(ordered, sizes.tolist()), strict=True)


def _extended(triangle: Tensor, rows: Tensor) -> Tensor:
    return TriangularState(triangle).extend(rows).triangle


def _eye(like: Tensor) -> Tensor:
    return torch.eye(len(like), dtype=like.dtype, device=like.device)


def _root(matrix: Tensor) -> Tensor:
    """``E`` with ``E.T @ E = matrix`` for a positive semi-definite matrix up to rounding."""
    values, vectors = symmetric_eigen(matrix)
    return values.clamp(min=0).sqrt().unsqueeze(1) * vectors.mT
