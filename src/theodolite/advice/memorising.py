"""Does a network learn its labels, or memorise them?

Without held-out data the question is how much of the fit could be had from the inputs alone. Three
numbers answer it, none of which asks the network about its own labels:

- what the nearest neighbours and a linear read-out of the *inputs* say of an example from all the
  others (:func:`theodolite.measures.representation.neighbour_accuracy` and ``readout_accuracy``);
- the same of the neighbours in the first layer, where that layer cannot have memorised: many more
  examples than numbers in an example;
- chance: the share of the largest class.

Features of later layers do not help: a network that memorises builds them from the very labels in
question. Where the numbers do not decide there is no verdict. The rule was chosen on one family of
runs and judged on another (:data:`CALIBRATION`; the laboratory's ``calibration`` holds both).
"""

from dataclasses import dataclass
from math import isfinite, sqrt
from typing import Literal

from scipy.special import betaincinv

__all__ = [
    "CALIBRATION",
    "ZOO",
    "Calibration",
    "FitEvidence",
    "HeldOut",
    "LabelVerdict",
    "judge_fit",
]

Answer = Literal["learning", "memorising", "undecided"]

_FITTED = 0.7  # of the way from chance to all right: below, there is little to explain
_LEARNING = 0.5  # of the fit is in the inputs: more than half carries over
_FIRST_LAYER = 0.7  # the same of the first layer
_KEPT = 0.5  # of what the inputs hold, the first layer must keep
_CANNOT_MEMORISE = 50.0  # examples per number of an example, for the first layer to count
_CAN_MEMORISE = 8.0  # at most so many, and whatever the first layer shows may be memorised
_NOTHING = 0.25  # of the fit in the first layer: as good as nothing
_CHANCE = 2.0, 2.5  # standard errors of chance: neighbours, read-out
_RESOLVED = 0.35  # of the fit, two standard errors: beyond, half of it is not told from all or none


@dataclass(frozen=True)
class FitEvidence:
    """What is known of a classifier and the examples that it was trained on.

    Args:
        accuracy: of the network on these examples, with the labels that it was trained on.
        chance: share of the largest class, what guessing reaches.
        examples: how many there are.
        input_size: numbers in one example.
        input_neighbours: share of examples whose class their neighbours among the inputs have.
        input_readout: share that a linear read-out of the inputs of the others gets right.
        first_layer_neighbours: as ``input_neighbours``, of the first layer's features.
    """

    accuracy: float
    chance: float
    examples: int
    input_size: int
    input_neighbours: float
    input_readout: float
    first_layer_neighbours: float

    @property
    def fit(self) -> float:
        """Accuracy beyond chance."""
        return self.accuracy - self.chance

    def share(self, accuracy: float) -> float:
        """How much of the fit an accuracy stands for."""
        return (accuracy - self.chance) / self.fit

    def deviations(self, accuracy: float) -> float:
        """Distance of an accuracy from chance, in standard errors of chance."""
        return (accuracy - self.chance) / sqrt(self.chance * (1 - self.chance) / self.examples)


@dataclass(frozen=True)
class HeldOut:
    """Accuracy on examples that the network was not trained on, and how many there are."""

    accuracy: float
    examples: int


@dataclass(frozen=True)
class LabelVerdict:
    """What the network does with its labels.

    Args:
        answer: "learning", "memorising" or "undecided".
        sentence: the answer for a person.
        because: the numbers behind it.
        sure: how far to trust it, and for what domain that was measured.
        advice: what to do or look at.
        measured: whether held-out data decided.
    """

    answer: Answer
    sentence: str
    because: str
    sure: str
    advice: str
    measured: bool = False


@dataclass(frozen=True)
class Calibration:
    """How the rule did on runs that it was not chosen on.

    Args:
        learning: runs it called learning, and in how many of them less than a fifth of the fit
            carried over to test examples.
        memorising: runs it called memorising, and in how many of them more than half did.
        undecided: runs without a verdict.
        domain: what the runs were.
    """

    learning: tuple[int, int]
    memorising: tuple[int, int]
    undecided: int
    domain: str

    @property
    def runs(self) -> int:
        """All runs that were judged."""
        return self.learning[0] + self.memorising[0] + self.undecided

    def error(self, answer: Answer) -> str:
        """How often that answer was wrong, with the end of the 95 % interval (Clopper-Pearson)."""
        said, wrong = self.learning if answer == "learning" else self.memorising
        return f"wrong in {wrong} of {said} runs (at most {_upper_limit(wrong, said):.1%})"


def _upper_limit(wrong: int, said: int) -> float:
    """95 % quantile of the beta distribution, without the half second that scipy.stats takes."""
    return 1.0 if wrong >= said else float(betaincinv(wrong + 1, said - wrong, 0.95))


# Runs of ``theodolite_papers.calibration`` on task kinds and seeds that the rule was not chosen on;
# a test compares these numbers with the records. One condition came after they were seen: that the
# first layer keeps what the inputs hold ([mehta2021]: sine layers of a large scale memorise true
# labels). It took one of 85 calls of learning back, and none that was wrong.
CALIBRATION = Calibration(
    learning=(84, 2),
    memorising=(135, 0),
    undecided=233,
    domain="small classifiers of generated, tabular, text and image tasks, with 0 to 100 % of the "
    "labels redrawn",
)

# The same rule on networks that it was not chosen on: the judged half of the laboratory's alignment
# zoo (docs/which-number.md). A test compares these numbers with its table.
ZOO = Calibration(
    learning=(57, 0),
    memorising=(38, 0),
    undecided=235,
    domain="small MLPs, CNNs, ResNets and transformers on images, a table and text (no verdict on "
    "generated tasks)",
)


def judge_fit(evidence: FitEvidence, held_out: HeldOut | None = None) -> LabelVerdict:
    """Whether a classifier learns its labels or memorises them.

    Args:
        evidence: of the examples that it was trained on.
        held_out: where there is any, it decides; else the evidence of the training set does, or
            there is no verdict.

    Example:
        >>> told = judge_fit(FitEvidence(1.0, 0.1, 500, 64, 0.95, 0.9, 0.96))
        >>> told.answer
        'learning'
        >>> judge_fit(FitEvidence(1.0, 0.1, 500, 64, 0.1, 0.11, 0.2)).answer
        'memorising'
    """
    if not isfinite(evidence.accuracy) or evidence.chance >= 1:
        return _undecided("there is no accuracy, or only one class, to judge by")
    if held_out is not None:
        return _from_held_out(evidence, held_out)
    if evidence.fit < _FITTED * (1 - evidence.chance):
        return _little_fitted(
            f"the network gets {evidence.accuracy:.0%} of its training examples right, "
            f"chance is {evidence.chance:.0%}"
        )
    return _from_training_set(evidence)


def _from_held_out(evidence: FitEvidence, held_out: HeldOut) -> LabelVerdict:
    error = sqrt(max(held_out.accuracy * (1 - held_out.accuracy), 1e-4) / held_out.examples)
    if evidence.fit <= 2 * error:
        more = "hardly more" if evidence.accuracy > evidence.chance else "no more"
        return _little_fitted(
            f"the network gets {evidence.accuracy:.0%} of its training examples right, {more} "
            f"than chance ({evidence.chance:.0%})"
        )
    share, spread = evidence.share(held_out.accuracy), 2 * error / evidence.fit
    learned = max(held_out.accuracy - evidence.chance, 0.0)
    memorised = max(evidence.accuracy - max(held_out.accuracy, evidence.chance), 0.0)
    because = (
        f"beyond chance ({evidence.chance:.0%}), {learned:.0%} of the examples are learned (they "
        f"are right on held-out data too) and {memorised:.0%} memorised (right in training only): "
        f"{evidence.accuracy:.0%} against {held_out.accuracy:.0%} on {held_out.examples} held-out "
        "examples"
    )
    carried = max(share, 0.0)
    sure = f"measured on held-out data: {carried:.0%} ± {spread:.0%} of the fit carries over"
    if share - spread > _LEARNING:
        return LabelVerdict(
            "learning",
            "The network learns its task: most of what it fits carries over to new examples.",
            because,
            sure,
            "Compare layers to see where the task is carried.",
            measured=True,
        )
    if share + spread < _LEARNING:
        return LabelVerdict(
            "memorising",
            "The network mostly memorises: most of what it fits does not carry over.",
            because,
            sure,
            _TRY,
            measured=True,
        )
    if spread > _RESOLVED:
        text = "There are too few held-out examples to say how much of the fit carries over."
        advice = "Pass more held-out examples, or train it longer."
        return LabelVerdict("undecided", text, because, sure, advice, measured=True)
    return LabelVerdict(
        "undecided",
        "About half of what the network fits carries over to new examples.",
        because,
        sure,
        _TRY,
        measured=True,
    )


_TRY = "Look at the labels of some examples; add data, augmentation or weight decay; stop earlier."


def _from_training_set(evidence: FitEvidence) -> LabelVerdict:
    inputs = max(evidence.input_neighbours, evidence.input_readout)
    in_inputs, in_first = evidence.share(inputs), evidence.share(evidence.first_layer_neighbours)
    per_number = evidence.examples / evidence.input_size
    numbers = (
        f"training accuracy {evidence.accuracy:.0%}, chance {evidence.chance:.0%}; from inputs "
        f"of the other examples alone {inputs:.0%} can be told, from neighbours in the first layer "
        f"{evidence.first_layer_neighbours:.0%}"
    )
    if in_inputs >= _LEARNING and in_first < _KEPT * in_inputs:
        return _undecided(
            "the inputs hold the labels and the first layer scrambles them, as layers of a large "
            f"initial scale do in networks that memorise; {numbers}"
        )
    if in_inputs >= _LEARNING:
        because = f"the inputs alone carry {in_inputs:.0%} of the fit"
        return _learning(f"{because}; {numbers}")
    if per_number >= _CANNOT_MEMORISE and in_first >= _FIRST_LAYER:
        because = (
            f"the first layer carries {in_first:.0%} of the fit, and with {per_number:.0f} "
            "examples per input number it cannot have memorised them"
        )
        return _learning(f"{because}; {numbers}")
    at_chance = (
        abs(evidence.deviations(evidence.input_neighbours)) < _CHANCE[0]
        and abs(evidence.deviations(evidence.input_readout)) < _CHANCE[1]
    )
    if at_chance and (in_first < _NOTHING or per_number < _CAN_MEMORISE):
        return LabelVerdict(
            "memorising",
            "The network looks like memorising: its labels have no visible tie to its inputs.",
            f"neither neighbours nor a linear read-out of the inputs beat chance; {numbers}",
            _trust("memorising"),
            f"Check the accuracy on held-out data (held_out=). {_TRY}",
        )
    if at_chance:
        return _undecided(f"the inputs show no tie to the labels, the first layer does; {numbers}")
    if in_inputs <= 0:
        return _undecided(f"neighbours agree less often than chance: a rule may hide; {numbers}")
    return _undecided(
        f"the inputs carry {in_inputs:.0%} of the fit, too little to call it learning "
        f"and too much to call it memorising; {numbers}"
    )


def _learning(because: str) -> LabelVerdict:
    return LabelVerdict(
        "learning",
        "The network looks like learning: much of what it fits can be read off the inputs.",
        because,
        _trust("learning"),
        "Held-out data still decides (held_out=): part of the labels may be memorised as well.",
    )


def _undecided(because: str) -> LabelVerdict:
    return LabelVerdict(
        "undecided",
        "Training data alone do not say whether the network learns or memorises.",
        because,
        f"no verdict, as in {CALIBRATION.undecided} of {CALIBRATION.runs} runs of the calibration "
        f"and {ZOO.undecided} of {ZOO.runs} of the alignment zoo",
        "Pass held_out= examples, or compare with a run on shuffled labels.",
    )


def _little_fitted(because: str) -> LabelVerdict:
    return LabelVerdict(
        "undecided",
        "The network fits too few of its examples to ask whether it learns or memorises.",
        because,
        "no verdict",
        "Train it longer, or check labels, preprocessing and learning rate.",
    )


def _trust(answer: Answer) -> str:
    return (
        f"{CALIBRATION.error(answer)} of its calibration: {CALIBRATION.domain}; "
        f"{ZOO.error(answer)} of the alignment zoo: {ZOO.domain}"
    )
