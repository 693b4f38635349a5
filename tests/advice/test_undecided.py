"""An undecided verdict without held-out examples always gives its reason."""

import pytest

from theodolite.advice.findings import FitOnTraining, Measured
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
