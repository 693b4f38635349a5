"""Correlations of results: order alone, missing values, nothing to correlate."""

import numpy as np
import pytest

from theodolite_papers.ledger import pearson, spearman


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
