"""Alignment of a stream of features with its labels, by Gram matrices or by triangles.

Rows are ``[features, one-hot labels]``. Their sums, or their triangle, give a *factor*: a few rows
with the same inner products as all rows. The factor has the singular values and projections of the
whole stream.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
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
from theodolite.errors import DomainError, DtypeError, ShapeError
from theodolite.linalg import (
    GRAM_ACCURATE_ABOVE,
    LabelProjections,
    Moments,
    TriangularState,
    double,
    gram_limit,
    row_chunks,
    svd_projections,
    symmetric_eigen,
    target_columns,
)
from theodolite.measures.representation import curve_from_projections, prepare_features
from theodolite.measures.representation.curve import GRID_POINTS
from theodolite.metrics._streaming import (
    StreamingMetric,
    floating,
    require_finite_sums,
    require_tensors,
    require_width,
)

_EPS = torch.finfo(torch.float64).eps
Scale = Literal["absolute", "normalized", "relative"]
Sums = Moments | TriangularState


@dataclass(frozen=True)
class RowFactor:
    """Rows that represent a stream, and the smallest singular value that they resolve."""

    features: Float[Tensor, "r d"]
    targets: Float[Tensor, "r c"]
    resolved_above: float = 0.0

    @classmethod
    def of_moments(cls, sums: Moments, width: int) -> "RowFactor":
        r"""Rows from sums about the mean.

        The centred scatter :math:`V\Lambda V^\top` of the features gives the rows
        :math:`[\Lambda^{1/2}V^\top, \Lambda^{-1/2}V^\top B]` with :math:`B` the centred cross
        moment; the mean is one more row. So a large mean is never squared into the matrix that is
        decomposed.
        """
        n, mean = sums.count, sums.mean
        scatter = sums.rebase(mean).scatter
        cross, energy = scatter[:width, width:], scatter[width:, width:]
        values, vectors = symmetric_eigen(scatter[:width, :width])
        limit = gram_limit(values)
        kept = values > limit.square()
        sigma = values[kept].sqrt().unsqueeze(1)
        z = vectors[:, kept].mT @ cross / sigma
        rest = _root(energy - z.mT @ z)
        features = torch.cat([sigma * vectors[:, kept].mT, rest.new_zeros(len(rest), width)])
        complete = len(sigma) >= min(int(n) - 1, width)
        last = n.sqrt() * mean.unsqueeze(0)
        return cls(
            torch.cat([features, last[:, :width]]),
            torch.cat([z, rest, last[:, width:]]),
            0.0 if complete else float(limit),
        )


def _root(matrix: Tensor) -> Tensor:
    """``E`` with ``E.T @ E = matrix`` for a positive semi-definite matrix up to rounding."""
    values, vectors = symmetric_eigen(matrix)
    return values.clamp(min=0).sqrt().unsqueeze(1) * vectors.mT


class RepresentationAlignment(StreamingMetric[Sums]):
    r"""Alignment curve of a stream of features with its class labels.

    .. math:: A(\Phi, Y, \tau) = \sum_{i:\,\sigma_i \ge \tau} \|u_i^\top Y\|^2

    Here :math:`Y` is one-hot. With its defaults this is
    :func:`~theodolite.measures.representation.alignment_curve` of the whole stream. A bias column
    is appended by :func:`~theodolite.measures.representation.prepare_features`.

    The state has float64 sums about the mean of the first rows, O((d + k)²) numbers. If they do not
    resolve the smallest threshold to 1e-9, the stream continues with the triangle of a QR
    decomposition. A triangle resolves all thresholds and takes a few times as long. ``route`` says
    which of the two is in use.

    Range: [0, n]; [0, 1] in the scales ``"normalized"`` and ``"relative"``.
    Undefined (``nan``): before the first example.

    Args:
        num_classes: Number of classes :math:`k`.
        thresholds: :math:`\tau` in units of the scale; by default 200 points, as in
            :func:`~theodolite.measures.representation.alignment_curve`.
        rows: ``"unit"`` divides each row by its own length, ``"none"`` takes rows as they are.
        scale: ``"normalized"``: share of the label mass over singular values divided by the root
            of n; ``"absolute"``; ``"relative"``: in units of the largest singular value.
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
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        require_count(1, num_classes=num_classes)
        require_choice(("unit", "none"), rows=rows)
        require_choice(("absolute", "normalized", "relative"), scale=scale)
        if thresholds is not None:
            require_axes(1, thresholds=thresholds)
            if thresholds.is_complex():
                raise DtypeError(f"thresholds: expected real numbers, got {thresholds.dtype}")
            require_nonempty(thresholds=thresholds)
            require_nonnegative(thresholds=thresholds)
        self.num_classes = num_classes
        self.thresholds = thresholds
        self.rows: Literal["unit", "none"] = rows
        self.scale: Scale = scale

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
        require_width(None if seen is None else self._width(seen), features=rows)
        if self.rows == "unit":
            rows = prepare_features(rows).features
        self._keep(self._extended(seen, rows, labels))

    def _extended(self, seen: Sums | None, features: Tensor, labels: Tensor) -> Sums:
        """Statistics with one more batch, as a triangle if a threshold requires it."""
        chunks = [
            torch.cat([double(rows), target_columns(members, self.num_classes)], 1)
            for rows, members in row_chunks(features, labels)
        ]
        if not isinstance(seen, TriangularState):
            total = seen
            for rows in chunks:
                part = Moments.of(rows, None if total is None else total.shift)
                total = part if total is None else total + part
            assert total is not None
            require_finite_sums(total.total, features=features)
            if not self._too_fine(total):
                return total
        # The earlier sums resolve the threshold; this batch is added by QR.
        require_finite(features=features)
        return reduce(TriangularState.extend, chunks, self._triangle(seen, chunks[0]))

    def compute(self) -> Float[Tensor, " t"]:
        """Values at the thresholds."""
        seen = self._statistics()
        if seen is None:
            size = GRID_POINTS if self.thresholds is None else len(self.thresholds)
            return torch.full((size,), torch.nan, dtype=torch.float64, device=self.device)
        projections = self._projections(seen)
        device = projections.singular_values.device
        levels = None if self.thresholds is None else self.thresholds.to(device)
        return curve_from_projections(projections, levels, scale=self.scale).values

    def projections(self) -> LabelProjections:
        """Singular values and projections of the one-hot labels, for areas and theory.

        Raises:
            DomainError: If no example was added.
        """
        seen = self._statistics()
        if seen is None:
            raise DomainError("expected a stream with at least one example; call update first")
        return self._projections(seen)

    def _projections(self, seen: Sums) -> LabelProjections:
        factor = self._factor(seen)
        # A one-hot row has length one. So the squared norm of these columns is the row count.
        count = round(float(factor.targets.square().sum()))
        # The tolerance of the rank grows with the number of examples, not of these rows.
        eps = _EPS * max(count, factor.features.shape[1]) / max(factor.features.shape)
        found = svd_projections(factor.features, factor.targets, eps)
        limit = factor.resolved_above
        return replace(found, count=count, route=_route(seen), resolved_above=limit)

    def _width(self, seen: Sums) -> int:
        """Number of feature columns."""
        size = len(seen.shift if isinstance(seen, Moments) else seen.triangle)
        return size - self.num_classes

    def _factor(self, seen: Sums) -> RowFactor:
        width = self._width(seen)
        if isinstance(seen, Moments):
            return RowFactor.of_moments(seen, width)
        return RowFactor(*seen.split(width))  # the triangle itself, which resolves everything

    def _triangle(self, seen: Sums | None, like: Tensor) -> TriangularState:
        """The same statistics as a triangle."""
        if isinstance(seen, TriangularState):
            return seen
        empty = TriangularState.empty(like.shape[1], like.device)
        if seen is None:
            return empty
        factor = self._factor(seen)
        return empty.extend(torch.cat([factor.features, factor.targets], 1))

    def _too_fine(self, total: Moments) -> bool:
        """Whether the smallest positive threshold is beyond the Gram matrix."""
        width, n, mean = self._width(total), total.count, total.mean
        variances = total.rebase(mean).scatter.diagonal()[:width]
        spread = float(variances.sum().clamp(min=0).sqrt())  # at least any singular value
        level = self._smallest()
        if self.scale == "relative":  # a lower bound of the largest singular value
            level *= float((n * mean[:width].square().sum() + spread**2 / width).sqrt()) / 2**0.5
        elif self.scale == "normalized" or self.thresholds is None:
            level *= float(n) ** 0.5
        return level < GRAM_ACCURATE_ABOVE * spread

    def _smallest(self) -> float:
        """The smallest positive threshold; infinite if there is none."""
        if self.thresholds is None:
            return 1 / (GRID_POINTS - 1)
        positive = self.thresholds[self.thresholds > 0]
        return float(positive.min()) if len(positive) else float("inf")

    def _joined(self, first: Sums, second: Sums) -> Sums:
        """A triangle if one of the two is a triangle."""
        if isinstance(first, Moments) and isinstance(second, Moments):
            return first + second
        like = second.triangle if isinstance(second, TriangularState) else second.scatter
        return self._triangle(first, like) + self._triangle(second, like)

    def _to_tensors(self, statistics: Sums) -> Sequence[Tensor]:
        # A MetricCollection lets metrics of equal states share one update. The threshold makes
        # states differ, because a metric with a finer threshold changes its route earlier.
        marks = [self._smallest(), self.rows == "unit", self.num_classes]
        parts = tuple(vars(statistics).values())
        return *parts, parts[-1].new_tensor(marks)

    def _from_tensors(self, tensors: Sequence[Tensor]) -> Sums:
        *parts, marks = tensors
        if int(marks[-1]) != self.num_classes:
            raise ShapeError(f"expected num_classes={self.num_classes}, got {int(marks[-1])}")
        return TriangularState(*parts) if len(parts) == 1 else Moments(*parts)


def _route(seen: Sums) -> Literal["gram", "qr"]:
    return "qr" if isinstance(seen, TriangularState) else "gram"
