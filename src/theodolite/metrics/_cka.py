"""Exact centred kernel alignment over a whole data set, from sums of fixed size."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Integer, Real
from torch import Tensor

from theodolite.checks import (
    require_axes,
    require_count,
    require_flag,
    require_labels,
    require_same_length,
    require_same_shape,
)
from theodolite.linalg import HsicSums, double, eps_of, row_chunks
from theodolite.measures.kernel import cka_from_products
from theodolite.metrics._streaming import (
    StreamingMetric,
    floating,
    require_finite_sums,
    require_tensors,
    require_width,
)

_FIELDS = len(fields(HsicSums))


@dataclass(frozen=True)
class CkaSums:
    """Sums over one pair of feature sets and over each with itself; rounding of their dtype."""

    cross: HsicSums
    own: tuple[HsicSums, ...]  # of the first set, and of the second unless it has labels
    eps: Float[Tensor, ""]

    def __add__(self, other: "CkaSums") -> "CkaSums":
        """Sums of both groups of examples together."""
        require_same_shape(left=self.cross.cross, right=other.cross.cross)
        own = tuple(mine + yours for mine, yours in zip(self.own, other.own, strict=True))
        return CkaSums(self.cross + other.cross, own, torch.maximum(self.eps, other.eps))

    def cka(self, second: HsicSums, defined: Tensor, debiased: bool) -> Tensor:
        """The ratio; nan unless both sides are defined."""
        eps = float(self.eps)
        products = HsicSums.products(self.cross, self.own[0], second)
        return cka_from_products(products, debiased=debiased, eps=eps, defined=defined)[0, 1]


def target_sums(
    features: Float[Tensor, "n d"],
    labels: Integer[Tensor, " n"],
    zero: Float[Tensor, " k"],
    shift: Float[Tensor, " d"] | None,
) -> CkaSums:
    """Sums of features with one-hot labels and with themselves, by default about the mean.

    ``zero`` is the shift of the labels. It is always the same tensor, so that batches add up.
    """
    center = double(features.double().mean(0) if shift is None else shift)
    parts = []
    for chunk, classes in row_chunks(features, labels.long()):
        side = _Side.of(chunk, center)
        per_class = center.new_zeros(len(zero), len(center)).index_add(0, classes, side.rows)
        columns = torch.stack([side.squares, torch.ones_like(side.squares)], dim=1)
        squares, counts = columns.new_zeros(len(zero), 2).index_add(0, classes, columns).mT
        own = side.with_itself()
        n, total, energy = own.count, own.total_a, own.square_a  # every label has norm one
        cross = HsicSums(
            n, center, zero, total, counts, per_class.mT, total, squares,
            energy, energy, n,
        )  # fmt: skip
        parts.append(CkaSums(cross, (own,), _rounding(features)))
    return sum(parts[1:], start=parts[0])


def pair_sums(
    features_a: Float[Tensor, "n d"],
    features_b: Float[Tensor, "n e"],
    shifts: tuple[Tensor | None, Tensor | None],
) -> CkaSums:
    """Sums of two sets of features with each other and with themselves."""
    centers = [
        double(features.double().mean(0) if shift is None else shift)
        for features, shift in zip((features_a, features_b), shifts, strict=True)
    ]
    parts = []
    for chunks in row_chunks(features_a, features_b):
        a, b = (_Side.of(rows, center) for rows, center in zip(chunks, centers, strict=True))
        own = a.with_itself(), b.with_itself()
        cross = HsicSums(
            own[0].count, a.shift, b.shift, own[0].total_a, own[1].total_a, a.rows.mT @ b.rows,
            a.rows.mT @ b.squares, b.rows.mT @ a.squares, a.squares @ b.squares,
            own[0].square_a, own[1].square_a,
        )  # fmt: skip
        parts.append(CkaSums(cross, own, _rounding(features_a, features_b)))
    return sum(parts[1:], start=parts[0])


class _Side(NamedTuple):
    """Rows about their shift, and the square of each row's norm."""

    rows: Tensor
    squares: Tensor
    shift: Tensor

    @classmethod
    def of(cls, rows: Tensor, shift: Tensor) -> "_Side":
        offset = double(rows) - shift
        return cls(offset, torch.linalg.vector_norm(offset, dim=1).square(), shift)

    def with_itself(self) -> HsicSums:
        d = self.squares
        # One thin product reads the rows once for both sums.
        weighted, total = (self.rows.mT @ torch.stack([d, torch.ones_like(d)], dim=1)).mT
        count = d.new_full((), float(len(d)))
        return HsicSums(
            count, self.shift, self.shift, total, total, self.rows.mT @ self.rows, weighted,
            weighted, d @ d, d.sum(), d.sum(),
        )  # fmt: skip


def label_sums(counts: Tensor) -> HsicSums:
    """Sums of one-hot labels, whose rows all have norm one, from the class counts alone."""
    n, zero = counts.sum(), torch.zeros_like(counts)
    return HsicSums(n, zero, zero, counts, counts, counts.diag(), counts, counts, n, n, n)


def _rounding(*features: Tensor) -> Tensor:
    """Rounding unit of the input with the fewest digits; half types count as float32."""
    single = torch.finfo(torch.float32).eps
    like = double(features[0][:0])
    return like.new_tensor(min(single, eps_of(*features)))


class _StreamingCKA(StreamingMetric[CkaSums]):
    """The common parts of both metrics: the estimator and the layout of the state."""

    higher_is_better = True

    def __init__(self, debiased: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        require_flag(debiased=debiased)
        self.debiased = debiased

    def _undefined(self) -> Tensor:
        return torch.tensor(torch.nan, dtype=torch.float64, device=self.device)

    def _to_tensors(self, statistics: CkaSums) -> Sequence[Tensor]:
        sums = (statistics.cross, *statistics.own)
        tensors = [getattr(part, field.name) for part in sums for field in fields(part)]
        return [*tensors, statistics.eps]

    def _from_tensors(self, tensors: Sequence[Tensor]) -> CkaSums:
        *sums, eps = tensors
        parts = [HsicSums(*sums[i : i + _FIELDS]) for i in range(0, len(sums), _FIELDS)]
        return CkaSums(parts[0], tuple(parts[1:]), eps)


class TargetCKA(_StreamingCKA):
    r"""CKA to labels of a stream of features: centred kernel alignment with the class labels.

    .. math:: \frac{\langle HKH, HLH\rangle}{\|HKH\|_F\,\|HLH\|_F} \quad\text{(biased)},\qquad
              K = FF^\top,\; L = YY^\top,\; H = I - \tfrac1n 11^\top

    The default is the debiased estimator. The value is exact for the whole stream, not an average
    over batches. It is the same for any batches, order and number of processes. The state takes
    O(d² + k d) numbers.

    Range: [-1, 1]; biased: [0, 1].
    Undefined (``nan``): features constant up to rounding; one class; debiased: fewer than four
        examples, or one example per class.

    Args:
        num_classes: Number of classes :math:`k`.
        debiased: Use the debiased estimator; False uses the plug-in form.
        kwargs: Keywords of ``torchmetrics.Metric``.

    Examples:
        >>> metric = TargetCKA(num_classes=2, debiased=False)
        >>> metric.update(torch.tensor([[0.0], [1.0]]), torch.tensor([0, 0]))
        >>> metric.update(torch.tensor([[4.0], [5.0]]), torch.tensor([1, 1]))
        >>> round(metric.compute().item(), 4)
        0.9412

    References:
        [canatar2022], Sec. III; [kornblith2019], Eq. (3); [song2012], Eq. (5).
    """

    def __init__(self, num_classes: int, debiased: bool = True, **kwargs: Any) -> None:
        super().__init__(debiased, **kwargs)
        require_count(1, num_classes=num_classes)
        self.num_classes = num_classes

    def update(self, features: Real[Tensor, "n d"], labels: Integer[Tensor, " n"]) -> None:
        """Add some examples; the batch may be empty."""
        require_tensors(features=features, labels=labels)
        require_axes(2, features=features)
        require_same_length(features=features, labels=labels)
        if len(features) == 0:
            return
        require_labels(labels, self.num_classes)
        seen = self._statistics()
        shift = None if seen is None else seen.cross.shift_a
        zero = features.new_zeros(self.num_classes, dtype=torch.float64)
        require_width(None if shift is None else len(shift), features=features)
        batch = target_sums(
            floating(features), labels, zero if seen is None else seen.cross.shift_b, shift
        )
        require_finite_sums(batch.cross.total_a, features=features)
        self._keep(batch if seen is None else seen + batch)

    def compute(self) -> Float[Tensor, ""]:
        """CKA of all examples so far."""
        seen = self._statistics()
        if seen is None:
            return self._undefined()
        counts = seen.cross.total_b
        constant = seen.cross.vanishes(float(seen.eps))[0]
        defined = torch.stack([~constant, (counts > 0).sum() > 1])
        return seen.cka(label_sums(counts), defined, self.debiased)


class PairCKA(_StreamingCKA):
    r"""Centred kernel alignment of two streams of features of the same examples.

    .. math:: \frac{\langle HKH, HLH\rangle}{\|HKH\|_F\,\|HLH\|_F} \quad\text{(biased)},\qquad
              K = FF^\top,\; L = GG^\top,\; H = I - \tfrac1n 11^\top

    The default is the debiased estimator. The value is exact for the whole stream, not an average
    over batches. It is the same for any batches, order and number of processes. The state takes
    O((d + e)²) numbers.

    Range: [-1, 1]; biased: [0, 1].
    Undefined (``nan``): features constant up to rounding; debiased: fewer than four examples, or
        all pairs of examples equally similar.

    Args:
        debiased: Use the debiased estimator; False uses the plug-in form.
        kwargs: Keywords of ``torchmetrics.Metric``.

    Examples:
        >>> metric = PairCKA(debiased=False)
        >>> metric.update(torch.tensor([[1.0], [2.0]]), torch.tensor([[1.0], [3.0]]))
        >>> metric.update(torch.tensor([[3.0]]), torch.tensor([[2.0]]))
        >>> round(metric.compute().item(), 4)
        0.25

    References:
        [canatar2022], Sec. III; [kornblith2019], Sec. 3; [song2012], Eq. (5).
    """

    def update(self, features_a: Real[Tensor, "n d"], features_b: Real[Tensor, "n e"]) -> None:
        """Add some examples; the batch may be empty."""
        require_tensors(features_a=features_a, features_b=features_b)
        require_axes(2, features_a=features_a, features_b=features_b)
        require_same_length(features_a=features_a, features_b=features_b)
        if len(features_a) == 0:
            return
        seen = self._statistics()
        shifts = (None, None) if seen is None else (seen.cross.shift_a, seen.cross.shift_b)
        width_a, width_b = (None if shift is None else len(shift) for shift in shifts)
        require_width(width_a, features_a=features_a)
        require_width(width_b, features_b=features_b)
        batch = pair_sums(floating(features_a), floating(features_b), shifts)
        require_finite_sums(batch.cross.total_a, features_a=features_a)
        require_finite_sums(batch.cross.total_b, features_b=features_b)
        self._keep(batch if seen is None else seen + batch)

    def compute(self) -> Float[Tensor, ""]:
        """CKA of all examples so far."""
        seen = self._statistics()
        if seen is None:
            return self._undefined()
        defined = ~seen.cross.vanishes(float(seen.eps))
        return seen.cka(seen.own[1], defined, self.debiased)
