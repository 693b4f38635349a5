"""Learning or memorising: what each kind of evidence leads to, and that no answer is overdrawn."""

import math
from dataclasses import replace

import pytest

from theodolite.advice import CALIBRATION, ZOO, FitEvidence, HeldOut, judge_fit

# Ten classes, 500 examples of 64 numbers, all right in training.
LEARNED = FitEvidence(1.0, 0.1, 500, 64, 0.95, 0.9, 0.96)
MEMORISED = replace(LEARNED, input_neighbours=0.1, input_readout=0.11, first_layer_neighbours=0.2)
# Two classes that only products of inputs tell apart: neighbours hardly see them.
XOR = FitEvidence(1.0, 0.5, 2400, 20, 0.62, 0.5, 0.92)


@pytest.mark.parametrize(
    ("evidence", "answer"),
    [
        (LEARNED, "learning"),
        (MEMORISED, "memorising"),
        (XOR, "learning"),
        (replace(XOR, examples=400), "undecided"),  # the first layer could have memorised 400
        (replace(LEARNED, accuracy=0.5), "undecided"),  # nothing fitted, nothing to explain
        (replace(MEMORISED, input_neighbours=0.0), "undecided"),  # below chance: a rule is behind
        (replace(MEMORISED, input_readout=0.3), "undecided"),  # a tie, though a weak one
        (replace(MEMORISED, examples=2000, first_layer_neighbours=0.9), "undecided"),
        (replace(LEARNED, first_layer_neighbours=0.3), "undecided"),  # scrambled, as by sin(7 W x)
        (replace(LEARNED, accuracy=math.nan), "undecided"),
        (replace(LEARNED, chance=1.0), "undecided"),
    ],
    ids=[
        "inputs",
        "nothing",
        "first-layer",
        "few",
        "unfitted",
        "below-chance",
        "weak",
        "features-only",
        "scrambled",
        "nan",
        "one-class",
    ],
)
def test_training_data_alone(evidence, answer):
    told = judge_fit(evidence)
    assert told.answer == answer
    assert told.sentence
    assert told.because


@pytest.mark.parametrize(
    ("accuracy", "answer"),
    [(0.93, "learning"), (0.12, "memorising"), (0.55, "undecided")],
)
def test_held_out_data_decides(accuracy, answer):
    for evidence in (LEARNED, MEMORISED):
        told = judge_fit(evidence, HeldOut(accuracy, 400))
        assert told.answer == answer
        assert f"{accuracy:.0%} on 400 held-out" in told.because


@pytest.mark.parametrize(("examples", "start"), [(12, "There are too few"), (200, "About half")])
def test_half_of_the_fit_is_said_only_of_many_held_out_examples(examples, start):
    told = judge_fit(FitEvidence(0.9, 1 / 3, 96, 64, 0.9, 0.9, 0.9), HeldOut(0.6, examples))
    assert told.answer == "undecided"
    assert told.sentence.startswith(start)
    assert ("more held-out examples" in told.advice) == (examples == 12)


def test_a_network_that_fits_little_is_not_asked_for_what_was_given():
    little = FitEvidence(0.12, 0.1, 400, 64, 0.9, 0.9, 0.9)
    for told in (judge_fit(little), judge_fit(little, HeldOut(0.11, 400))):
        assert told.answer == "undecided"
        assert told.sentence.startswith("The network fits too few")
        assert "held_out=" not in told.advice


@pytest.mark.parametrize(("accuracy", "more"), [(0.12, "hardly more"), (0.08, "no more")])
def test_a_fit_below_chance_is_not_called_more(accuracy, more):
    little = FitEvidence(accuracy, 0.1, 400, 64, 0.9, 0.9, 0.9)
    assert f"right, {more} than chance (10%)" in judge_fit(little, HeldOut(0.11, 400)).because


def test_no_share_of_the_fit_is_below_nothing():
    assert ": 0% ±" in judge_fit(MEMORISED, HeldOut(0.05, 400)).sure
    below = FitEvidence(1.0, 0.13, 400, 64, 0.08, 0.08, 0.5)
    assert "less often than chance" in judge_fit(below).because


def test_held_out_data_splits_the_fit():
    told = judge_fit(LEARNED, HeldOut(0.4, 10_000))
    assert "30% of the examples are learned" in told.because
    assert "60% memorised" in told.because


def test_error_rates_are_those_of_the_calibration():
    said, wrong = CALIBRATION.learning
    assert f"wrong in {wrong} of {said} runs" in judge_fit(LEARNED).sure
    assert CALIBRATION.domain in judge_fit(LEARNED).sure
    said, wrong = CALIBRATION.memorising
    assert f"wrong in {wrong} of {said} runs (at most 2.2%)" in judge_fit(MEMORISED).sure


def test_error_rates_in_a_second_domain_are_told_as_well():
    assert f"{ZOO.error('learning')} of the alignment zoo: {ZOO.domain}" in judge_fit(LEARNED).sure
    assert f"{ZOO.error('memorising')} of the alignment zoo" in judge_fit(MEMORISED).sure
    silent = judge_fit(FitEvidence(1.0, 0.1, 500, 64, 0.4, 0.4, 0.5)).sure
    assert f"{ZOO.undecided} of {ZOO.runs} of the alignment zoo" in silent
