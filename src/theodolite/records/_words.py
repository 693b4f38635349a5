"""The words of results: the five families, typed answers, names and numbers within a sentence."""

import math
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

import numpy as np


@dataclass(frozen=True)
class Family:
    """The words of a family of measures.

    Args:
        key: its name in records, in ``families=`` and in data frames.
        headline: its headline measure, by its name in records.
        heading: the name of this measure in tables, axes and pages.
        question: the question about a layer.
        reading: how to read the headline number.
        chance: how the chance level of the headline is measured.
        lower_is_aligned: whether a small headline means aligned.
    """

    key: str
    headline: str
    heading: str
    question: str
    reading: str
    chance: str = "permuted labels"
    lower_is_aligned: bool = False

    @property
    def title(self) -> str:
        """The name of the family at the head of a section."""
        return self.key.capitalize()

    @property
    def figure(self) -> str:
        """The key of the headline's figure on a page."""
        return f"{self.key}-{self.headline}".replace("_", "-")


FAMILIES: Mapping[str, Family] = {
    family.key: family
    for family in (
        Family(
            "representation",
            headline="alignment_area",
            heading="label alignment",
            question="Do the labels lie on the strong directions of a layer's features?",
            reading="From 0 to 1. High: a linear probe of this layer learns the labels in few"
            " steps.",
        ),
        Family(
            "covariance",
            headline="relative_misalignment",
            heading="misalignment / random",
            question="Do the weights of a layer follow the principal directions of its inputs?",
            reading="1 is chance (random directions). Below 1: the weights follow the data.",
            chance="random bases",
            lower_is_aligned=True,
        ),
        Family(
            "kernel",
            headline="cka_target",
            heading="CKA to labels",
            question="Are examples with the same label similar in a layer?",
            reading="1: two examples are similar if and only if they have the same label."
            " 0: similarity does not depend on the labels.",
        ),
        Family(
            "tangent",
            headline="tangent_alignment",
            heading="tangent alignment",
            question="Would a gradient step in this layer move the outputs towards the labels?",
            reading="The cosine of an angle. High: a gradient step in this layer moves the outputs"
            " along the labels. It does not say how far.",
        ),
        Family(
            "gradient",
            headline="feature_omega_contrast",
            heading="feature contrast",
            question="Are features of one class more similar than those of any two examples?",
            reading="Mean inner product of features over their squared mean norm: within a class,"
            " minus that over all examples. 0: the direction of the features does not depend on the"
            " class.",
        ),
    )
}

# The sentences about layers are based on linear probes, which have their own column in tables.
PROBES: Mapping[str, Family] = {
    family.headline: family
    for family in (
        Family(
            "representation",
            headline="probe_accuracy",
            heading="probe accuracy",
            question="How accurately does a linear probe of a layer predict the labels?",
            reading="Share of examples that a linear probe predicts correctly. The probe was not"
            " fitted to these examples.",
            chance="always predicting the largest class",
        ),
        Family(
            "representation",
            headline="probe_r2",
            heading="probe R²",
            question="How accurately does a linear probe of a layer predict the targets?",
            reading="Share of the variance of the targets that a linear probe explains. The probe"
            " is fitted on other examples.",
            chance="always predicting the mean",
        ),
    )
}


# Other measures that sentences name.
MEASURES: Mapping[str, str] = {
    "cka_input": "CKA to the input",
    "cka_truth": "CKA to truth",
    "omega_contrast": "gradient contrast",
    "neighbour_accuracy": "nearest-neighbour accuracy",
    "input_neighbour_accuracy": "nearest-neighbour accuracy of raw inputs",
    "input_probe_accuracy": "probe accuracy of raw inputs",
}


class Note(StrEnum):
    """Kinds of reasons and notes in a record; :mod:`theodolite.advice.reasons` has their words."""

    NO_TARGETS = "no-targets"
    NO_LOSS = "no-loss"
    SEQUENCE_TARGETS = "sequence-targets"
    NO_EXAMPLE_LABELS = "no-example-labels"
    SAME_LABEL = "same-label"
    FEWER_THAN_FOUR = "fewer-than-four"
    FEW_EXAMPLES = "few-examples"
    NOISY = "noisy"
    SINGLE_EXAMPLES = "single-examples"
    NO_OUTPUT_ROWS = "no-output-rows"
    NO_OUTPUT_POSITIONS = "no-output-positions"
    NO_MODEL = "no-model"
    NO_PARAMETERS = "no-parameters"
    NO_MATRICES = "no-matrices"
    BLOCKS = "blocks"
    ZERO_FEATURES = "zero-features"
    CONSTANT_FEATURES = "constant-features"
    NOT_FINITE = "not-finite"
    LONG_ROWS = "long-rows"
    ISOTROPIC = "isotropic"
    ONE_INPUT = "one-input"
    FEW_FILTERS = "few-filters"
    NO_DIRECTIONS = "no-directions"
    NO_PATCH = "no-patch"
    CONSTANT_KERNEL = "constant-kernel"
    UNDEFINED = "undefined"
    SKETCHED = "sketched"
    NOT_IN_SKETCHES = "not-in-sketches"
    UNRESOLVED = "unresolved"
    PEAK_UNRESOLVED = "peak-unresolved"
    PEAK_UNDEFINED = "peak-undefined"
    NO_BALANCE = "no-balance"
    ZERO_GRADIENTS = "zero-gradients"
    ZERO_VECTORS = "zero-vectors"
    LOSS_NOT_FINITE = "loss-not-finite"
    NO_GAIN = "no-gain"
    INTERRUPTED = "interrupted"
    NOT_DUE = "not-due"
    NO_TIME = "no-time"
    COVARIANCE_BYTES = "covariance-bytes"
    UNIT_GRADIENT_BYTES = "unit-gradient-bytes"
    PICTURE_BYTES = "picture-bytes"
    FEWER_FOR_MEMORY = "fewer-for-memory"
    FEWER_FOR_TIME = "fewer-for-time"
    READ_IN_PART = "read-in-part"
    TAKEN_AS_LABELS = "taken-as-labels"
    NEXT_TOKENS = "next-tokens"
    INPUTS_FITTED = "inputs-fitted"
    POSITIONS = "positions"
    CUT = "cut"
    SINGLE_CLASSES = "single-classes"
    FEW_LABELS = "few-labels"
    UNUSED_ENTRY = "unused-entry"
    NOTHING_TRAINABLE = "nothing-trainable"
    FEWER_EXAMPLES = "fewer-examples"
    FEWER_FOR_SECONDS = "fewer-for-seconds"
    BEYOND_SECONDS = "beyond-seconds"
    FEATURES_ALONE = "features-alone"
    TANGENT_MEMORY = "tangent-memory"
    DEVICE_MEMORY = "device-memory"
    LOW_FORECASTS = "low-forecasts"
    JUDGED_BY_FEATURES = "judged-by-features"
    PROBES_DISAGREE = "probes-disagree"
    ONE_SIZE = "one-size"
    ORDER_OF_SIZE = "order-of-size"
    LARGEST_FIRST = "largest-first"
    LARGEST_NOT_FIRST = "largest-not-first"
    # What an error of a measurement was about; its message is quoted beside the kind.
    OVER_MEMORY_LIMIT = "over-memory-limit"
    VALUES_NOT_FINITE = "values-not-finite"
    MODEL_NOT_FOLLOWED = "model-not-followed"
    PROCESS_LOST = "process-lost"
    REFUSED = "refused"
    UNEXPECTED = "unexpected-error"
    HELD_OUT_COPIES = "held-out-copies"
    HELD_OUT_CLASSES = "held-out-classes"


# Number of decimals by size; half a unit below a power of ten rounds up.
_DECIMALS = ((99.95, 0), (9.995, 1), (0.9995, 2), (0.00995, 3), (0.0001, 4))
_LARGE = 1e7
_COUNTS = ("predicted_steps", "modes_to_reach")
_GROUPED = 1e4  # from here on digits are in groups of three

Certainty = Literal["clear", "likely", "undecided"]
CERTAINTIES: tuple[Certainty, ...] = ("clear", "likely", "undecided")
# Findings about the task which mean that a network mostly memorised its training examples.
MEMORISED = ("memorised", "mostly-memorised")


@dataclass(frozen=True)
class Answer:
    """One sentence about a network, with its certainty and its evidence.

    Args:
        question: "task", "layer" or "groups"; older records have "next" too.
        text: the answer, with its number.
        certainty: "clear" (measured on held-out examples), "likely" or "undecided".
        evidence: the numbers behind it, in one line.
        advice: what to do, with the argument to pass; empty if there is nothing to do.
        finding: the answer as one word for programs; docs/answers.md lists them.
        figures: keys of the figures of a report that show the evidence.
    """

    question: str
    text: str
    certainty: Certainty
    evidence: str = ""
    advice: str = ""
    finding: str = ""
    figures: tuple[str, ...] = ()

    @classmethod
    def from_entry(cls, entry: Mapping[str, Any]) -> "Answer":
        """An answer from its entry in a record; missing text is empty."""
        words = ("question", "text", "evidence", "advice", "finding")
        known = {key: str(entry.get(key, "")) for key in words}
        given = entry.get("certainty")
        sure: Certainty = next((level for level in CERTAINTIES if level == given), "undecided")
        return cls(**known, certainty=sure, figures=tuple(map(str, entry.get("figures", ()))))

    def to_entry(self) -> dict[str, Any]:
        """Plain data for a record."""
        return vars(self) | {"figures": list(self.figures)}

    def lines(self) -> list[str]:
        """The text for a terminal: the sentence, its evidence, the advice without backticks."""
        below = [f"{self.certainty}: {self.evidence}" if self.evidence else self.certainty]
        below += [self.advice.replace("`", "")] if self.advice else []
        return [self.text, *(f"    {line}" for line in below)]

    def __str__(self) -> str:
        return f"{self.text} ({self.certainty}: {self.evidence})"


def listed(names: Iterable[str], most: int | None = None) -> str:
    """Names in a sentence.

    Args:
        names: the names; no names give an empty text.
        most: largest number of names, followed by the number of others; None for all.

    Examples:
        >>> listed(["a"]), listed(["a", "b", "c"]), listed("abcde", most=3), listed([])
        ('a', 'a, b and c', 'a, b, c and 2 more', '')
    """
    named = list(names)
    if most is not None and len(named) > most:
        named = [*named[:most], f"{len(named) - most} more"]
    return " and ".join(filter(None, [", ".join(named[:-1]), *named[-1:]]))


def plain(text: str) -> str:
    """The text without control characters; a nameless layer is the model itself."""
    visible = "".join("�" if unicodedata.category(c) in {"Cc", "Cf", "Cs"} else c for c in text)
    return visible or "(model)"


def finite(value: Any) -> bool:
    """Whether this is a number that can be drawn."""
    return isinstance(value, (int, float, np.number)) and math.isfinite(value)


def shown(value: int | float | None) -> str:
    """A number with three significant digits, and at most three decimals above 0.01; else a dash.

    Examples:
        >>> shown(0.12345), shown(0.03), shown(1234.5), shown(0.9996), shown(0.0012345)
        ('0.123', '0.030', '1234', '1.00', '0.0012')
        >>> shown(6902300)
        '6,902,300'
        >>> shown(0.0), shown(-2e-6), shown(float("inf")), shown(float("nan"))
        ('0', '−2.0e−06', '∞', '–')
    """
    if value is None or math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    size = abs(value)
    decimals = next((d for limit, d in _DECIMALS if size >= limit), None)
    if value == 0:
        text = "0"
    elif decimals is None or size >= _LARGE:
        text = f"{value:.1e}"
    else:
        text = f"{value:,.{decimals}f}" if size >= _GROUPED else f"{value:.{decimals}f}"
    return text.replace("-", "−")


def shown_as(measure: str, value: int | float | None, *, signed: bool = False) -> str:
    """A number in the form of its measure: accuracies in per cent, counts without decimals.

    Examples:
        >>> shown_as("probe_accuracy", 0.547), shown_as("cka_target", 0.272)
        ('54.7 %', '0.272')
        >>> shown_as("predicted_steps", 31.0), shown_as("predicted_steps", 6902300.0)
        ('31', '6,902,300')
        >>> shown_as("cka_target", 0.02, signed=True), shown_as("probe_accuracy", float("nan"))
        ('+0.020', '–')
        >>> shown_as("probe_accuracy", -0.25, signed=True)
        '−25 points'
    """
    plus = "+" if signed and finite(value) and float(value or 0) > 0 else ""
    if measure.endswith("accuracy") and finite(value):
        number = f"{plus}{100 * float(value or 0):.1f}".replace("-", "−").removesuffix(".0")
        return f"{number} {'points' if signed else '%'}"
    if measure in _COUNTS and finite(value) and abs(value or 0) < _LARGE:
        return f"{plus}{value:,.0f}".replace("-", "−")
    return plus + shown(value)


def short_count(count: int) -> str:
    """A large count with three digits.

    Examples:
        >>> short_count(950), short_count(2_230_000), short_count(58_100_000)
        ('950', '2.23M', '58.1M')
    """
    for limit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= limit:
            return f"{count / limit:.3g}{letter}"
    return str(count)
