"""Findings follow the numbers: shares that carry over, intervals, and layers compared in pairs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from theodolite.advice import (
    Interface,
    Measured,
    Verdict,
    carry_over,
    compare_layers,
    worded,
)
from theodolite.advice.sentences import percent
from theodolite.records import wilson


def accuracy(value, n=400, chance=0.1):
    return Measured("accuracy", value, chance, n)


@given(st.integers(1, 2000), st.floats(0, 1))
def test_the_interval_of_a_share_lies_around_it_and_has_a_width(n, share):
    right = round(share * n)
    low, high = wilson(right / n, n)
    assert 0 <= low <= right / n <= high <= 1
    assert high - low > 0.5 / n


@pytest.mark.parametrize("truth", [0.5, 0.9, 0.99])
def test_the_interval_of_a_share_covers_the_truth(truth):
    counts = np.arange(301)
    covered = [low <= truth <= high for low, high in (wilson(k / 300, 300) for k in counts)]
    assert binom.pmf(counts, 300, truth)[covered].sum() > 0.93


@pytest.mark.parametrize(
    ("train", "held_out", "verdict"),
    [
        (1.0, 0.97, Verdict.LEARNED),
        (1.0, 0.75, Verdict.MOSTLY_LEARNED),
        (1.0, 0.55, Verdict.HALF),
        (1.0, 0.3, Verdict.MOSTLY_MEMORISED),
        (0.99, 0.11, Verdict.MEMORISED),
        (1.0, 0.02, Verdict.MEMORISED),
        (0.12, 0.1, Verdict.UNDECIDED),
        (0.9, 1.0, Verdict.LEARNED),
    ],
)
def test_verdicts_by_the_share_that_carries_over(train, held_out, verdict):
    found = carry_over(accuracy(train), accuracy(held_out))
    assert found.verdict is verdict
    if verdict is not Verdict.UNDECIDED:
        assert found.low < found.share < found.high or held_out == 1.0


def test_few_held_out_examples_decide_nothing():
    assert carry_over(accuracy(1.0), accuracy(0.6, n=5)).verdict is Verdict.UNDECIDED


def test_the_interval_of_the_share_covers_the_truth(generator):
    rng = np.random.default_rng(0)
    truth = (0.75 - 0.1) / (0.95 - 0.1)
    hits = 0
    for _ in range(400):
        train, held_out = rng.binomial(300, 0.95) / 300, rng.binomial(200, 0.75) / 200
        found = carry_over(accuracy(train, 300), accuracy(held_out, 200))
        hits += found.low <= truth <= found.high
    assert hits / 400 > 0.92


def test_r2_below_zero_is_memorised_and_a_small_fit_undecided():
    def r2(value, n=150):
        return Measured("r2", value, 0.0, n, error=0.05)

    assert carry_over(r2(1.0), r2(-0.03)).verdict is Verdict.MEMORISED
    assert carry_over(r2(0.05), r2(0.04)).verdict is Verdict.UNDECIDED
    assert carry_over(r2(0.9), r2(0.85)).verdict is Verdict.LEARNED


def test_an_imprecise_held_out_number_is_not_called_a_small_fit():
    few_outliers = Measured("r2", 0.29, 0.0, 300, error=0.6)
    finding = carry_over(Measured("r2", 1.0, 0.0, 300, error=1e-5), few_outliers)
    answer = worded(finding)
    assert answer.text == (
        "Undecided: 29 % of its fit carries over to held-out examples (95 % interval 0 to 100 %)."
    )
    assert answer.advice == "Pass more `held_out=` examples."
    assert worded(finding, Interface.COMMAND).advice == "Pass more test examples."


def test_label_noise_that_would_explain_the_gap():
    # A tenth of random labels agrees by chance: 25 of 90 points are 28 % random labels.
    advice = worded(carry_over(accuracy(1.0), accuracy(0.75))).advice
    assert "if 28 % of the held-out labels are random, 75 % is the highest possible" in advice


@pytest.mark.parametrize("layers", [2, 12])
def test_equal_layers_are_rarely_called_different(layers):
    rng = np.random.default_rng(1)
    wrong = 0
    for _ in range(300):
        scores = {str(k): (rng.random(200) < 0.8).astype(float) for k in range(layers)}
        wrong += len(compare_layers(scores, shares=True)[1]) < layers
    assert wrong / 300 < 0.08


def test_pairs_find_small_differences_that_unpaired_errors_hide():
    rng = np.random.default_rng(2)
    easy = rng.random(500) < 0.8
    better = easy | (rng.random(500) < 0.1)
    best, alike = compare_layers({"a": easy * 1.0, "b": better * 1.0}, shares=True)
    assert (best, alike) == ("b", {"b"})
    assert better.mean() - easy.mean() < 2 * (2 * 0.8 * 0.2 / 500) ** 0.5


def test_one_example_more_is_no_difference():
    scores = np.ones(100)
    other = scores.copy()
    other[0] = 0
    assert compare_layers({"a": other, "b": scores}, shares=True)[1] == {"a", "b"}


def test_numbers_are_compared_by_their_mean_difference():
    rng = np.random.default_rng(3)
    base = rng.normal(size=300)
    scores = {"a": base, "b": base + 0.3 + 0.1 * rng.normal(size=300)}
    assert compare_layers(scores, shares=False) == ("b", {"b"})


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.5, "50 %"), (0.9924, "99.2 %"), (0.99999, "100 %"), (0.0, "0 %"), (-0.03, "−3 %")],
)
def test_shares_as_people_say_them(share, text):
    assert percent(share) == text


def test_parts_of_other_class_balance_share_one_scale():
    """Both are all right: all of the fit carries over, and the interval knows that n is small."""
    found = carry_over(Measured("accuracy", 1.0, 0.4, 60), Measured("accuracy", 1.0, 0.35, 60))
    assert found.share == pytest.approx(1.0)
    assert found.low == pytest.approx((wilson(1.0, 60)[0] - 0.35) / 0.65)
    assert worded(found).evidence == (
        "100 % on 60 training examples (chance 40 %) and 100 % on 60 held-out examples (chance"
        " 35 %)"
    )


def test_an_interval_below_nothing_is_not_called_narrow():
    found = carry_over(Measured("accuracy", 1.0, 0.6, 150), Measured("accuracy", 0.45, 0.64, 200))
    assert "within" not in worded(found).text
    assert "(95 % interval at or below 0 %)" in worded(found).text


def test_a_fifth_is_not_called_half():
    wide = carry_over(Measured("accuracy", 0.86, 0.61, 1000), Measured("accuracy", 0.66, 0.59, 160))
    assert 0.1 < wide.share < 0.3
    assert wide.high > 0.5
    assert wide.verdict is Verdict.UNDECIDED
    assert carry_over(accuracy(1.0), accuracy(0.55)).verdict is Verdict.HALF
