"""How much of a classifier's fit the raw inputs predict, if no held-out examples are given.

The rule uses these numbers, none of which depends on how the network fits its own labels:

- the leave-one-out accuracy of nearest neighbours and of a linear probe on the raw inputs;
- the same accuracy of neighbours in the first layer, if this layer cannot memorise the examples:
  there must be many more of them than numbers in one example;
- chance, the share of the largest class.

Later layers do not help: a network that memorises builds them from the labels in question. Inputs
at chance do not mean that the network memorises: a task may need the architecture. How often
the rule is right is in docs/answers.md; tests compare that page with the records. One condition
came after they were seen: the first layer keeps what the inputs predict ([mehta2021]: sine layers
of a large scale memorise true labels).
"""

from dataclasses import dataclass
from enum import StrEnum
from math import isfinite, sqrt

from theodolite.records import require_class

CALIBRATED = 100  # fewest examples; the rule was calibrated on 105 and more
_EXPLAINABLE = 0.7  # of the way from chance to all right: below, there is little to explain
_PREDICTED = 0.5  # of the fit: the inputs predict most of it
_FIRST_LAYER = 0.7  # the same of the first layer
_KEPT = 0.5  # of what the inputs predict, the first layer must keep
_CANNOT_MEMORISE = 50.0  # examples per number of an example, for the first layer to count
_CAN_MEMORISE = 8.0  # at most so many, and whatever the first layer shows may be memorised
_NOTHING = 0.25  # of the fit in the first layer: as good as nothing
_AT_CHANCE = 2.0, 2.5  # standard errors of chance: neighbours, linear probe


class InputFinding(StrEnum):
    """What the inputs and the first layer predict of the labels that a network fits."""

    PREDICT = "inputs-predict"
    FIRST_LAYER_PREDICTS = "first-layer-predicts"
    AT_CHANCE = "inputs-at-chance"
    FIRST_LAYER_ABOVE_CHANCE = "inputs-at-chance-first-layer-above"
    BELOW_CHANCE = "inputs-below-chance"
    FIRST_LAYER_SCRAMBLES = "first-layer-scrambles"
    PREDICT_PART = "inputs-predict-part"
    LITTLE_FITTED = "little-fitted"
    UNDEFINED = "undefined"


@dataclass(frozen=True)
class FitEvidence:
    """Numbers about a classifier and the examples that it was trained on.

    Args:
        accuracy: of the network on these examples, with the labels that it was trained on.
        chance: share of the largest class.
        examples: how many there are.
        input_size: numbers in one example.
        input_neighbours: leave-one-out accuracy of nearest neighbours on the raw inputs.
        input_probe: leave-one-out accuracy of a linear probe on the raw inputs.
        first_layer_neighbours: as ``input_neighbours``, on the first layer's features.
    """

    accuracy: float
    chance: float
    examples: int
    input_size: int
    input_neighbours: float
    input_probe: float
    first_layer_neighbours: float

    @property
    def fit(self) -> float:
        """Accuracy above chance."""
        return self.accuracy - self.chance

    @property
    def inputs(self) -> float:
        """The better of the two accuracies on the raw inputs."""
        return max(self.input_neighbours, self.input_probe)

    def share(self, accuracy: float) -> float:
        """Accuracy above chance of a prediction, divided by that of the network."""
        return (accuracy - self.chance) / self.fit

    def deviations(self, accuracy: float) -> float:
        """Distance of an accuracy from chance, in standard errors of chance."""
        return (accuracy - self.chance) / sqrt(self.chance * (1 - self.chance) / self.examples)


def judge_inputs(evidence: FitEvidence) -> InputFinding:
    """What the raw inputs predict of a classifier's fit, by a rule calibrated on known networks.

    Args:
        evidence: accuracies of the network, and of predictions from the raw inputs.

    Returns:
        What the inputs predict of the fit.

    Examples:
        >>> judge_inputs(FitEvidence(1.0, 0.1, 500, 64, 0.95, 0.9, 0.96)).value
        'inputs-predict'
        >>> judge_inputs(FitEvidence(1.0, 0.1, 500, 64, 0.1, 0.11, 0.2)).value
        'inputs-at-chance'
    """
    require_class(FitEvidence, evidence=evidence)
    numbers = (evidence.accuracy, evidence.inputs, evidence.first_layer_neighbours)
    if not all(map(isfinite, numbers)) or evidence.chance >= 1:
        return InputFinding.UNDEFINED
    if evidence.fit < _EXPLAINABLE * (1 - evidence.chance):
        return InputFinding.LITTLE_FITTED
    in_inputs = evidence.share(evidence.inputs)
    in_first = evidence.share(evidence.first_layer_neighbours)
    per_number = evidence.examples / evidence.input_size
    if in_inputs >= _PREDICTED and in_first < _KEPT * in_inputs:
        return InputFinding.FIRST_LAYER_SCRAMBLES
    if in_inputs >= _PREDICTED:
        return InputFinding.PREDICT
    if per_number >= _CANNOT_MEMORISE and in_first >= _FIRST_LAYER:
        return InputFinding.FIRST_LAYER_PREDICTS
    near, line = (evidence.input_neighbours, evidence.input_probe)
    if (
        abs(evidence.deviations(near)) < _AT_CHANCE[0]
        and abs(evidence.deviations(line)) < _AT_CHANCE[1]
    ):
        nothing = in_first < _NOTHING or per_number < _CAN_MEMORISE
        return InputFinding.AT_CHANCE if nothing else InputFinding.FIRST_LAYER_ABOVE_CHANCE
    return InputFinding.BELOW_CHANCE if in_inputs <= 0 else InputFinding.PREDICT_PART
