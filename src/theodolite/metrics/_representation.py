"""Alignment of a stream of features with its labels, by Gram matrices or by triangles.

A group is the whole stream or, for tasks between pairs of classes, one class. A task gives each
class a row of target values. The statistics give a *factor* of the task: a few rows ``[R, z]`` with
the same inner products as all rows ``[features, targets]``. The factor therefore has the singular
values and projections of the task.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, Literal

import torch
from jaxtyping import Float, Integer, Real
from torch import Tensor

from theodolite.checks import (
    require_axes,
    require_choice,
    require_count,
    require_finite,
    require_labels,
    require_nonempty,
    require_nonnegative,
    require_same_length,
    require_same_shape,
)
from theodolite.errors import DomainError
from theodolite.linalg import (
    GRAM_ACCURATE_ABOVE,
    LabelProjections,
    TriangularState,
    double,
    row_chunks,
    svd_projections,
    symmetric_eigen,
)
from theodolite.measures.representation import curve_from_projections, prepare_features
from theodolite.metrics._streaming import (
    StreamingMetric,
    floating,
    require_finite_sums,
    require_tensors,
    require_width,
)

_EPS = torch.finfo(torch.float64).eps
_FLOOR = 3e-7  # times the largest singular value: float64 Gram matrices resolve nothing below
Method = Literal["auto", "gram", "qr"]
Scale = Literal["absolute", "normalized", "relative"]
_GRID_POINTS = 200  # of the measure's default grid


@dataclass(frozen=True)
class RowFactor:
    """Rows that represent a task, and the smallest singular value that they resolve."""

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
        """The same statistics, about another shift."""
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
        """Statistics of both sets of examples together; triangles if one side has triangles."""
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

    def factor(self, members: Sequence[int], targets: Float[Tensor, "m c"]) -> RowFactor:
        r"""RowFactor of the task that gives class ``members[i]`` the target row ``targets[i]``.

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
        return RowFactor(
            torch.cat([features, n.sqrt() * mean.unsqueeze(0)]),
            torch.cat([z, rest, n.sqrt() * mean_y.unsqueeze(0)]),
            0.0 if complete else float(limit),
        )

    def triangles(self) -> "GroupTriangles":
        """The same statistics as triangles, for later batches; see :class:`GroupTriangles`."""
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
        """Statistics of no rows; ``groups`` are the numbers of classes and of groups."""
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

    def factor(self, members: Sequence[int], targets: Float[Tensor, "m c"]) -> RowFactor:
        """RowFactor of the task that gives class ``members[i]`` the target row ``targets[i]``."""
        if len(self.stack) == 1:
            full = self.stack[0]
            return RowFactor(
                full[:, : self.width], full[:, self.width :][:, list(members)] @ targets, 0.0
            )
        parts = [self.stack[index] for index in members]
        columns = [part[:, -1:] * row for part, row in zip(parts, targets, strict=True)]
        return RowFactor(torch.cat([part[:, :-1] for part in parts]), torch.cat(columns), 0.0)


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


class RepresentationAlignment(StreamingMetric[Groups]):
    r"""Alignment curve of a stream of features with its class labels.

    .. math:: A(\Phi, Y, \tau) = \sum_{i:\,\sigma_i \ge \tau} \|u_i^\top Y\|^2

    Here :math:`Y` is one-hot. With ``pairs`` it has the labels +1 and -1 of every pair of classes,
    all from one pass. With its defaults this is
    :func:`~theodolite.measures.representation.alignment_curve` of the whole stream. A bias column
    is appended by :func:`~theodolite.measures.representation.prepare_features`.

    Statistics are float64 Gram matrices about the first batch's mean, O(d²) (with pairs O(k d²)).
    If they do not resolve the smallest threshold to 1e-9, the stream continues with triangles of a
    QR decomposition. Triangles resolve all thresholds and take a few times as long. ``route`` names
    the statistics in use.

    Range: [0, n]; [0, 1] in the scales ``"normalized"`` and ``"relative"``.
    Undefined (``nan``): before the first example; pairs with an absent class; thresholds that the
        Gram does not resolve, with ``method="gram"``.

    Args:
        num_classes: Number of classes :math:`k`.
        thresholds: :math:`\tau` in units of the scale; by default 200 points, as in
            :func:`~theodolite.measures.representation.alignment_curve`.
        rows: ``"unit"`` divides each row by its own length, ``"none"`` takes rows as they are.
        scale: ``"normalized"``: share of the label mass over singular values divided by the root
            of n; ``"absolute"``; ``"relative"``: in units of the largest singular value.
        pairs: All pairs of classes instead of the one-hot targets.
        method: ``"auto"``, ``"gram"`` or ``"qr"``.
        kwargs: Keywords of ``torchmetrics.Metric``.

    Examples:
        >>> metric = RepresentationAlignment(2, torch.tensor([0.0, 0.5, 0.8]))
        >>> metric.update(torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 0]))
        >>> metric.update(torch.tensor([[0.0, 1.0]]), torch.tensor([1]))
        >>> [round(value, 4) for value in metric.compute().tolist()], metric.route
        ([1.0, 1.0, 0.6667], 'gram')

    References:
        [imani2022], Eq. (2) and sections 7.2 and 7.3.
    """

    higher_is_better = True

    def __init__(
        self,
        num_classes: int,
        thresholds: Float[Tensor, " t"] | None = None,
        *,
        rows: Literal["unit", "none"] = "unit",
        scale: Scale = "normalized",
        pairs: bool = False,
        method: Method = "auto",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        require_count(1, num_classes=num_classes)
        require_choice(("unit", "none"), rows=rows)
        require_choice(("absolute", "normalized", "relative"), scale=scale)
        require_choice(("auto", "gram", "qr"), method=method)
        if thresholds is not None:
            require_axes(1, thresholds=thresholds)
            require_nonempty(thresholds=thresholds)
            require_nonnegative(thresholds=thresholds)
        self.num_classes = num_classes
        self.thresholds = thresholds
        self.rows: Literal["unit", "none"] = rows
        self.scale: Scale = scale
        self.pairs = pairs
        self.method: Method = method

    @property
    def class_pairs(self) -> list[tuple[int, int]]:
        """With ``pairs``: the pair of classes of each row of the value."""
        return list(combinations(range(self.num_classes), 2))

    @property
    def route(self) -> str:
        """The statistics in use: ``"gram"`` or ``"qr"``; ``"none"`` before the first example."""
        seen = self._statistics()
        return "none" if seen is None else _route(seen)

    def update(self, features: Real[Tensor, "n d"], labels: Integer[Tensor, " n"]) -> None:
        """Add some examples; the batch may be empty."""
        require_tensors(features=features, labels=labels)
        require_axes(2, features=features)
        require_same_length(features=features, labels=labels)
        if len(features) == 0:
            return
        require_labels(labels, self.num_classes)
        seen, rows = self._statistics(), floating(features)
        require_width(None if seen is None else seen.width, features=rows)
        if self.rows == "unit":
            rows = prepare_features(rows).features
        self._keep(self._extended(seen, rows, labels))

    def _extended(self, seen: Groups | None, features: Tensor, labels: Tensor) -> Groups:
        """Statistics with one more batch, as triangles if a threshold requires them."""
        groups = (self.num_classes, self.num_classes if self.pairs else 1)
        if seen is None and self.method == "qr":
            seen = GroupTriangles.empty(groups, features.shape[1], double(features[:0]).device)
        if isinstance(seen, GroupTriangles):
            require_finite(features=features)
            return seen.extend(features, labels)
        shift = None if seen is None else seen.shift
        batch = GroupGrams.of(features, labels, groups, shift)
        require_finite_sums(batch.totals, features=features)
        total = batch if seen is None else seen + batch
        if not isinstance(total, GroupGrams) or not self._too_fine(total):
            return total
        # The earlier sums resolve the threshold; this batch is added by QR.
        empty = GroupTriangles.empty(groups, features.shape[1], batch.shift.device)
        before = empty if seen is None else seen.triangles()
        return before.extend(features, labels)

    def compute(self) -> Float[Tensor, "..."]:
        """Values at the thresholds; with ``pairs`` one row per pair of classes."""
        seen = self._statistics()
        if not self.pairs:
            if seen is None:
                return self._undefined()
            targets = torch.eye(self.num_classes, dtype=torch.float64, device=seen.counts.device)
            return self._values(seen, range(self.num_classes), targets)
        rows = [
            self._undefined()
            if seen is None or not bool(seen.counts[list(pair)].all())
            else self._values(seen, pair, seen.counts.new_tensor([[1.0], [-1.0]]))
            for pair in self.class_pairs
        ]
        return torch.stack(rows) if rows else self._undefined().expand(0, -1)

    def projections(self) -> LabelProjections:
        """Singular values and projections of the one-hot labels, for areas and theory.

        Raises:
            DomainError: If the metric has ``pairs``, or no example was added.
        """
        seen = self._statistics()
        if seen is None or self.pairs:
            raise DomainError(
                "expected a stream of one-hot labels with at least one example; "
                "pass pairs=False and call update first"
            )
        targets = torch.eye(self.num_classes, dtype=torch.float64, device=seen.counts.device)
        return _projections(seen, range(self.num_classes), targets)

    def _values(self, seen: Groups, members: Sequence[int], targets: Tensor) -> Tensor:
        projections = _projections(seen, members, targets)
        levels = None if self.thresholds is None else self.thresholds.to(targets.device)
        return curve_from_projections(projections, levels, scale=self.scale).values

    def _undefined(self) -> Tensor:
        size = _GRID_POINTS if self.thresholds is None else len(self.thresholds)
        return torch.full((size,), torch.nan, dtype=torch.float64, device=self.device)

    def _too_fine(self, total: GroupGrams) -> bool:
        """Whether the smallest positive threshold is beyond the Gram matrices."""
        if self.method == "gram":
            return False
        level = self._smallest()
        if self.scale == "relative":
            level *= total.largest()
        elif self.scale == "normalized" or self.thresholds is None:
            level *= float(total.counts.sum()) ** 0.5
        return level < GRAM_ACCURATE_ABOVE * total.spread()

    def _smallest(self) -> float:
        """The smallest positive threshold; infinite if there is none."""
        if self.thresholds is None:
            return 1 / (_GRID_POINTS - 1)
        positive = self.thresholds[self.thresholds > 0]
        return float(positive.min()) if len(positive) else float("inf")

    def _to_tensors(self, statistics: Groups) -> Sequence[Tensor]:
        # A MetricCollection lets metrics of equal states share one update. The threshold makes
        # states differ, because a metric with a finer threshold changes its route earlier.
        mark = statistics.counts.new_tensor([self._smallest(), self.rows == "unit"])
        if isinstance(statistics, GroupTriangles):
            return statistics.counts, statistics.stack, mark
        parts = (statistics.counts, statistics.shift, statistics.totals, statistics.scatters)
        return *parts, mark

    def _from_tensors(self, tensors: Sequence[Tensor]) -> Groups:
        *parts, _ = tensors
        return GroupTriangles(*parts) if len(parts) == 2 else GroupGrams(*parts)


def _route(seen: Groups) -> Literal["gram", "qr"]:
    return "qr" if isinstance(seen, GroupTriangles) else "gram"


def _projections(seen: Groups, members: Sequence[int], targets: Tensor) -> LabelProjections:
    factor = seen.factor(members, targets)
    count = int(seen.counts[list(members)].sum())
    # The tolerance of the rank grows with the number of examples, not of these rows.
    eps = _EPS * max(count, factor.features.shape[1]) / max(factor.features.shape)
    found = svd_projections(factor.features, factor.targets, eps)
    return replace(found, count=count, route=_route(seen), resolved_above=factor.resolved_above)
