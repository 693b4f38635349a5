"""Statistics of the zoo against literal loops, SciPy and scikit-learn."""

import math
from itertools import combinations, permutations

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import roc_auc_score

from theodolite_papers.alignment_zoo.statistics import (
    area_under_curve,
    bootstrap_weights,
    conditional_information,
    coverage_curve,
    granulated_tau,
    interval,
    kendall_tau,
    sign_errors,
    smallest_information,
)

SEEDS = [0, 1, 2]


def numbers(seed, n=24):
    """Two related numbers with ties, undefined values, and three factors."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=n).round(1)
    y = (x + rng.normal(size=n)).round(1)
    x[3], y[5] = np.nan, np.nan
    return x, y, [rng.integers(0, 3, n) for _ in range(3)]


def literal_information(x, y, factors):
    """I(V_x; V_y | U) / H(V_y | U), summed over ordered pairs, cells and signs."""
    table = {}
    for i, j in permutations(range(len(x)), 2):
        if not np.isfinite([x[i], x[j], y[i], y[j]]).all() or y[i] == y[j]:
            continue
        cell = tuple((f[i], f[j]) for f in factors)
        signs = (np.sign(x[i] - x[j]), y[i] > y[j])
        table.setdefault(cell, {}).setdefault(signs, 0)
        table[cell][signs] += 1
    total = sum(sum(cell.values()) for cell in table.values())
    shared = entropy = 0.0
    for cell in table.values():
        inside = sum(cell.values())
        for (a, b), count in cell.items():
            p = count / inside
            p_a = sum(c for (s, _), c in cell.items() if s == a) / inside
            p_b = sum(c for (_, t), c in cell.items() if t == b) / inside
            shared += inside / total * p * math.log(p / (p_a * p_b))
        for sign in (False, True):
            p = sum(c for (_, t), c in cell.items() if t == sign) / inside
            entropy -= inside / total * p * math.log(p) if p else 0.0
    return shared / entropy


@pytest.mark.parametrize("seed", SEEDS)
def test_tau_is_scipys_tau_b_of_the_finite_pairs(seed):
    x, y, _ = numbers(seed)
    keep = np.isfinite(x) & np.isfinite(y)
    assert kendall_tau(x, y) == pytest.approx(stats.kendalltau(x[keep], y[keep]).statistic)


@pytest.mark.parametrize("seed", SEEDS)
def test_tau_of_a_draw_is_that_of_the_drawn_networks(seed):
    x, y, _ = numbers(seed)
    drawn = np.random.default_rng(seed).integers(0, len(x), len(x))
    weights = np.bincount(drawn, minlength=len(x)).astype(float)
    keep = np.isfinite(x[drawn]) & np.isfinite(y[drawn])
    wanted = stats.kendalltau(x[drawn][keep], y[drawn][keep]).statistic
    assert kendall_tau(x, y, weights[None])[0] == pytest.approx(wanted)


def test_tau_of_a_constant_is_undefined():
    assert np.isnan(kendall_tau(np.ones(4), np.arange(4.0)))


def test_granulated_tau_is_the_mean_over_sets_where_the_outcome_differs():
    x = np.array([0.0, 1.0, 2.0, 3.0, 3.0, 5.0, 4.0])
    y = np.array([0.0, 1.0, 2.0, 0.0, 1.0, 0.0, 1.0])
    same = np.array([0, 3])  # outcomes alike: the set does not count
    sets = {"noise": [np.array([0, 1, 2]), np.array([3, 4]), np.array([5, 6]), same], "rate": []}
    found = granulated_tau(x, y, sets)
    assert found["noise"] == pytest.approx((1 + 0 - 1) / 3)
    assert np.isnan(found["rate"])


@pytest.mark.parametrize("count", [0, 1, 2, 3])
@pytest.mark.parametrize("seed", SEEDS)
def test_information_is_the_literal_sum(seed, count):
    x, y, factors = numbers(seed)
    wanted = literal_information(x, y, factors[:count])
    assert conditional_information(x, y, factors[:count]) == pytest.approx(wanted)


def test_a_number_that_only_knows_a_factor_tells_nothing_beyond_it():
    """Both numbers follow label noise: all there is to know, until the noise is given."""
    rng = np.random.default_rng(0)
    noise = np.repeat([0, 1, 2, 3], 40)
    x, y = noise + 0.1 * rng.normal(size=160), noise + 0.1 * rng.normal(size=160)
    assert conditional_information(x, y) > 0.3
    assert conditional_information(x, y, [noise]) < 0.02
    value, names = smallest_information(x, y, {"noise": noise, "depth": rng.integers(0, 2, 160)})
    assert value < 0.02
    assert "noise" in names


@pytest.mark.parametrize("margin", [0.0, 0.5])
def test_sign_errors_count_pairs_beyond_the_margin(margin):
    x, y, factors = numbers(0)
    pairs = np.array([p for p in combinations(range(len(x)), 2) if factors[0][p[0]] == 0])
    wrong = []
    for i, j in pairs:
        if np.isfinite([x[i], x[j], y[i], y[j]]).all() and abs(y[i] - y[j]) > margin:
            same = (x[i] > x[j]) == (y[i] > y[j])
            wrong.append(0.5 if x[i] == x[j] else float(not same))
    found = sign_errors(x, y, {"zero": pairs, "none": np.zeros((0, 2), int)}, margin)
    assert found["zero"] == pytest.approx(np.mean(wrong))
    assert np.isnan(found["none"])


@pytest.mark.parametrize("seed", SEEDS)
def test_area_is_scikit_learns_also_of_draws(seed):
    x, _, factors = numbers(seed)
    positive, known = factors[0] > 0, np.isfinite(x)
    weights = bootstrap_weights(np.arange(len(x)), draws=3, seed=seed)
    wanted = roc_auc_score(positive[known], x[known])
    assert area_under_curve(x, positive) == pytest.approx(wanted)
    for found, w in zip(area_under_curve(x, positive, weights), weights, strict=True):
        assert found == pytest.approx(
            roc_auc_score(positive[known], x[known], sample_weight=w[known])
        )


def test_withholding_the_least_confident_lowers_the_error():
    coverage, error = coverage_curve(np.array([0.2, 0.9, 0.5]), np.array([True, False, False]))
    assert coverage == pytest.approx([1 / 3, 2 / 3, 1])
    assert error == pytest.approx([0, 0, 1 / 3])


def test_groups_are_drawn_whole_and_as_many_as_there_are():
    groups = np.array(["a", "a", "b", "c"])
    weights = bootstrap_weights(groups, draws=200)
    assert (weights[:, 0] == weights[:, 1]).all()
    assert (weights[:, [0, 2, 3]].sum(1) == 3).all()


def test_the_interval_of_independent_numbers_holds_zero_and_shrinks_with_groups():
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(2, 200))
    wide = interval(lambda w: kendall_tau(x, y, w), bootstrap_weights(np.arange(200) // 20, 300))
    narrow = interval(lambda w: kendall_tau(x, y, w), bootstrap_weights(np.arange(200), 300))
    assert narrow[0] < 0 < narrow[1]
    assert narrow[1] - narrow[0] < 0.25
    assert all(np.isfinite(wide))
