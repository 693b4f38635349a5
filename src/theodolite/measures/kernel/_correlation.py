"""Correlations over runs: Pearson's and Spearman's, with p-values and the threshold that counts."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from scipy.special import betainc, stdtrit
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
    threshold, eps = correlation_threshold(len(rows), level), eps_of(rows, across)
    products = _columns(rows, method, eps).T @ _columns(across, method, eps)
    coefficients = products.clamp(-1, 1)
    # Student's t of a correlation r has m - 2 degrees of freedom: r^2 follows a beta distribution.
    r, freedom = coefficients.cpu().numpy(), len(rows) - 2
    tails = betainc(freedom / 2, 0.5, (1 - r) * (1 + r)) if freedom else np.full_like(r, np.nan)
    p_values = torch.from_numpy(tails).to(coefficients)
    return CorrelationTable(coefficients, p_values, threshold, len(rows))


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
    t = float(stdtrit(freedom, 1 - level / 2))
    return t / float(freedom + t * t) ** 0.5


def _columns(values: Float[Tensor, "m r"], method: str, eps: float) -> Float[Tensor, "m r"]:
    """Centred variables of unit length, of ranks for Spearman's; nan where all is rounding."""
    data = double(values.detach())
    peaks = data.abs().amax(0)
    scaled = data / torch.where(peaks > 0, peaks, 1.0)
    varies = scaled.std(0, correction=0) > 8 * eps * scaled.square().mean(0).sqrt()
    if method == "spearman":
        from scipy import stats  # a second to import, in every process that imports measures

        scaled = torch.from_numpy(stats.rankdata(data.cpu().numpy(), axis=0)).to(data.device)
    centered = scaled - scaled.mean(0)
    return torch.where(varies, centered / torch.linalg.vector_norm(centered, dim=0), torch.nan)
