"""What the raw inputs predict of a fit: the rule of the calibration, case by case."""

from dataclasses import replace

import pytest

from theodolite.advice import FitEvidence, InputFinding, judge_inputs

PREDICTED = FitEvidence(1.0, 0.1, 500, 64, 0.95, 0.9, 0.96)
AT_CHANCE = replace(PREDICTED, input_neighbours=0.1, input_probe=0.11, first_layer_neighbours=0.2)
XOR = FitEvidence(1.0, 0.5, 2400, 20, 0.62, 0.5, 0.92)


@pytest.mark.parametrize(
    ("evidence", "finding"),
    [
        (PREDICTED, InputFinding.PREDICT),
        (AT_CHANCE, InputFinding.AT_CHANCE),
        (XOR, InputFinding.FIRST_LAYER_PREDICTS),
        (replace(AT_CHANCE, input_probe=0.3), InputFinding.PREDICT_PART),
        (replace(PREDICTED, first_layer_neighbours=0.3), InputFinding.FIRST_LAYER_SCRAMBLES),
        (replace(PREDICTED, accuracy=0.5), InputFinding.LITTLE_FITTED),
        (replace(AT_CHANCE, input_neighbours=0.02, input_probe=0.02), InputFinding.BELOW_CHANCE),
        (replace(PREDICTED, accuracy=float("nan")), InputFinding.UNDEFINED),
        (replace(PREDICTED, chance=1.0), InputFinding.UNDEFINED),
        (
            replace(AT_CHANCE, input_size=4, first_layer_neighbours=0.9),
            InputFinding.FIRST_LAYER_PREDICTS,
        ),
        (
            replace(AT_CHANCE, input_size=20, first_layer_neighbours=0.9),
            InputFinding.FIRST_LAYER_ABOVE_CHANCE,
        ),
    ],
)
def test_each_case(evidence, finding):
    assert judge_inputs(evidence) is finding
