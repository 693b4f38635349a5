"""Correlations of results: order alone, missing values, nothing to correlate."""

import numpy as np
import pytest
from scipy import stats

from theodolite_papers.ledger import correlation_threshold, pearson, spearman


def test_ranks_see_order_alone():
    x = np.array([0.3, -1.0, 2.0, 5.0])
    assert spearman(x, np.exp(x)) == pytest.approx(1)
    assert spearman(x, -(x**3)) == pytest.approx(-1)
    assert spearman(x, [1.0, 0.0, 2.0, 1.5]) == pytest.approx(0.8)


def test_pearson_is_the_linear_correlation():
    x, y = np.array([0.0, 1.0, 2.0, 4.0]), np.array([1.0, 0.0, 3.0, 3.0])
    assert pearson(x, y) == pytest.approx(np.corrcoef(x, y)[0, 1])


@pytest.mark.parametrize("correlation", [pearson, spearman])
def test_pairs_that_are_undefined_are_left_out(correlation):
    assert correlation([1.0, 2.0, 3.0, np.nan], [2.0, 4.0, 6.0, -9.0]) == pytest.approx(1)


@pytest.mark.parametrize("correlation", [pearson, spearman])
@pytest.mark.parametrize(
    ("first", "second"),
    [([1.0], [1.0]), ([1.0, 2.0], [3.0, 3.0])],
    ids=["one pair", "a constant"],
)
def test_nothing_to_correlate_is_nan(correlation, first, second):
    assert np.isnan(correlation(first, second))


PUBLISHED = {  # training loss, test accuracy, CKA (test), CKA (train)
    "skip": (0.097, -0.024, -0.026, -0.024),
    "augmentation": (0.335, 0.806, 0.529, 0.162),
    "batch size": (-0.039, -0.247, -0.181, -0.045),
    "learning rate": (-0.078, 0.163, -0.035, -0.263),
    "momentum": (0.099, 0.448, 0.823, 0.936),
    "average CKA (test)": (0.279, 0.920, 0.944, 0.747),
    "average CKA (train)": (0.221, 0.828, 0.930, 0.837),
}
BLOCK = np.array(
    [
        [1, 0.384, 0.366, 0.253],
        [0.384, 1, 0.850, 0.528],
        [0.366, 0.850, 1, 0.870],
        [0.253, 0.528, 0.870, 1],
    ]
)


@pytest.mark.spec("3.P44")
def test_the_published_table_is_consistent():
    assert (BLOCK == BLOCK.T).all()
    assert np.linalg.eigvalsh(BLOCK).min() == pytest.approx(0.019, abs=5e-4)
    for row in PUBLISHED.values():  # some variable has these correlations with the four
        assert np.array(row) @ np.linalg.solve(BLOCK, row) <= 1


@pytest.mark.spec("3.P43")
def test_pearson_over_runs():
    runs = np.random.default_rng(0).standard_normal((36, 4))
    table = [[pearson(u, v) for v in runs.T] for u in runs.T]
    np.testing.assert_allclose(table, np.corrcoef(runs.T), atol=1e-12)
    factor = np.arange(36) % 2  # a binary factor, coded in two ways
    plain = pearson(factor, runs[:, 0])
    assert pearson(5 - 3 * factor, runs[:, 0]) == pytest.approx(-plain, abs=1e-12)
    assert pearson(0.2 * factor + 9, runs[:, 0]) == pytest.approx(plain, abs=1e-12)
    assert np.isnan(pearson(np.full(36, 0.1), runs[:, 0]))


@pytest.mark.spec("3.P44")
@pytest.mark.parametrize(("runs", "level", "value"), [(36, 0.05, 0.329), (36, 0.01, 0.424)])
def test_significance_threshold(runs, level, value):
    threshold = correlation_threshold(runs, level)
    assert threshold == pytest.approx(value, abs=5e-4)
    # A sample with exactly this correlation has exactly this p-value.
    u = np.arange(runs) - (runs - 1) / 2
    v = np.where(np.arange(runs) % 2, 1.0, -1.0)
    v -= u * (u @ v) / (u @ u)
    mixed = threshold * u / np.linalg.norm(u) + (1 - threshold**2) ** 0.5 * v / np.linalg.norm(v)
    assert stats.pearsonr(u, mixed).pvalue == pytest.approx(level, rel=1e-9)
    assert np.isnan(correlation_threshold(2))


@pytest.mark.spec("4.P103")
def test_spearman_shares_ranks_among_ties():
    u = np.array([1.0, 2.0, 2.0, 3.0, 5.0, 5.0, 5.0])
    v = np.array([2.0, 1.0, 4.0, 4.0, 3.0, 9.0, 9.0])
    assert spearman(u, v) == pytest.approx(stats.spearmanr(u, v).statistic, abs=1e-12)
    ranks = np.array([[1, 2.5, 2.5, 4, 6, 6, 6], [2, 1, 4.5, 4.5, 3, 6.5, 6.5]])
    assert spearman(u, v) == pytest.approx(pearson(*ranks), abs=1e-12)
    assert spearman(np.exp(u), v) == pytest.approx(spearman(u, v), abs=1e-12)
