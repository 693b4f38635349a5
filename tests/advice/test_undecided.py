"""An undecided verdict without held-out examples always gives its reason."""

from dataclasses import replace

import pytest

from theodolite.advice.findings import FitOnTraining, LastLayer, Measured
from theodolite.advice.inputs import FitEvidence, InputFinding
from theodolite.advice.sentences import worded

SEEN = FitEvidence(1.0, 0.1, 500, 64, 0.4, 0.3, 0.2)


@pytest.mark.parametrize(
    ("finding", "reason"),
    [
        (FitOnTraining(Measured("r2", 0.9, 0.0, 200)), "only classification with one label"),
        (FitOnTraining(Measured("accuracy", 1.0, 0.1, 500)), "nothing was predicted"),
        (
            FitOnTraining(Measured("accuracy", 1.0, 0.1, 500), InputFinding.PREDICT_PART, SEEN),
            "only 33 % of this fit is predictable",
        ),
        (
            FitOnTraining(Measured("accuracy", 1.0, 0.1, 500), InputFinding.BELOW_CHANCE, SEEN),
            "no better than chance",
        ),
        (
            FitOnTraining(
                Measured("accuracy", 1.0, 0.1, 500), InputFinding.FIRST_LAYER_SCRAMBLES, SEEN
            ),
            "features of the first layer",
        ),
        (
            FitOnTraining(Measured("accuracy", 1.0, 0.1, 500), evidence=SEEN, repeated=0.2),
            "copies among the examples",
        ),
        (FitOnTraining(Measured("accuracy", 1.0, 0.1, 60), evidence=SEEN), "fewer than 100"),
        (FitOnTraining(Measured("accuracy", 1.0, 0.1, 500), evidence=SEEN), "could not be"),
    ],
)
def test_an_undecided_verdict_gives_its_reason(finding, reason):
    answer = worded(finding)
    assert answer.certainty == "undecided"
    assert reason in answer.text.partition(", but ")[2]


def test_a_chance_level_within_its_spread_is_0():
    last = LastLayer("kernel", "fc", 0.42, -0.0051, 27.0, trained_on=False)
    assert "is 0.42 (chance 0)" in worded(last).text
    assert worded(last).evidence == "27 standard deviations above chance (permuted labels)"
    low = replace(last, value=-0.6, chance=-0.3, deviations=-9.0)
    assert "is −0.6 (chance −0.3)" in worded(low).text
    assert "9 standard deviations below chance" in worded(low).evidence
