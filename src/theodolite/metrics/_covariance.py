"""Mean and covariance of rows, streamed."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Real
from torch import Tensor

from theodolite.checks import require_axes, require_count
from theodolite.linalg import Moments
from theodolite.metrics._streaming import (
    StreamingMetric,
    floating,
    require_finite_sums,
    require_tensors,
    require_width,
)

__all__ = ["CovarianceState"]


class CovarianceState(StreamingMetric[Moments]):
    r"""Covariance matrix of a stream of rows.

    .. math:: \frac1{n - \mathrm{ddof}} \sum_i (x_i - \bar x)(x_i - \bar x)^\top

    State: O(d²), raw sums about the mean of the first batch, so that a large mean costs no digits.
    Undefined (``nan``): before the first row, or with ``n <= ddof``.

    Args:
        centered: About the mean; False for the second moment about zero.
        ddof: Subtracted from the number of rows.
        kwargs: Keywords of ``torchmetrics.Metric``.

    Example:
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
        self.centered = centered
        self.ddof = ddof

    def update(self, rows: Real[Tensor, "n d"]) -> None:
        """Add some rows; none at all is allowed."""
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

    def _to_tensors(self, statistics: Moments) -> Sequence[Tensor]:
        return statistics.count, statistics.shift, statistics.total, statistics.scatter

    def _from_tensors(self, tensors: Sequence[Tensor]) -> Moments:
        return Moments(*tensors)
