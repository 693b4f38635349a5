"""Correlations over runs: Pearson's and Spearman's, with p-values and the threshold that counts."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from theodolite.checks import (
    require_axes,
    require_between,
    require_choice,
    require_count,
    require_finite,
    require_nonempty,
    require_same_length,
)
from theodolite.errors import ShapeError
from theodolite.linalg import array_function, double, eps_of, prints_shapes


@prints_shapes
@dataclass(frozen=True)
class CorrelationTable:
    """Correlation of every row variable with every column variable over the same runs."""

    coefficients: Float[Tensor, "r c"]
    p_values: Float[Tensor, "r c"]  # two-sided, no correlation as the null; nan below three runs
    threshold: float  # smallest significant |r| at the level
    runs: int


@array_function
def correlation_table(
    rows: Float[Tensor, "m r"],
    columns: Float[Tensor, "m c"] | None = None,
    method: Literal["pearson", "spearman"] = "pearson",
    level: float = 0.05,
) -> CorrelationTable:
    r"""Correlations of some quantities of many runs with others.

    .. math:: r = \frac{\sum_i (u_i - \bar u)(v_i - \bar v)}
              {\sqrt{\sum_i (u_i - \bar u)^2\,\sum_i (v_i - \bar v)^2}}

    Spearman's is the same of the ranks, equal values sharing the mean of their ranks. Binary
    factors may be coded by any two numbers. P-values are those of Student's t with m - 2 degrees of
    freedom.

    Range: [-1, 1].
    Invariant to: shifting and positive scaling of any variable; a permutation of runs.
    Undefined (``nan``): entries of a constant variable.

    Args:
        rows: one row per run, one column per variable: the rows of the table.
        columns: the variables across; ``rows`` again by default.
        method: Pearson's, or Spearman's rank correlation.
        level: two-sided significance level of the threshold.

    Raises:
        ShapeError: If there are fewer than two runs, or the two sets differ in runs.
        DomainError: If an entry is not finite, or the level is outside (0, 1).

    Example:
        >>> runs = torch.tensor([[1.0, 1.0], [2.0, 3.0], [3.0, 2.0]])
        >>> round(correlation_table(runs).coefficients[0, 1].item(), 4)
        0.5

    References:
        [canatar2022], Table I.
    """
    across = rows if columns is None else columns
    require_axes(2, rows=rows, columns=across)
    require_nonempty(rows=rows, columns=across)
    require_same_length(rows=rows, columns=across)
    require_finite(rows=rows, columns=across)
    require_choice(("pearson", "spearman"), method=method)
    if len(rows) < 2:
        raise ShapeError(f"rows: expected at least two runs, got {len(rows)}; add runs")
    coefficients, p_values = _pairwise(
        *(_columns(side, method, eps_of(rows, across)) for side in (rows, across))
    )
    threshold, device = correlation_threshold(len(rows), level), double(rows[:0]).device
    return CorrelationTable(coefficients.to(device), p_values.to(device), threshold, len(rows))


def correlation_threshold(runs: int, level: float = 0.05) -> float:
    r"""Smallest absolute correlation over so many runs that is significant, two-sided.

    .. math:: |r| > \frac{t}{\sqrt{m - 2 + t^2}}

    with :math:`t` the quantile of Student's distribution with m - 2 degrees of freedom. ``nan``
    for two runs, which always correlate perfectly.

    Args:
        runs: :math:`m`.
        level: significance level.

    Raises:
        DomainError: If there are fewer than two runs, or the level is outside (0, 1).

    Example:
        >>> round(correlation_threshold(36), 3), round(correlation_threshold(36, level=0.01), 3)
        (0.329, 0.424)

    References:
        [canatar2022], Table I; the threshold is ours.
    """
    require_count(2, runs=runs)
    require_between(0.0, 1.0, open_low=True, open_high=True, level=level)
    freedom = runs - 2
    if freedom == 0:
        return float("nan")
    from scipy import stats  # a second to import, in every process that imports measures

    t = float(stats.t.ppf(1 - level / 2, freedom))
    return t / float(freedom + t * t) ** 0.5


def _columns(values: Float[Tensor, "m r"], method: str, eps: float) -> list[np.ndarray | None]:
    """One array per variable, its ranks for Spearman's; None for what varies by rounding alone."""
    from scipy import stats

    data = double(values.detach()).cpu().numpy()
    peaks = np.abs(data).max(0)
    scaled = data / np.where(peaks > 0, peaks, 1.0)
    varies = scaled.std(0) > 8 * eps * np.sqrt((scaled**2).mean(0))
    ready = stats.rankdata(data, axis=0) if method == "spearman" else scaled
    return [column if kept else None for column, kept in zip(ready.T, varies, strict=True)]


def _pairwise(
    rows: list[np.ndarray | None], columns: list[np.ndarray | None]
) -> tuple[Float[Tensor, "r c"], Float[Tensor, "r c"]]:
    from scipy import stats

    coefficients = torch.full((len(rows), len(columns)), torch.nan, dtype=torch.float64)
    p_values = coefficients.clone()
    for i, u in enumerate(rows):
        for j, v in enumerate(columns):
            if u is not None and v is not None:
                found = stats.pearsonr(u, v)
                coefficients[i, j] = found.statistic
                p_values[i, j] = found.pvalue if len(u) > 2 else torch.nan
    return coefficients, p_values
