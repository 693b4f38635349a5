"""Typed findings about the numbers of a record, with the thresholds of every sentence.

:mod:`theodolite.advice.answers` reads the numbers from a record. :mod:`theodolite.advice.sentences`
turns findings into words.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import inf, sqrt
from typing import Literal

import numpy as np
from scipy.special import ndtri

from theodolite.advice.inputs import FitEvidence, InputFinding
from theodolite.errors import DomainError
from theodolite.records import CHANCE, NORMAL, require_class, wilson

_BEYOND = 3.0  # standard deviations from chance, for the best of several layers or groups
CLEAR = 5.0  # the same for a clear answer
LEVEL_SHARE = 0.05  # changes below this share of the largest value count as none
# Families that read labels; runs are compared by the first.
LABELED = ("kernel", "representation", "gradient")
_LEARNED, _MEMORISED = 0.9, 0.1  # share of the fit that carries over: at least, or at most
_HALF = 0.5
_RESOLVED = 0.35  # largest distance from a half to either end of the interval of "half of the fit"
_NARROW = 0.3  # widest interval of a share with a clear verdict; chosen before any test
_FEW, _LARGE = 100, 0.1  # with fewer examples or a larger gap layers are not called equal
_FITTED = 0.1  # share of the possible fit; a network with less fits too little
REPEATED = 0.05  # share of the examples; with more copies, leaving out one example is no test
LEVEL = 0.95  # confidence level of every interval


@dataclass(frozen=True)
class Measured:
    """The accuracy or R² of a network on some examples.

    Args:
        measure: "accuracy", "balanced_accuracy" (mean over classes), "r2" or "label_accuracy"
            (several labels per example).
        value: value of the measure.
        chance: value of always predicting the most frequent answer, below 1.
        n: number of examples or positions.
        error: standard error; accuracies have Wilson's interval instead.
        noun: "examples" or "positions".
    """

    measure: str
    value: float
    chance: float
    n: int
    error: float = 0.0
    noun: str = "examples"

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
        """The fit: (value - chance) / (1 - chance)."""
        return self.above(self.value)

    def above(self, value: float) -> float:
        """The fit of another value, such as an end of the interval."""
        return (value - self.chance) / (1 - self.chance)

    @property
    def beyond_chance(self) -> bool:
        """Whether the interval lies above chance."""
        return self.interval[0] > self.chance


class Verdict(StrEnum):
    """The verdict about a network and its training examples."""

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
        train: measured on training examples with their training labels; None for a loss.
        held_out: measured on held-out examples; None for a loss.
        share: fit (:attr:`Measured.fit`) on held-out examples, divided by that on training
            examples; nan if the latter is too small.
        low: lower end of its 95 % interval.
        high: upper end of its 95 % interval.
        losses: training and held-out loss with their numbers of sequences. ``share`` is then the
            fall of the held-out loss since the first measurement, divided by that of the training
            loss.
        shift: accuracy of a linear probe that separates held-out from training inputs; None if it
            is at chance (one half).
        left_out: number of held-out examples that are not used: copies, or of new classes.
    """

    train: Measured | None
    held_out: Measured | None
    share: float
    low: float
    high: float
    losses: tuple[float, int, float, int] | None = None
    shift: float | None = None
    left_out: int = 0

    @property
    def shift_cost(self) -> float:
        """Share of the fit that held-out examples may have lost because they are of another kind.

        Accuracies on two distributions differ by at most their total variation distance. The
        accuracy of the probe gives a lower bound of this distance.
        """
        if self.shift is None or self.train is None or self.held_out is None:
            return 0.0
        return (2 * self.shift - 1) / (1 - self.held_out.chance) / self.train.fit

    @property
    def verdict(self) -> Verdict:
        """Learned or memorised, if the interval decides."""
        if not self.share > -inf:
            return Verdict.UNDECIDED
        if self.low > _HALF:
            return Verdict.LEARNED if self.share >= _LEARNED else Verdict.MOSTLY_LEARNED
        high = self.high + self.shift_cost
        if high < _HALF:
            return Verdict.MEMORISED if self.share <= _MEMORISED else Verdict.MOSTLY_MEMORISED
        around = self.low >= _HALF - _RESOLVED and self.high >= _HALF
        return Verdict.HALF if around and high <= _HALF + _RESOLVED else Verdict.UNDECIDED

    @property
    def narrow(self) -> bool:
        """Whether the interval is narrow enough for a clear verdict."""
        return self.high - self.low <= _NARROW


def carry_over(
    train: Measured,
    held_out: Measured,
    *,
    shift: float | None = None,
    left_out: int = 0,
) -> CarryOver:
    """The share of the fit that carries over, with its interval.

    The interval of the ratio combines the ends of both intervals (the MOVER method). So a share of
    100 % has a one-sided interval.

    Args:
        train: measured on training examples.
        held_out: measured on held-out examples.
        shift: accuracy of a linear probe that separates held-out from training inputs, if it is
            above chance.
        left_out: number of held-out examples that are not used.

    Returns:
        The share of the fit that carries over, with its interval and verdict.

    Examples:
        >>> found = carry_over(Measured("accuracy", 1.0, 0.1, 500), Measured("accuracy", 0.97, 0.1, 300))
        >>> found.verdict.value, round(found.share, 3)
        ('learned', 0.967)
    """  # noqa: E501
    require_class(Measured, train=train, held_out=held_out)
    require_class(int, left_out=left_out)
    if shift is not None:
        require_class(float, shift=shift)
    nan = float("nan")
    fit, other = train.fit, held_out.fit
    (least, most), (fewest, largest) = (
        [found.above(end) for end in found.interval] for found in (train, held_out)
    )
    little = fit < _FITTED if train.measure == "r2" else False
    if not train.beyond_chance or little:
        return CarryOver(train, held_out, nan, nan, nan, None, shift, left_out)
    share = other / fit
    low = share - sqrt((other - fewest) ** 2 + (share * (most - fit)) ** 2) / fit
    high = share + sqrt((largest - other) ** 2 + (share * (fit - least)) ** 2) / fit
    return CarryOver(train, held_out, share, low, high, None, shift, left_out)


@dataclass(frozen=True)
class FitOnTraining:
    """A fit without held-out examples.

    Args:
        train: measured on the given examples, which the network may have been trained on.
        inputs: verdict of the rule on raw inputs.
        evidence: the numbers of this rule, for a classifier.
        input_r2: share of the targets' variance that a linear probe on the raw inputs explains.
        repeated: share of the examples whose inputs occur more than once among them.
        left_out: held-out examples that were given, none of which can be used.
    """

    train: Measured
    inputs: InputFinding = InputFinding.UNDEFINED
    evidence: FitEvidence | None = None
    input_r2: float | None = None
    repeated: float = 0.0
    left_out: int = 0

    @property
    def little(self) -> bool:
        """Whether the fit is too small for a verdict."""
        if self.inputs == InputFinding.LITTLE_FITTED or not self.train.beyond_chance:
            return True
        return self.train.measure == "r2" and self.train.fit < _FITTED


@dataclass(frozen=True)
class HeldOutFit:
    """The accuracy of a network on examples that it was not trained on.

    Args:
        measured: measured on these examples.
        labels: number of labels of a vocabulary over which positions were drawn evenly.
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
    """Data without labels or targets, or with a single label.

    Args:
        one_label: whether all examples have the same label.
    """

    one_label: bool = False


@dataclass(frozen=True)
class LastLayer:
    """The headline of a family in the last layer, for surveys without accuracies.

    Args:
        family: the family.
        layer: the last layer.
        value: its headline number.
        chance: mean over permuted labels; None if it was not measured.
        deviations: standard deviations above chance; infinite if chance was not measured.
        trained_on: whether the network may have been trained on these examples.
        goal: "labels" or "targets".
        losses: the loss and its chance level, for a classifier with cross-entropy.
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
        """Whether the number is above its chance level."""
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
        values: value of every layer, in order, without the raw input.
        interval: 95 % interval of the best layer.
        chance: chance level of an accuracy.
        n: number of examples that judge the probes.
        best: the layer with the highest value.
        alike: layers that are not significantly worse than the best, in order, with the best.
        input_value: value of the raw input; None if it was not measured.
        input_alike: whether the raw input is not significantly worse than the best layer.
        judged_on: "held-out" examples, or training examples left out one at a time.
        fitted_on: number of examples that the probes were fitted on.
        trained_on: whether the features may have been trained on the labels that judge them.
        memorised: whether the network memorised these labels.
        paired: whether differences are example by example.
        goal: "labels" or "targets".
        model: False for features without a network.
        above_chance: whether the best layer is above chance.
        has_held_out: whether held-out examples were given.
        repeated: share of the examples whose inputs occur more than once among them.
        noun: "examples" or "positions".
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
    repeated: float = 0.0
    noun: str = "examples"

    @property
    def first(self) -> str:
        """The first layer that is not significantly worse than the best."""
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

    @property
    def may_differ(self) -> bool:
        """Whether more examples could show a difference: there are few, or the gap is large."""
        reference = self.input_value if self.input_alike else min(self.values.values())
        gap = 0.0 if reference is None else self.values[self.best] - reference
        return self.n < _FEW or gap > _LARGE


def compare_layers(scores: Mapping[str, np.ndarray], *, shares: bool) -> tuple[str, set[str]]:
    """The layer with the highest mean score, and layers that are not significantly worse.

    Layers are compared example by example. The same data choose the best layer. So each of the
    k (k - 1) / 2 pairs is compared at the level 0.05 divided by their number (Bonferroni). Small
    counts of right answers are adjusted after Bonett and Price.

    Args:
        scores: scores of every layer, one number per example, in the same order.
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
    require_class(Mapping, scores=scores)
    require_class(bool, shares=shares)
    if not scores:
        raise DomainError("scores: expected at least one layer, got none")
    for name, values in scores.items():
        require_class(np.ndarray, **{f"scores[{name!r}]": values})
    best = max(scores, key=lambda name: float(np.mean(scores[name])))
    comparisons = max(len(scores) * (len(scores) - 1) // 2, 1)
    deviations = float(ndtri(1 - (1 - LEVEL) / 2 / comparisons))
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
        groups: names of the groups.
        layer: layer with the largest difference.
        value: this difference of alignments (mean inner product over squared mean norm).
        chance: mean and standard deviation for permuted groups; None if not measured.
        beyond: number of layers whose difference is beyond chance.
        layers: number of layers with a chance level.
        within: alignment within groups, for all parameters together.
        overall: alignment over all examples.
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
        """Standard deviations above permuted groups; nan without permuted groups."""
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
