"""Alignment of a stream of features with its labels, by Gram matrices or by triangles."""

from collections.abc import Sequence
from dataclasses import replace
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
)
from theodolite.errors import DomainError
from theodolite.linalg import GRAM_ACCURATE_ABOVE, LabelProjections, double, svd_projections
from theodolite.measures.representation import curve_from_projections
from theodolite.metrics._groups import GroupGrams, Groups, GroupTriangles
from theodolite.metrics._streaming import (
    StreamingMetric,
    floating,
    require_finite_sums,
    require_tensors,
    require_width,
)

__all__ = ["RepresentationAlignment"]

Method = Literal["auto", "gram", "qr"]
Scale = Literal["absolute", "normalized", "relative"]

_EPS = torch.finfo(torch.float64).eps
_GRID_POINTS = 200  # of the measure's default grid


class RepresentationAlignment(StreamingMetric[Groups]):
    r"""Alignment curve of a stream of features with its class labels.

    .. math:: A(\Phi, Y, \tau) = \sum_{i:\,\sigma_i \ge \tau} \|u_i^\top Y\|^2

    with one-hot :math:`Y`, or, with ``pairs``, the labels +1 and -1 of every pair of classes, all
    from one pass. Features come prepared (rows normalised, bias column appended), which
    :func:`~theodolite.measures.representation.prepare_features` does row by row.

    Statistics are float64 Gram matrices about the first batch's mean, O(d²) (with pairs O(k d²)).
    As soon as the smallest threshold falls below what these resolve to 1e-9, the stream continues
    as triangles of a QR decomposition, which resolve everything and cost a few times as much;
    ``route`` says what was used.

    Range: [0, n]; [0, 1] in the scales ``"normalized"`` and ``"relative"``.
    Undefined (``nan``): before the first example; pairs with an absent class; thresholds that the
        Gram does not resolve, with ``method="gram"``.

    Args:
        num_classes: Number of classes :math:`k`.
        thresholds: :math:`\tau` in units of the scale; by default 200 points, as in
            :func:`~theodolite.measures.representation.alignment_curve`.
        scale: ``"normalized"``: share of the label mass over singular values divided by the root
            of n; ``"absolute"``; ``"relative"``: in units of the largest singular value.
        pairs: All pairs of classes instead of the one-hot targets.
        method: ``"auto"``, ``"gram"`` or ``"qr"``.
        kwargs: Keywords of ``torchmetrics.Metric``.

    Example:
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
        scale: Scale = "normalized",
        pairs: bool = False,
        method: Method = "auto",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        require_count(1, num_classes=num_classes)
        require_choice(("absolute", "normalized", "relative"), scale=scale)
        require_choice(("auto", "gram", "qr"), method=method)
        if thresholds is not None:
            require_axes(1, thresholds=thresholds)
            require_nonempty(thresholds=thresholds)
            require_nonnegative(thresholds=thresholds)
        self.num_classes = num_classes
        self.thresholds = thresholds
        self.scale: Scale = scale
        self.pairs = pairs
        self.method: Method = method

    @property
    def class_pairs(self) -> list[tuple[int, int]]:
        """The pairs of classes behind the rows of the value, with ``pairs``."""
        return list(combinations(range(self.num_classes), 2))

    @property
    def route(self) -> str:
        """How the examples seen so far are held: ``"gram"`` or ``"qr"``; ``"none"`` before them."""
        seen = self._statistics()
        return "none" if seen is None else _route(seen)

    def update(self, features: Real[Tensor, "n d"], labels: Integer[Tensor, " n"]) -> None:
        """Add some examples; none at all is allowed."""
        require_tensors(features=features, labels=labels)
        require_axes(2, features=features)
        require_same_length(features=features, labels=labels)
        if len(features) == 0:
            return
        require_labels(labels, self.num_classes)
        self._keep(self._extended(self._statistics(), floating(features), labels))

    def _extended(self, seen: Groups | None, features: Tensor, labels: Tensor) -> Groups:
        """Statistics with one more batch, as triangles once thresholds ask for them."""
        groups = (self.num_classes, self.num_classes if self.pairs else 1)
        require_width(None if seen is None else seen.width, features=features)
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
        # What was summed before still resolves the threshold; this batch goes in by QR.
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
            DomainError: If the metric is one of pairs, or has seen nothing.
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
        # The threshold marks the state as this metric's: a MetricCollection lets metrics of equal
        # states share one update, and one of a finer threshold must change its route by itself.
        mark = statistics.counts.new_tensor(self._smallest())
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
    # The tolerance of the rank grows with the examples behind these few rows.
    eps = _EPS * max(count, factor.features.shape[1]) / max(factor.features.shape)
    found = svd_projections(factor.features, factor.targets, eps)
    return replace(found, count=count, route=_route(seen), resolved_above=factor.resolved_above)
