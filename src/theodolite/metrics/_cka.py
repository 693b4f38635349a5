"""Centred kernel alignment over a whole data set, exact, from sums that never hold the data."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import torch
from jaxtyping import Float, Integer, Real
from torch import Tensor

from theodolite.checks import require_axes, require_count, require_labels, require_same_length
from theodolite.linalg import HsicSums
from theodolite.metrics._cka_sums import CkaSums, label_sums, pair_sums, target_sums
from theodolite.metrics._streaming import (
    StreamingMetric,
    floating,
    require_finite_sums,
    require_tensors,
    require_width,
)

__all__ = ["PairCKA", "TargetCKA"]

_FIELDS = len(fields(HsicSums))


class _StreamingCKA(StreamingMetric[CkaSums]):
    """What both metrics share: the estimator and the layout of the state."""

    higher_is_better = True

    def __init__(self, debiased: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.debiased = debiased

    def _undefined(self) -> Tensor:
        return torch.tensor(torch.nan, dtype=torch.float64, device=self.device)

    def _absorb(self, seen: CkaSums | None, batch: CkaSums) -> None:
        self._keep(batch if seen is None else seen + batch)

    def _to_tensors(self, statistics: CkaSums) -> Sequence[Tensor]:
        sums = (statistics.cross, *statistics.own)
        tensors = [getattr(part, field.name) for part in sums for field in fields(part)]
        return [*tensors, statistics.eps]

    def _from_tensors(self, tensors: Sequence[Tensor]) -> CkaSums:
        *sums, eps = tensors
        parts = [HsicSums(*sums[i : i + _FIELDS]) for i in range(0, len(sums), _FIELDS)]
        return CkaSums(parts[0], tuple(parts[1:]), eps)


class TargetCKA(_StreamingCKA):
    r"""Centred kernel alignment of a stream of features with its class labels.

    .. math:: \frac{\langle HKH, HLH\rangle}{\|HKH\|_F\,\|HLH\|_F},\qquad
              K = FF^\top,\; L = YY^\top

    or its debiased estimator. Exact for the whole stream: the same value for any batches, order
    and number of processes, not an average over batches. State: O(d² + k d).

    Range: [-1, 1]; biased: [0, 1].
    Undefined (``nan``): features constant up to rounding; one class; debiased: fewer than four
        examples, or one example per class.

    Args:
        num_classes: Number of classes :math:`k`.
        debiased: The debiased estimator, or the plug-in one.
        kwargs: Keywords of ``torchmetrics.Metric``.

    Example:
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
        """Add some examples; none at all is allowed."""
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
        self._absorb(seen, batch)

    def compute(self) -> Float[Tensor, ""]:
        """CKA of all examples seen."""
        seen = self._statistics()
        if seen is None:
            return self._undefined()
        counts = seen.cross.total_b
        constant = seen.cross.vanishes(float(seen.eps))[0]
        defined = torch.stack([~constant, (counts > 0).sum() > 1])
        return seen.cka(label_sums(counts), defined, self.debiased)


class PairCKA(_StreamingCKA):
    r"""Centred kernel alignment of two streams of features of the same examples.

    .. math:: \frac{\langle HKH, HLH\rangle}{\|HKH\|_F\,\|HLH\|_F},\qquad
              K = FF^\top,\; L = GG^\top

    or its debiased estimator. Exact for the whole stream: the same value for any batches, order
    and number of processes, not an average over batches. State: O((d + e)²).

    Range: [-1, 1]; biased: [0, 1].
    Undefined (``nan``): features constant up to rounding; debiased: fewer than four examples, or
        all pairs of examples equally similar.

    Args:
        debiased: The debiased estimator, or the plug-in one.
        kwargs: Keywords of ``torchmetrics.Metric``.

    Example:
        >>> metric = PairCKA(debiased=False)
        >>> metric.update(torch.tensor([[1.0], [2.0]]), torch.tensor([[1.0], [3.0]]))
        >>> metric.update(torch.tensor([[3.0]]), torch.tensor([[2.0]]))
        >>> round(metric.compute().item(), 4)
        0.25

    References:
        [canatar2022], Sec. III; [kornblith2019], Sec. 3; [song2012], Eq. (5).
    """

    def update(self, features_a: Real[Tensor, "n d"], features_b: Real[Tensor, "n e"]) -> None:
        """Add some examples; none at all is allowed."""
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
        self._absorb(seen, batch)

    def compute(self) -> Float[Tensor, ""]:
        """CKA of all examples seen."""
        seen = self._statistics()
        if seen is None:
            return self._undefined()
        defined = ~seen.cross.vanishes(float(seen.eps))
        return seen.cka(seen.own[1], defined, self.debiased)
