"""Correlations, and 95 % intervals of means, shares and correlations."""

import math
from collections.abc import Callable
from functools import cache

import numpy as np
from scipy.special import betaincinv, stdtrit

from theodolite_papers.ledger._results import Numbers

__all__ = [
    "correlation_interval",
    "correlation_threshold",
    "fisher_interval",
    "pass_rate",
    "pearson",
    "spearman",
    "student_interval",
]

_ROUNDING = (
    8 * np.finfo(np.float64).eps
)  # smaller variations, in shares of the largest number, are 0
_LEVEL = 0.05  # of intervals and bounds


def pass_rate(passed: int, of: int) -> tuple[float, float]:
    """Exact (Clopper-Pearson) 95 % bounds on the share of seeds on which a claim holds.

    One-sided where all or none passed.

    Example:
        >>> [round(bound, 2) for bound in pass_rate(5, 5)], round(pass_rate(2, 2)[0], 2)
        ([0.55, 1.0], 0.22)
    """
    level = _LEVEL if passed in (0, of) else _LEVEL / 2
    low = 0.0 if passed == 0 else float(betaincinv(passed, of - passed + 1, level))
    high = 1.0 if passed == of else float(betaincinv(passed + 1, of - passed, 1 - level))
    return low, high


def student_interval(mean: float, error: float, count: int) -> tuple[float, float]:
    """95 % interval of a mean with its standard error; nan for fewer than two values."""
    if count < 2 or not math.isfinite(error):
        return math.nan, math.nan
    half = float(stdtrit(count - 1, 1 - _LEVEL / 2)) * error
    return mean - half, mean + half


def spearman(first: Numbers, second: Numbers) -> float:
    """Rank correlation of the finite pairs, equal values sharing the mean of their ranks.

    nan for fewer than two pairs or a constant list.
    """
    from scipy.stats import rankdata  # a second to import

    return _correlation(first, second, rankdata)


def pearson(first: Numbers, second: Numbers) -> float:
    """Linear correlation of the finite pairs; nan for fewer than two or a constant list."""
    return _correlation(first, second, np.asarray)


def _correlation(
    first: Numbers, second: Numbers, read: Callable[[np.ndarray], np.ndarray]
) -> float:
    pair = np.array([first, second], dtype=np.float64)
    a, b = pair[:, np.isfinite(pair).all(0)]
    if len(a) < 2 or any(np.ptp(v) <= _ROUNDING * np.abs(v).max() for v in (a, b)):
        return math.nan
    return float(np.corrcoef(read(a), read(b))[0, 1])


def fisher_interval(correlation: float, count: int, inflation: float = 1.0) -> tuple[float, float]:
    """95 % interval of a correlation over so many pairs; ranks need an inflation of 1.03.

    Example:
        >>> [round(end, 3) for end in fisher_interval(0.87, 36)]
        [0.758, 0.932]
    """
    half = 1.96 * inflation / math.sqrt(count - 3) if count > 3 else math.inf
    centre = math.atanh(min(max(correlation, -0.999999), 0.999999))
    return math.tanh(centre - half), math.tanh(centre + half)


def correlation_threshold(runs: int, level: float = 0.05) -> float:
    r"""Smallest absolute correlation over so many runs that is significant, two-sided.

    .. math:: |r| > \frac{t}{\sqrt{m - 2 + t^2}}

    with :math:`t` the quantile of Student's distribution with m - 2 degrees of freedom; nan for
    two runs, which always correlate perfectly.

    Example:
        >>> round(correlation_threshold(36), 3), round(correlation_threshold(36, level=0.01), 3)
        (0.329, 0.424)
    """
    t = float(stdtrit(runs - 2, 1 - level / 2)) if runs > 2 else math.nan
    return t / math.sqrt(runs - 2 + t * t)


@cache
def _draws_of(groups: int, draws: int) -> np.ndarray:
    generator = np.random.default_rng(0)
    return np.array([generator.choice(groups, groups) for _ in range(draws)])


def correlation_interval(
    first: np.ndarray, second: np.ndarray, groups: np.ndarray, draws: int = 1000
) -> tuple[float, float, float]:
    """Linear correlation with a 95 % bootstrap interval; whole groups are drawn.

    Networks of one group (a seed) share their data and their first draw, so that they are not
    independent. One group has no interval: its ends are nan.
    """
    names = np.unique(groups)
    if len(names) < 2:
        return pearson(first, second), math.nan, math.nan
    keep = np.isfinite(first) & np.isfinite(second)
    x, y, member = first[keep], second[keep], groups[keep][:, None] == names
    # Sums of every group for the correlation; a draw adds the sums of its groups.
    moments = member.T.astype(float) @ np.stack([np.ones_like(x), x, y, x * x, y * y, x * y], 1)
    n, sx, sy, sxx, syy, sxy = moments[_draws_of(len(names), draws)].sum(1).T
    with np.errstate(invalid="ignore", divide="ignore"):
        found = (n * sxy - sx * sy) / np.sqrt((n * sxx - sx**2) * (n * syy - sy**2))
    low, high = np.nanquantile(found, [0.025, 0.975])
    return pearson(first, second), float(low), float(high)
