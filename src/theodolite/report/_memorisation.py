"""Learning or memorising: what the contrast of features says, and how far that can be trusted."""

import math
from dataclasses import dataclass

from theodolite.report._escape import plain
from theodolite.report._numbers import finite, shown
from theodolite.report._reading import Group, Moment, RunView

__all__ = ["MEANING", "THRESHOLD", "VALIDATION", "Validation", "memorization_sentence"]

_FAMILY = "gradient"
_FEATURES, _GRADIENTS = "feature_omega_contrast", "omega_contrast"
# First layer's share of the output's contrast from which on a run looks like learning: halfway
# between true and shuffled labels for fully connected networks on digits.
THRESHOLD = 0.038
_FITTED = 0.25  # of the loss of guessing; the rule is for networks that fit their training set


@dataclass(frozen=True)
class Validation:
    """How often the rule was wrong on runs that its threshold was not chosen on."""

    runs: int
    wrong: int
    at_most: float


# The study mehta2021.memorisation; a test compares it with the records.
VALIDATION = Validation(runs=50, wrong=0, at_most=0.058)

MEANING = (
    "A network that learns builds on class structure that its inputs have, so that already its "
    "first layer sets the classes apart; one that memorises makes it up in its last layers. "
    "Contrast is Ω within classes minus Ω of all pairs."
)
_TRY_MEMORIZING = (
    "To try: compare the accuracy with that on held-out data; look at the labels of some "
    "examples; start with a smaller first layer; add data, augmentation or weight decay"
)
_TRY_LEARNING = (
    "To try: accuracy on held-out data still decides; half of the labels wrong also looks like "
    "learning here"
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
    return " ".join(f"{part[:1].upper()}{part[1:]}." for part in [*parts, _trust()])


def _verdict(group: Group, run: RunView, step: int | None) -> str:
    moment = run.at(step)
    layers = [name for name in group.layers if finite(moment.value(_FAMILY, _FEATURES, name))]
    if len(layers) < 2:
        return ""
    loss = moment.value(_FAMILY, "loss", None)
    guessing = _guessing(moment)
    if finite(loss) and guessing is not None and loss > _FITTED * guessing:
        return (
            f"no verdict: the mean loss of {shown(loss)} is too close to that of guessing "
            f"({shown(guessing)}), and the rule is for networks that fit their training set"
        )
    first, last = (_excess(moment, name) for name in (layers[0], layers[-1]))
    share = max(first, 0.0) / last if last > 0 else math.nan
    if not finite(share):
        return "no verdict: the output does not set the classes apart"
    learns = share >= THRESHOLD
    grounds = (
        f"the first layer ({plain(layers[0])}) has {share:.1%} of the output's contrast of "
        f"features ({shown(first)} of {shown(last)}{_deviations(moment, layers[0])}); from "
        f"{THRESHOLD:.1%} on it looks like learning"
    )
    verdict = "looks like learning" if learns else "looks like memorising"
    hint = _TRY_LEARNING if learns else _TRY_MEMORIZING
    return f"{verdict}: {grounds}{_gradients(group, moment)}{_split(moment)}. {hint}"


def _excess(moment: Moment, layer: str) -> float:
    """Contrast of the features beyond that of permuted labels, where that is known."""
    row = moment.row(_FAMILY, _FEATURES, layer) or {}
    null = row.get("null_mean")
    return moment.value(_FAMILY, _FEATURES, layer) - (0.0 if null is None else float(null))


def _deviations(moment: Moment, layer: str) -> str:
    row = moment.row(_FAMILY, _FEATURES, layer) or {}
    spread = row.get("null_sd")
    if not spread:
        return ""
    return f", {_excess(moment, layer) / float(spread):.1f} deviations of permuted labels"


def _gradients(group: Group, moment: Moment) -> str:
    """Shown beside, and not decisive: their contrast did not tell the two apart."""
    values = [(name, moment.value(_FAMILY, _GRADIENTS, name)) for name in group.layers]
    known = [(name, value) for name, value in values if finite(value)]
    if not known:
        return ""
    name, value = known[0]
    return (
        f"; the contrast of gradients, {shown(value)} in {plain(name)}, depends more on the data "
        "and does not decide"
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
    known = VALIDATION
    return (
        f"on {known.runs} runs with true and with shuffled labels, of other data and architectures "
        f"than the threshold comes from, this rule was wrong {known.wrong} times (with 95 % "
        f"confidence in at most {known.at_most:.1%} of such runs)"
    )
