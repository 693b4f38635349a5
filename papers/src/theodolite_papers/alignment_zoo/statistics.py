"""Statistics of how well one number predicts another over many networks.

Rank correlation over all networks says little if one factor, such as label noise, changes both
numbers. So every number is judged in three more ways: where a single factor changes (granulated
tau, [jiang2020]), given the values of any two factors (conditional mutual information), and in the
worst of many environments (sign errors, [dziugaite2020]). Networks of a group share their data and
their seed, so intervals come from whole groups drawn with replacement.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

__all__ = [
    "area_under_curve",
    "bootstrap_weights",
    "conditional_information",
    "coverage_curve",
    "granulated_tau",
    "interval",
    "kendall_tau",
    "sign_errors",
    "smallest_information",
]

Weights = np.ndarray | None


def kendall_tau(first: np.ndarray, second: np.ndarray, weights: Weights = None) -> np.ndarray:
    r"""Kendall's rank correlation, tau-b, of the examples where both numbers are finite.

    .. math:: \tau = \frac{\sum_{i<j} w_i w_j\, s_{ij} t_{ij}}
              {\sqrt{\sum_{i<j} w_i w_j s_{ij}^2 \sum_{i<j} w_i w_j t_{ij}^2}},
              \qquad s_{ij} = \mathrm{sgn}(x_i - x_j),\; t_{ij} = \mathrm{sgn}(y_i - y_j)

    Args:
        first: :math:`x`, a number of every network.
        second: :math:`y`, another.
        weights: (draws, n) how often each network was drawn; None for once each.

    Returns:
        One value for each draw, or a single one; nan where all pairs are ties.

    Example:
        >>> float(kendall_tau(np.array([1.0, 2.0, 3.0]), np.array([1.0, 3.0, 2.0])).round(4))
        0.3333

    References:
        [jiang2020], rank correlation.
    """
    keep = np.isfinite(first) & np.isfinite(second)
    s, t = _signs(first[keep]), _signs(second[keep])
    w = np.ones(int(keep.sum())) if weights is None else weights[..., keep]
    agreement, s_pairs, t_pairs = (_weighed(w, pairs) for pairs in (s * t, s * s, t * t))
    return _ratio(agreement, np.sqrt(s_pairs * t_pairs))


def _signs(values: np.ndarray) -> np.ndarray:
    return np.sign(values[:, None] - values[None, :])


def _weighed(weights: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    return np.asarray(((weights @ pairs) * weights).sum(-1))


def _ratio(above: Any, below: Any) -> np.ndarray:
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(below > 0, np.divide(above, below), np.nan))


def granulated_tau(
    first: np.ndarray, second: np.ndarray, stars: Mapping[str, Sequence[np.ndarray]]
) -> dict[str, float]:
    r"""Mean rank correlation over sets of networks that differ in one factor alone.

    .. math:: \psi_f = \frac{1}{|\mathcal S_f|} \sum_{S \in \mathcal S_f}
              \frac{\sum_{i<j \in S} s_{ij} t_{ij}}{\sum_{i<j \in S} t_{ij}^2},
              \qquad \Psi = \frac1F \sum_f \psi_f

    Ties of the first number count as pairs that it says nothing about.

    Args:
        first: a number of every network.
        second: another.
        stars: factor -> sets of positions; the networks of a set differ in that factor alone.

    Returns:
        Factor -> :math:`\psi_f`, nan where no set has two values of the second number.

    Example:
        >>> x, y = np.array([0.0, 1.0, 5.0, 4.0]), np.array([0.0, 1.0, 0.0, 1.0])
        >>> granulated_tau(x, y, {"depth": [np.array([0, 1]), np.array([2, 3])]})
        {'depth': 0.0}

    References:
        [jiang2020], granulated coefficient.
    """
    found = {}
    for factor, sets in stars.items():
        places = [(k, *pair) for k, rows in enumerate(sets) for pair in combinations(rows, 2)]
        member, i, j = np.array(places, dtype=np.int64).reshape(-1, 3).T
        s, t = np.sign(first[i] - first[j]), np.sign(second[i] - second[j])
        known = np.isfinite(s) & np.isfinite(t)
        agreement, pairs = (
            np.bincount(member[known], weights[known], minlength=len(sets))
            for weights in (s * t, t * t)
        )
        values = agreement[pairs > 0] / pairs[pairs > 0]
        found[factor] = float(values.mean()) if len(values) else float("nan")
    return found


def conditional_information(
    first: np.ndarray, second: np.ndarray, factors: Sequence[np.ndarray] = ()
) -> float:
    r"""How much the order of two networks by one number says about their order by another.

    .. math:: \hat I = \frac{I(V_x; V_y \mid U)}{H(V_y \mid U)},
              \qquad V_x = \mathrm{sgn}(x_i - x_j),\; V_y = \mathrm{sgn}(y_i - y_j)

    over all pairs that are no ties of the second number, given :math:`U`, the values of the factors
    in both networks. A tie of the first number is a third sign.
    Frequencies stand for probabilities, so that chance is above 0, the more so the more values
    the factors have: compare with a number drawn at random.

    Args:
        first: :math:`x`.
        second: :math:`y`.
        factors: codes (0, 1, ...) of every network, an array for each factor in :math:`U`.

    Returns:
        0 (nothing) to 1 (all); nan where the order of the second number is certain.

    Example:
        >>> x = np.arange(6.0)
        >>> conditional_information(x, -x)
        1.0

    References:
        [jiang2020], conditional independence test.
    """
    return _information(*_pair_signs(first, second), factors)


def smallest_information(
    first: np.ndarray, second: np.ndarray, factors: Mapping[str, np.ndarray], most: int = 2
) -> tuple[float, tuple[str, ...]]:
    """The smallest conditional information over all sets of at most so many factors.

    Returns:
        The information, and the factors that leave least; nan where none is defined.

    References:
        [jiang2020], conditional independence test.
    """
    pairs = _pair_signs(first, second)
    sets = [names for size in range(most + 1) for names in combinations(factors, size)]
    found = [(_information(*pairs, [factors[name] for name in names]), names) for names in sets]
    known = [one for one in found if np.isfinite(one[0])]
    return min(known, key=lambda one: one[0]) if known else (float("nan"), ())


def _pair_signs(
    first: np.ndarray, second: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Both orders of every pair: positions i and j, signs as 0, 1, 2 and (no ties) 0, 1."""
    keep = np.flatnonzero(np.isfinite(first) & np.isfinite(second))
    i, j = (keep[rows] for rows in np.nonzero(~np.eye(len(keep), dtype=bool)))
    s, t = np.sign(first[i] - first[j]).astype(np.int64) + 1, second[i] - second[j]
    clear = t != 0
    return i[clear], j[clear], s[clear], t[clear] > 0


def _information(
    i: np.ndarray, j: np.ndarray, s: np.ndarray, t: np.ndarray, factors: Sequence[np.ndarray]
) -> float:
    if not len(i):
        return float("nan")
    cell = np.zeros(len(i), dtype=np.int64)
    for codes in factors:
        levels = int(codes.max()) + 1
        cell = (cell * levels + codes[i]) * levels + codes[j]
    counts = np.bincount(6 * cell + 2 * s + t, minlength=6 * (int(cell.max()) + 1))
    p = counts.reshape(-1, 3, 2) / len(i)  # cell, sign of the first, sign of the second
    whole = _entropy(p.sum((1, 2)))
    of_second = _entropy(p.sum(1)) - whole  # H(V_y | U)
    shared = _entropy(p.sum(2)) + _entropy(p.sum(1)) - _entropy(p) - whole  # I(V_x; V_y | U)
    return float(shared / of_second) if of_second > 1e-12 else float("nan")


def _entropy(p: np.ndarray) -> float:
    p = p[p > 0]
    return float(-(p * np.log(p)).sum())


def sign_errors(
    first: np.ndarray,
    second: np.ndarray,
    environments: Mapping[str, np.ndarray],
    margin: float = 0.0,
) -> dict[str, float]:
    r"""For each environment, how often one number orders a pair of networks wrongly.

    .. math:: \frac{1}{|E|} \sum_{(i, j) \in E} \tfrac12 \left|1 - s_{ij} t_{ij}\right|

    Args:
        first: a number of every network.
        second: another.
        environments: name -> pairs of positions, shape (pairs, 2).
        margin: pairs whose second numbers differ by no more than this do not count.

    Returns:
        Environment -> share of wrong pairs, a tie of the first number as a half; nan where no
        pair counts. Guessing errs in a half.

    Example:
        >>> pairs = {"all": np.array([[0, 1], [1, 2]])}
        >>> sign_errors(np.array([0.0, 1.0, 2.0]), np.array([0.0, 1.0, 0.0]), pairs)
        {'all': 0.5}

    References:
        [dziugaite2020]: networks that differ in one factor; pairs within the noise of the
        test error do not count.
    """
    found = {}
    for name, pairs in environments.items():
        i, j = pairs.reshape(-1, 2).T
        t = second[i] - second[j]
        known = np.isfinite(first[i] - first[j]) & np.isfinite(t) & (np.abs(t) > margin)
        wrong = 0.5 * np.abs(1 - np.sign(first[i] - first[j]) * np.sign(t))[known]
        found[name] = float(wrong.mean()) if len(wrong) else float("nan")
    return found


def area_under_curve(
    score: np.ndarray, positive: np.ndarray, weights: Weights = None
) -> np.ndarray:
    r"""Probability that a positive example has the higher score; ties count a half.

    Args:
        score: a number of every network; those that are not finite are left out.
        positive: which networks have the property.
        weights: (draws, n) how often each network was drawn; None for once each.

    Example:
        >>> area_under_curve(np.array([0.1, 0.4, 0.3]), np.array([False, True, True])).item()
        1.0
    """
    known = np.isfinite(score)
    yes, no = known & positive, known & ~positive
    wins = 0.5 + 0.5 * np.sign(score[yes][:, None] - score[no][None, :])
    w = np.ones(len(score)) if weights is None else weights
    above = ((w[..., yes] @ wins) * w[..., no]).sum(-1)
    return _ratio(above, w[..., yes].sum(-1) * w[..., no].sum(-1))


def coverage_curve(confidence: np.ndarray, wrong: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Share of errors among the most confident answers, for each share of answers.

    Args:
        confidence: of every answer; the least confident are withheld first.
        wrong: whether the answer is.

    Returns:
        Coverages, rising to 1, and the share of errors at each.

    Example:
        >>> coverage, error = coverage_curve(np.array([0.9, 0.1]), np.array([False, True]))
        >>> coverage.tolist(), error.tolist()
        ([0.5, 1.0], [0.0, 0.5])
    """
    order = np.argsort(-confidence, kind="stable")
    said = np.arange(1, len(order) + 1)
    return said / len(order), np.cumsum(wrong[order]) / said


def bootstrap_weights(groups: np.ndarray, draws: int = 1000, seed: int = 0) -> np.ndarray:
    """(draws, n): how often each network is drawn when whole groups are, with replacement."""
    names, member = np.unique(groups, return_inverse=True)
    generator = np.random.default_rng(seed)
    counts = generator.multinomial(len(names), np.full(len(names), 1 / len(names)), size=draws)
    return counts[:, member].astype(np.float64)


def interval(
    statistic: Callable[[np.ndarray], np.ndarray], weights: np.ndarray, level: float = 0.95
) -> tuple[float, float]:
    """Quantiles of a statistic over draws; nan where it is hardly ever defined.

    Args:
        statistic: weights of the networks, (draws, n) -> a value for each draw.
        weights: of :func:`bootstrap_weights`.
        level: share of the draws within the interval.
    """
    values = statistic(weights)
    values = values[np.isfinite(values)]
    if len(values) < 0.5 * len(weights):
        return float("nan"), float("nan")
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
