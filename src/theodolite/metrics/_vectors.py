"""Streaming metrics: Omega of vectors within classes and over all pairs, covariances of rows."""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from jaxtyping import Float, Integer, Real
from torch import Tensor

from theodolite.checks import (
    require_axes,
    require_choice,
    require_count,
    require_flag,
    require_labels,
    require_same_length,
)
from theodolite.errors import ShapeError
from theodolite.linalg import Moments, double
from theodolite.measures.gradient import VectorMoments, contrast_from_sums, mean_over_classes
from theodolite.metrics._streaming import (
    StreamingMetric,
    floating,
    require_finite_sums,
    require_tensors,
    require_width,
)

Part = Literal["class", "in_class", "overall", "contrast"]
_PARTS = ("class", "in_class", "overall", "contrast")


class VectorAlignment(StreamingMetric[VectorMoments]):
    r"""Alignment of a stream of vectors (features, gradients) per class.

    .. math:: \Omega_c = \frac{n_c\,(\|\sum_{i \in c} v_i\|^2 - \sum_{i \in c}\|v_i\|^2)}
              {(n_c - 1)\,(\sum_{i \in c}\|v_i\|)^2}

    The state takes O(k d) numbers: sums of vectors, norms and squared norms per class.

    Range: [-1, 1] for two or more vectors per class.
    Undefined (``nan``): classes with fewer than two vectors, or of zeros only.

    Args:
        num_classes: Number of classes :math:`k`.
        part: ``"class"`` gives the k values, ``"in_class"`` their mean over the classes where they
            are defined. ``"overall"`` is the alignment of all pairs of vectors, ``"contrast"`` is
            in-class minus overall.
        zero: Value of a class, or of the whole stream, whose vectors are all zero, ``"nan"`` or
            ``"zero"``.
        kwargs: Keywords of ``torchmetrics.Metric``.

    Examples:
        >>> metric = VectorAlignment(num_classes=2, part="contrast")
        >>> metric.update(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1]))
        >>> metric.update(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1]))
        >>> round(metric.compute().item(), 4)
        0.6667

    References:
        [mehta2021], Eqs. (3), (4) and (6).
    """

    higher_is_better = True

    def __init__(
        self, num_classes: int, part: Part = "class", *, zero: str = "nan", **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        require_count(1, num_classes=num_classes)
        require_choice(_PARTS, part=part)
        require_choice(("nan", "zero"), zero=zero)
        self.num_classes = num_classes
        self.part = part
        self.zero = zero

    def update(self, vectors: Real[Tensor, "n *d"], labels: Integer[Tensor, " n"]) -> None:
        """Add some vectors, flattened after axis 0, with their classes; the batch may be empty."""
        require_tensors(vectors=vectors, labels=labels)
        require_same_length(vectors=vectors, labels=labels)
        if vectors.ndim < 2:
            raise ShapeError(f"vectors: expected shape (n, d), got {tuple(vectors.shape)}")
        if len(vectors) == 0:
            return
        require_labels(labels, self.num_classes)
        rows = floating(vectors).flatten(1)
        seen = self._statistics()
        require_width(None if seen is None else seen.sums.shape[1], vectors=rows)
        batch = VectorMoments.of(double(rows), labels, self.num_classes)
        self._keep(batch if seen is None else seen + batch)

    def compute(self) -> Float[Tensor, "..."]:
        """The chosen part: k values or one value."""
        seen = self._statistics()
        if seen is None:
            shape = (self.num_classes,) if self.part == "class" else ()
            return torch.full(shape, torch.nan, dtype=torch.float64, device=self.device)
        classes = seen.set_sums().alignment(self.zero)
        if self.part == "class":
            return classes
        if self.part == "in_class":
            return mean_over_classes(classes)
        overall = seen.pooled().set_sums()[0]
        if self.part == "overall":
            return overall.alignment(self.zero)
        return contrast_from_sums(seen.set_sums(), overall, self.zero)

    def _from_tensors(self, tensors: Sequence[Tensor]) -> VectorMoments:
        return VectorMoments(*tensors)


class CovarianceState(StreamingMetric[Moments]):
    r"""Covariance matrix of a stream of rows.

    .. math:: \frac1{n - \mathrm{ddof}} \sum_i (x_i - \bar x)(x_i - \bar x)^\top

    The state takes O(d²) numbers: raw sums about the mean of the first batch, so that a large mean
    costs no digits.
    Undefined (``nan``): before the first row, or with ``n <= ddof``.

    Args:
        centered: Whether to subtract the mean; False gives the second moment about zero.
        ddof: Number that is subtracted from the number of rows.
        kwargs: Keywords of ``torchmetrics.Metric``.

    Examples:
        >>> metric = CovarianceState()
        >>> metric.update(torch.tensor([[1.0, 0.0], [3.0, 0.0]]))
        >>> metric.update(torch.tensor([[2.0, 3.0]]))
        >>> metric.compute().tolist()
        [[0.6666666666666666, 0.0], [0.0, 2.0]]
    """

    higher_is_better = None

    def __init__(self, *, centered: bool = True, ddof: int = 0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        require_count(0, ddof=ddof)
        require_flag(centered=centered)
        self.centered = centered
        self.ddof = ddof

    def update(self, rows: Real[Tensor, "n d"]) -> None:
        """Add some rows; the batch may be empty."""
        require_tensors(rows=rows)
        require_axes(2, rows=rows)
        if len(rows) == 0:
            return
        seen = self._statistics()
        shift = None if seen is None else seen.shift
        require_width(None if shift is None else len(shift), rows=rows)
        batch = Moments.of(floating(rows), shift)
        require_finite_sums(batch.total, rows=rows)
        self._keep(batch if seen is None else seen + batch)

    def compute(self) -> Float[Tensor, "..."]:
        """The covariance, d x d; a single nan before the first row."""
        seen = self._statistics()
        if seen is None:
            return torch.tensor(torch.nan, dtype=torch.float64, device=self.device)
        if seen.count <= self.ddof:
            return torch.full_like(seen.scatter, torch.nan)
        return seen.covariance(centered=self.centered, ddof=self.ddof)

    def _from_tensors(self, tensors: Sequence[Tensor]) -> Moments:
        return Moments(*tensors)
