"""Learning or memorising: what the contrast of features says, and how far that can be trusted."""

import math
from dataclasses import dataclass

from theodolite.report._reading import Group, Moment, RunView
from theodolite.report._sentences import paragraph
from theodolite.report.pages import finite, plain, shown

__all__ = [
    "GRADIENT_THRESHOLD",
    "GRADIENT_VALIDATION",
    "MEANING",
    "THRESHOLD",
    "VALIDATION",
    "Validation",
    "memorization_sentence",
]

_FAMILY = "gradient"
_FEATURES, _GRADIENTS = "feature_omega_contrast", "omega_contrast"
# First layer's share of the output's contrast from which on a run looks like learning: halfway
# between true and shuffled labels for fully connected networks on digits.
THRESHOLD = 0.038
# First layer's contrast of gradients below which examples of a class teach each other nothing.
GRADIENT_THRESHOLD = 0.01
_CALIBRATED = "own output"  # where the features were read that the rules were chosen on
_FITTED = 0.25  # of the loss of guessing; the rule is for networks that fit their training set


@dataclass(frozen=True)
class Validation:
    """How often a rule was wrong on runs that its threshold was not chosen on."""

    runs: int
    wrong: int
    at_most: float


# The studies mehta2021.memorisation and mehta2021.fig1-2; a test compares them with the records.
VALIDATION = Validation(runs=50, wrong=0, at_most=0.058)
GRADIENT_VALIDATION = Validation(runs=44, wrong=1, at_most=0.103)

MEANING = (
    "A network that learns builds on class structure that its inputs have: already its first layer "
    "sets the classes apart, and gradients of a class agree. One that memorises makes classes up "
    "in its last layers (labels that mean nothing), or treats every example by itself (a first "
    "layer of a large initial scale). Contrast is Ω within classes minus Ω of all pairs."
)
_TRY_MEMORIZING = (
    "To try: compare the accuracy with that on held-out data; look at the labels of some "
    "examples; start with a smaller first layer; add data, augmentation or weight decay"
)
_TRY_LEARNING = (
    "To try: accuracy on held-out data still decides; most runs with half of their labels wrong "
    "look like learning too"
)


def memorization_sentence(group: Group, step: int | None = None) -> str:
    """Whether each run looks like learning or memorising, on which grounds, and what to try.

    Empty where no run has the contrast of the features of two layers.
    """
    told = [(run, _verdict(group, run, step)) for run in group.runs]
    known = [(run, text) for run, text in told if text]
    if not known:
        return ""
    parts = [f"{plain(run.name)}: {text}" if len(group.runs) > 1 else text for run, text in known]
    return paragraph(group, [*parts, _trust()])


def _verdict(group: Group, run: RunView, step: int | None) -> str:
    moment = run.holding(step, _FAMILY, _GRADIENTS)
    layers = [name for name in group.layers if finite(moment.value(_FAMILY, _FEATURES, name))]
    if len(layers) < 2:
        return ""
    row = moment.row(_FAMILY, _FEATURES, layers[0]) or {}
    if row.get("read_at") not in (None, _CALIBRATED):
        return (
            f"no verdict: features were read {plain(row['read_at'])}, and the rules were chosen "
            'and validated on layers\' own outputs; survey with read="raw" for a verdict'
        )
    loss = moment.value(_FAMILY, "loss", None)
    guessing = _guessing(moment)
    if finite(loss) and guessing is not None and loss > _FITTED * guessing:
        return (
            f"no verdict: the mean loss of {shown(loss)} is not far below that of guessing "
            f"({shown(guessing)}), and the rules are for networks that fit their training set"
        )
    first, last = (_excess(moment, _FEATURES, name) for name in (layers[0], layers[-1]))
    share = max(first, 0.0) / last if last > 0 else math.nan
    if not finite(share):
        return "no verdict: the output does not set the classes apart"
    features = (
        f"the first layer ({plain(layers[0])}) has {share:.1%} of the output's contrast of "
        f"features ({shown(first)} of {shown(last)}{_deviations(moment, layers[0])}; "
        f"{THRESHOLD:.1%} and more look like learning)"
    )
    agree, gradients = _gradients(group, moment)
    learns = share >= THRESHOLD and agree
    verdict = "looks like learning" if learns else "looks like memorising"
    hint = _TRY_LEARNING if learns else _TRY_MEMORIZING
    return f"{verdict}: {features}{gradients}{_split(moment)}. {hint}"


def _excess(moment: Moment, measure: str, layer: str) -> float:
    """A contrast beyond that of permuted labels, where that is known."""
    row = moment.row(_FAMILY, measure, layer) or {}
    null = row.get("null_mean")
    return moment.value(_FAMILY, measure, layer) - (0.0 if null is None else float(null))


def _deviations(moment: Moment, layer: str) -> str:
    row = moment.row(_FAMILY, _FEATURES, layer) or {}
    spread = row.get("null_sd")
    if not spread:
        return ""
    score = _excess(moment, _FEATURES, layer) / float(spread)
    return f", {score:.1f} deviations of permuted labels"


def _gradients(group: Group, moment: Moment) -> tuple[bool, str]:
    """Whether gradients of a class agree in the first layer that has some, and the words."""
    values = [(name, _excess(moment, _GRADIENTS, name)) for name in group.layers]
    known = [(name, value) for name, value in values if finite(value)]
    if not known:
        return True, ""
    name, value = known[0]
    agree = value >= GRADIENT_THRESHOLD
    return agree, (
        f", and gradients of a class {'agree' if agree else 'do not agree'} in {plain(name)} "
        f"(contrast {shown(value)}; {GRADIENT_THRESHOLD:g} and more look like learning)"
    )


def _split(moment: Moment) -> str:
    split = moment.record.contents.get("data", {}).get("split")
    if split in ("train", None, "unknown"):
        return ""
    return f"; measured on {plain(str(split))} examples, validated on training examples"


def _guessing(moment: Moment) -> float | None:
    """Cross-entropy of guessing; None where the loss is another, or classes are not known."""
    data = moment.record.contents.get("data", {})
    classes = data.get("num_classes")
    return math.log(classes) if isinstance(classes, int) and classes > 1 else None


def _trust() -> str:
    features, gradients = VALIDATION, GRADIENT_VALIDATION
    return (
        "On data and architectures that the thresholds do not come from, the rule for features was "
        f"wrong in {features.wrong} of {features.runs} runs with true and with shuffled labels "
        f"(95 % confidence: at most {features.at_most:.1%}), and the rule for gradients in "
        f"{gradients.wrong} of {gradients.runs} with small and with large initial scales (at most "
        f"{gradients.at_most:.1%}). All of those tasks have classes that directions of the inputs "
        "set apart. Where none does (XOR, parity), the rule calls learning memorising"
    )
