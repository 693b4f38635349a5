"""What the numbers of a record say, as typed values, and the thresholds of every sentence.

:mod:`theodolite.advice.sentences` turns these findings into words, :mod:`theodolite.advice.answers`
reads the numbers from a record.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import inf, sqrt
from typing import Literal

import numpy as np
from scipy.special import ndtri

from theodolite.advice.inputs import FitEvidence, InputFinding

__all__ = [
    "CARRIED",
    "CHANCE",
    "CLEAR",
    "LABELED",
    "LEVEL_SHARE",
    "NORMAL",
    "CarryOver",
    "Fit",
    "FitOnTraining",
    "GroupContrast",
    "HeldOutFit",
    "LastLayer",
    "LayerProbes",
    "LayersFinding",
    "Measured",
    "Unlabelled",
    "carry_over",
    "compare_layers",
    "wilson",
]

CHANCE = 2.0  # standard deviations of chance: nearer numbers are within chance
_BEYOND = 3.0  # the same for the best of several layers, or groups
CLEAR = 5.0  # the same for a sentence that is clear
CARRIED = 0.7  # of a layer's number is left on held-out examples: it carries over
LEVEL_SHARE = 0.05  # changes below this share of the largest value are called none
# Families that read labels, the one that runs are compared by first.
LABELED = ("kernel", "representation", "gradient")
_LEARNED, _MEMORISED = 0.9, 0.1  # of the fit carries over: all but a tenth, or no more than that
_HALF = 0.5
_RESOLVED = 0.35  # half the width of an interval beyond which the share is undecided
_FITTED = 0.1  # of the variance that can be explained: less of it is little
_LEVEL = 0.95  # of every interval
NORMAL = float(ndtri((1 + _LEVEL) / 2))


def wilson(share: float, n: int) -> tuple[float, float]:
    """The 95 % interval of a share of n examples, after Wilson.

    Args:
        share: between 0 and 1.
        n: number of examples.

    Returns:
        The ends of the 95 % interval.

    Examples:
        >>> low, high = wilson(1.0, 500)
        >>> round(low, 4), high
        (0.9924, 1.0)
    """
    square = NORMAL**2 / n
    middle = (share + square / 2) / (1 + square)
    half = NORMAL * sqrt(max(share * (1 - share), 0.0) / n + square / (4 * n)) / (1 + square)
    low = 0.0 if share <= 0 else middle - half
    return low, 1.0 if share >= 1 else middle + half


@dataclass(frozen=True)
class Measured:
    """How well a network does on some examples.

    Args:
        measure: "accuracy", "r2" or "label_accuracy" (of several labels per example).
        value: that share.
        chance: what the commonest answer reaches, below 1.
        n: examples, or positions.
        error: standard error; of an accuracy the interval is Wilson's.
    """

    measure: str
    value: float
    chance: float
    n: int
    error: float = 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval."""
        if self.measure == "accuracy":
            return wilson(self.value, self.n)
        half = NORMAL * self.error
        high = self.value + half
        return self.value - half, high if self.measure == "r2" else min(high, 1.0)

    @property
    def fit(self) -> float:
        """What lies beyond chance, as a share of all that could."""
        return self.above(self.value)

    def above(self, value: float) -> float:
        """The same of another value, such as an end of the interval."""
        return (value - self.chance) / (1 - self.chance)

    @property
    def beyond_chance(self) -> bool:
        """Whether the interval lies above chance."""
        return self.interval[0] > self.chance


class Fit(StrEnum):
    """What a network did with its training examples."""

    LEARNED = "learned"
    MOSTLY_LEARNED = "mostly-learned"
    HALF = "half"
    MOSTLY_MEMORISED = "mostly-memorised"
    MEMORISED = "memorised"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class CarryOver:
    """The share of a fit that carries over to held-out examples.

    Args:
        train: on training examples, with the labels of the training; None of a loss.
        held_out: on others; None of a loss.
        share: of the fit that carries over; nan where there is too little fit.
        low: end of its 95 % interval.
        high: the other end.
        wrong_labels: share of the training labels that differ from the true ones, where known.
        losses: training and held-out loss with their numbers of sequences, where ``share`` is of
            what the loss has fallen by since the first measurement.
    """

    train: Measured | None
    held_out: Measured | None
    share: float
    low: float
    high: float
    wrong_labels: float | None = None
    losses: tuple[float, int, float, int] | None = None

    @property
    def verdict(self) -> Fit:
        """Learned or memorised, as far as the interval decides."""
        if not self.share > -inf:
            return Fit.UNDECIDED
        if self.low > _HALF:
            return Fit.LEARNED if self.share >= _LEARNED else Fit.MOSTLY_LEARNED
        if self.high < _HALF:
            return Fit.MEMORISED if self.share <= _MEMORISED else Fit.MOSTLY_MEMORISED
        return Fit.UNDECIDED if self.high - self.low > 2 * _RESOLVED else Fit.HALF

    @property
    def noise(self) -> float | None:
        """Share of random held-out labels that would make the held-out value the best possible."""
        if self.held_out is None:
            return None
        return (1 - self.held_out.value) / (1 - self.held_out.chance)


def carry_over(
    train: Measured, held_out: Measured, *, wrong_labels: float | None = None
) -> CarryOver:
    """The share of the fit that carries over, with an interval from those of both numbers.

    The interval of the ratio combines the ends of both intervals (the MOVER method), so that a
    share of 100 % keeps its one-sided uncertainty.

    Args:
        train: on training examples.
        held_out: on others.
        wrong_labels: share of the training labels that differ from the true ones, where known.

    Returns:
        The share of the fit that carries over, with its interval and verdict.

    Examples:
        >>> found = carry_over(Measured("accuracy", 1.0, 0.1, 500), Measured("accuracy", 0.97, 0.1, 300))
        >>> found.verdict.value, round(found.share, 3)
        ('learned', 0.967)
    """  # noqa: E501
    nan = float("nan")
    fit, other = train.fit, held_out.fit
    (least, most), (fewest, largest) = (
        [found.above(end) for end in found.interval] for found in (train, held_out)
    )
    little = fit < _FITTED if train.measure == "r2" else False
    if not train.beyond_chance or little:
        return CarryOver(train, held_out, nan, nan, nan, wrong_labels)
    share = other / fit
    low = share - sqrt((other - fewest) ** 2 + (share * (most - fit)) ** 2) / fit
    high = share + sqrt((largest - other) ** 2 + (share * (fit - least)) ** 2) / fit
    return CarryOver(train, held_out, share, low, high, wrong_labels)


@dataclass(frozen=True)
class FitOnTraining:
    """A fit without held-out examples.

    Args:
        train: on the examples given, which the network may have been trained on.
        inputs: what the raw inputs predict of it.
        evidence: the numbers behind ``inputs``, of a classifier.
        input_r2: share of the targets' variance that a linear probe on the raw inputs explains.
    """

    train: Measured
    inputs: InputFinding = InputFinding.UNDEFINED
    evidence: FitEvidence | None = None
    input_r2: float | None = None

    @property
    def little(self) -> bool:
        """Whether there is too little fit to ask what became of it."""
        if self.inputs == InputFinding.LITTLE_FITTED or not self.train.beyond_chance:
            return True
        return self.train.measure == "r2" and self.train.fit < _FITTED


@dataclass(frozen=True)
class HeldOutFit:
    """How well a network does on examples that it was not trained on.

    Args:
        measured: on these examples.
        labels: how many labels the positions were drawn evenly over, of a vocabulary.
    """

    measured: Measured
    labels: int | None = None

    @property
    def clear(self) -> bool:
        """Whether the interval is well away from chance."""
        low, high = self.measured.interval
        return abs(self.measured.value - self.measured.chance) > (CLEAR / NORMAL) * (high - low) / 2


@dataclass(frozen=True)
class Unlabelled:
    """Data without labels or targets."""


@dataclass(frozen=True)
class LastLayer:
    """The headline of a family in the last layer, of a survey without accuracies.

    Args:
        family: whose headline.
        layer: the last one.
        value: of the headline.
        chance: its mean over random labels; None where it was not drawn.
        deviations: standard deviations above chance; infinite where chance was not drawn.
        trained_on: whether the network may have been trained on these examples.
        goal: "labels" or "targets".
        losses: the loss and that of chance, of a classifier with cross entropy.
        has_held_out: whether held-out examples were given.
    """

    family: str
    layer: str
    value: float
    chance: float | None
    deviations: float
    trained_on: bool
    goal: str = "labels"
    losses: tuple[float, float] | None = None
    has_held_out: bool = False

    @property
    def beyond_chance(self) -> bool:
        """Whether the number is more than random labels give."""
        return self.value > 0 and self.deviations > CHANCE


class LayersFinding(StrEnum):
    """How linear probes of the layers compare."""

    CHANCE = "chance"
    ALL_ALIKE = "all-alike"
    INPUT_ALIKE = "input-alike"
    FROM_LAYER = "from-layer"
    ONE_LAYER = "one-layer"


Judged = Literal["held-out", "left-out"]


@dataclass(frozen=True)
class LayerProbes:
    """Linear probes of all layers, in one shape, compared example by example.

    Args:
        measure: "probe_accuracy" or "probe_r2".
        values: of every layer, in order; the raw input is not among them.
        interval: 95 % interval of the best layer.
        chance: of an accuracy.
        n: examples that judged the probes.
        best: the layer of the highest value.
        alike: layers that are not significantly worse than the best, in order, the best among them.
        input_value: of the raw input; None where it was not measured.
        input_alike: whether the raw input is not significantly worse than the best layer.
        judged_on: "held-out" examples, or training examples left out one at a time.
        fitted_on: examples that the probes were fitted on.
        trained_on: whether the features may have been trained on the labels that judge them.
        memorised: whether the network memorised these labels.
        paired: whether differences were taken example by example.
        goal: "labels" or "targets".
        model: False of features without a network.
        above_chance: whether the best layer is.
        has_held_out: whether held-out examples were given.
    """

    measure: str
    values: Mapping[str, float]
    interval: tuple[float, float]
    chance: float
    n: int
    best: str
    alike: tuple[str, ...]
    input_value: float | None
    input_alike: bool
    judged_on: Judged
    fitted_on: int
    trained_on: bool
    memorised: bool = False
    paired: bool = True
    goal: str = "labels"
    model: bool = True
    above_chance: bool = True
    has_held_out: bool = False

    @property
    def first(self) -> str:
        """The first layer that is as good as the best."""
        return self.alike[0]

    @property
    def finding(self) -> LayersFinding:
        """How the layers compare."""
        if not self.above_chance:
            return LayersFinding.CHANCE
        names = list(self.values)
        if self.input_alike:
            return LayersFinding.INPUT_ALIKE
        if len(names) > 1 and len(self.alike) == len(names):
            return LayersFinding.ALL_ALIKE
        onwards = tuple(names[names.index(self.first) :])
        return LayersFinding.FROM_LAYER if self.alike == onwards else LayersFinding.ONE_LAYER


def compare_layers(scores: Mapping[str, np.ndarray], *, shares: bool) -> tuple[str, set[str]]:
    """The layer of the highest mean score, and those that are not significantly worse.

    Differences are taken example by example. The same data choose the best layer. Each of the
    k (k - 1) / 2 pairs is therefore compared at the level 0.05 divided by their number
    (Bonferroni). Counts of right answers are adjusted after Bonett and Price for small counts.

    Args:
        scores: of every layer, one number per example, in one order.
        shares: whether the scores are 0 and 1.

    Returns:
        The best layer, and the layers that are not significantly worse.

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> a = rng.random(400) < 0.7
        >>> b = a | (rng.random(400) < 0.4)
        >>> best, alike = compare_layers({"a": a.astype(float), "b": b.astype(float)}, shares=True)
        >>> best, sorted(alike)
        ('b', ['b'])
    """
    best = max(scores, key=lambda name: float(np.mean(scores[name])))
    comparisons = max(len(scores) * (len(scores) - 1) // 2, 1)
    deviations = float(ndtri(1 - (1 - _LEVEL) / 2 / comparisons))
    alike = {best}
    for name, values in scores.items():
        gaps = np.asarray(scores[best], dtype=np.float64) - np.asarray(values, dtype=np.float64)
        n = len(gaps)
        if shares:
            more, less = (
                (float((gaps > 0).sum()) + 1) / (n + 2),
                (float((gaps < 0).sum()) + 1) / (n + 2),
            )
            gap = more - less
            error = sqrt(max(more + less - gap**2, 0.0) / (n + 2))
        else:
            gap, error = float(gaps.mean()), float(gaps.std(ddof=1)) / sqrt(n)
        if gap <= deviations * error:
            alike.add(name)
    return best, alike


@dataclass(frozen=True)
class GroupContrast:
    """Whether per-example gradients agree more within groups than over all examples.

    Args:
        groups: their names.
        layer: where the difference is largest.
        value: that difference of mean cosine similarities.
        chance: mean and standard deviation with permuted groups; None where they were not drawn.
        beyond: layers whose difference is beyond chance.
        layers: how many have a chance level.
        within: mean cosine within groups, of all parameters.
        overall: the same over all examples.
    """

    groups: Sequence[str]
    layer: str
    value: float
    chance: tuple[float, float] | None
    beyond: int
    layers: int
    within: float
    overall: float

    @property
    def deviations(self) -> float:
        """Standard deviations above permuted groups; nan where they were not drawn."""
        if self.chance is None:
            return float("nan")
        mean, spread = self.chance
        return (self.value - mean) / spread if spread else inf

    @property
    def clear(self) -> bool:
        """Whether the largest difference is far beyond chance."""
        return self.deviations > CLEAR


def beyond_best(value: float, chance: float, spread: float) -> bool:
    """Whether the best of several numbers is beyond chance."""
    return value > chance + _BEYOND * spread
