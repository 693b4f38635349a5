"""From typed findings to words. ``advice`` is the one package that writes about a network.

An answer says what was found, then the number, then how sure that is. Its evidence is one line.
docs/answers.md says what every answer is based on and where it abstains.
"""

from collections.abc import Sequence
from enum import StrEnum
from math import inf, isfinite
from typing import Any

from theodolite.advice.findings import (
    REPEATED,
    CarryOver,
    FitOnTraining,
    GroupContrast,
    HeldOutFit,
    LastLayer,
    LayerProbes,
    LayersFinding,
    Measured,
    Unlabelled,
    Verdict,
)
from theodolite.advice.inputs import CALIBRATED, FitEvidence, InputFinding
from theodolite.errors import DtypeError
from theodolite.records import FAMILIES, Answer, Certainty, listed, require_class, shown

_PROBES = ("representation-probe-accuracy", "representation-probe-r2")  # a page has one of them
_TRAIN = "Train longer, or check labels, preprocessing and learning rate."
_REGULARISE = "Check some labels; add data, augmentation or weight decay; or stop earlier."
_MORE = "Measure more examples."
_MOST_NAMES = 3


class Interface(StrEnum):
    """Where the user types the arguments that an advice names."""

    PYTHON = "python"
    COMMAND = "command"

    @property
    def held_out(self) -> str:
        """The argument for held-out examples."""
        return "`held_out=`" if self is Interface.PYTHON else "`--held-out`"

    @property
    def given(self) -> str:
        """The adjective for held-out examples that were given."""
        return "`held_out=`" if self is Interface.PYTHON else "test"


def worded(finding: Any, interface: Interface = Interface.PYTHON) -> Answer:
    """Put a finding into words.

    Args:
        finding: a finding of :mod:`theodolite.advice.findings` that has a sentence.
        interface: whose arguments the advice names.

    Returns:
        The answer with text, certainty, evidence and advice.

    Raises:
        DtypeError: If it is no such finding, or no interface.

    Examples:
        >>> from theodolite.advice.findings import Measured, carry_over
        >>> train, test = Measured("accuracy", 1.0, 0.1, 500), Measured("accuracy", 0.97, 0.1, 300)
        >>> worded(carry_over(train, test)).certainty
        'clear'
    """
    require_class(Interface, interface=interface)
    match finding:
        case CarryOver():
            return _carry_over(finding, interface)
        case FitOnTraining():
            return _fit_on_training(finding, interface)
        case HeldOutFit():
            return _held_out_fit(finding)
        case LastLayer():
            return _last_layer(finding, interface)
        case LayerProbes():
            return _layers(finding, interface)
        case GroupContrast():
            return _groups(finding)
        case Unlabelled():
            return _unlabelled(finding)
    raise DtypeError(
        "finding: expected one of theodolite.advice, such as CarryOver, got "
        f"{type(finding).__name__}"
    )


def _unlabelled(finding: Unlabelled) -> Answer:
    if finding.one_label:
        text = "Undecided: all examples have the same label, so classes cannot be compared."
        advice = "Pass examples of at least two classes."
        return Answer("task", text, "undecided", "one class", advice, "unlabelled")
    return Answer(
        "task",
        "Undecided: the data have no labels, so nothing is compared with labels.",
        "undecided",
        "without labels a survey measures misalignment and, unless inputs are tokens, CKA to the"
        " input",
        "Pass labels or targets to measure all families.",
        "unlabelled",
    )


def percent(share: float) -> str:
    """A share as people say it, with one more digit near 0 and 100 %.

    Examples:
        >>> percent(0.974), percent(0.9962), percent(1.0), percent(0.004), percent(-0.031)
        ('97 %', '99.6 %', '100 %', '0.4 %', '−3.1 %')
    """
    value = 100 * share
    near = 0.05 <= abs(value) < 10 or 99 < value < 99.95
    text = f"{value:.1f}" if near else f"{value:.0f}"
    text = text.removesuffix(".0") if near else text
    return f"{text.replace('-0', '0') if float(text) == 0 else text.replace('-', '−')} %"


def _number(value: float) -> str:
    return f"{value:.2g}".replace("-", "−")


def _interval(low: float, high: float) -> str:
    ends = [percent(min(max(end, 0.0), 1.0)) for end in (low, high)]
    if high <= 0:
        return "95 % interval at or below 0 %"
    if ends[0] == ends[1]:  # narrower than a digit that we print
        return f"95 % interval within 0.1 points of {ends[0]}"
    return f"95 % interval {ends[0].removesuffix(' %')} to {ends[1]}"


def layer_name(name: str) -> str:
    """A layer in a sentence: a number gets a noun, an empty name is the whole model."""
    if not name:
        return "the whole model"
    return name if any(map(str.isalpha, name)) else f"layer {name}"


def _names(layers: Sequence[str], *, opens: bool = False) -> str:
    """Layers in a sentence. At its start our own noun gets a capital letter, a name does not."""
    words = list(map(layer_name, layers))
    if opens and words[0] != layers[0]:
        words[0] = words[0][0].upper() + words[0][1:]
    return listed(words, most=_MOST_NAMES)


_VERDICTS = {
    Verdict.LEARNED: "learned",
    Verdict.MOSTLY_LEARNED: "mostly learned",
    Verdict.HALF: "half learned, half memorised",
    Verdict.MOSTLY_MEMORISED: "mostly memorised",
    Verdict.MEMORISED: "memorised",
    Verdict.UNDECIDED: "undecided",
}


def verdict_words(finding: CarryOver) -> str:
    """The verdict in a few words, for tables.

    Examples:
        >>> from theodolite.advice.findings import Measured, carry_over
        >>> train, test = Measured("accuracy", 1.0, 0.1, 500), Measured("accuracy", 0.97, 0.1, 300)
        >>> verdict_words(carry_over(train, test))
        'learned: 97 % of its fit carries over'
    """
    words = _VERDICTS[finding.verdict]
    if not isfinite(finding.share):
        return f"{words}: it fits too little"
    return f"{words}: {_carried(finding)} carries over"


def _carried(finding: CarryOver) -> str:
    share = min(max(finding.share, 0.0), 1.0)
    what = "the fall in loss" if finding.losses else "its fit"
    return f"all of {what}" if share == 1 else f"{percent(share)} of {what}"


def _carry_over(finding: CarryOver, interface: Interface) -> Answer:
    """For example "Learned: 97 % of its fit carries over to held-out examples (...)."."""
    verdict = finding.verdict
    evidence = _both(finding)
    if not isfinite(finding.share):
        noun = "examples" if finding.train is None else finding.train.noun
        text = f"Undecided: the network fits too few of its training {noun}."
        advice = _TRAIN
        if finding.losses:
            text = "Undecided: training has not clearly lowered the loss on its sequences yet."
            advice = "Train on, or measure more sequences."
        elif finding.train is not None and finding.train.measure == "r2":
            text = "Undecided: the network explains too little of its training targets."
        return Answer("task", text, "undecided", evidence, advice, str(verdict), _PROBES)
    words = _VERDICTS[verdict].capitalize()
    others = "sequences" if finding.losses else "examples"
    interval = _interval(finding.low, finding.high)
    text = f"{words}: {_carried(finding)} carries over to held-out {others} ({interval})"
    shifted = finding.shift is not None and verdict is not Verdict.LEARNED
    sure: Certainty = "likely"
    if verdict is Verdict.UNDECIDED:
        sure = "undecided"
        text += ", but held-out inputs differ from training inputs" if shifted else ""
    elif finding.narrow and not shifted:
        sure = "clear"
    if finding.shift is not None:
        share = percent(finding.shift)
        evidence += f"; a linear probe separates held-out from training inputs: {share}"
        evidence += " (chance 50 %)"
    if finding.left_out:
        evidence += (
            f"; {finding.left_out} others left out: copies, or of classes without training examples"
        )
    advice = _after_carry_over(finding, f"{interface.given} {others}")
    if shifted:
        advice = f"Pass {interface.given} examples that are drawn like the training examples."
    return Answer("task", f"{text}.", sure, evidence, advice, str(verdict), _PROBES)


def _after_carry_over(finding: CarryOver, others: str) -> str:
    """What to do about a fit that does not carry over in full."""
    if finding.verdict is Verdict.LEARNED:
        return ""
    if finding.verdict is Verdict.UNDECIDED:
        return f"Pass more {others}."
    if finding.losses:
        return "Stop earlier, make fewer passes over the text, add text, or train fewer weights."
    return _REGULARISE if finding.verdict is Verdict.MEMORISED else _ceiling(finding)


def _ceiling(finding: CarryOver) -> str:
    """The highest possible number if the rest is label noise."""
    assert finding.held_out is not None
    random = percent(1 - finding.held_out.fit)
    if finding.held_out.measure == "balanced_accuracy":
        return "The rest is memorised, or label noise. Check some labels of rare classes."
    if finding.held_out.measure == "r2":
        return (
            f"The rest is memorised, or noise: if {random} of the variance of the "
            f"targets is noise, an R² of {finding.held_out.value:.2f} is the highest possible."
        )
    return (
        f"The rest is memorised, or label noise: if {random} of the held-out "
        f"labels are random, {percent(finding.held_out.value)} is the highest possible accuracy. "
        "Check some labels."
    )


def _both(finding: CarryOver) -> str:
    if finding.losses is not None:
        own, n, other, m = finding.losses
        return f"loss {own:.3g} on {n:,} training and {other:.3g} on {m:,} held-out sequences"
    train, held_out = finding.train, finding.held_out
    assert train is not None
    assert held_out is not None
    chance = "" if _chance(train) == _chance(held_out) else _chance(train)
    return (
        f"{_value(train)} on {train.n:,} training{f' {train.noun}' * bool(chance)}{chance} and "
        f"{_value(held_out, short=True)} on {held_out.n:,} held-out {train.noun}{_chance(held_out)}"
    )


def _value(measured: Measured, *, short: bool = False) -> str:
    if measured.measure == "r2":
        number = _r2(measured.value)
        return number if short else f"R² {number}"
    if measured.measure == "balanced_accuracy" and not short:
        return f"balanced accuracy {percent(measured.value)}"
    return percent(measured.value)


def _r2(value: float) -> str:
    """Two digits, with a sign only if they are not zeros."""
    return f"{value:z.2f}".replace("-", "−")


def _chance(measured: Measured) -> str:
    return "" if measured.measure == "r2" else f" (chance {percent(measured.chance)})"


def _fit_on_training(finding: FitOnTraining, interface: Interface) -> Answer:
    """For example "Learning: 98 % of this fit is predictable from other examples' inputs. ..."."""
    train, seen = finding.train, finding.evidence
    fits = f"{_value(train)} on the {train.n:,} {train.noun} given{_chance(train)}"
    undecided: Certainty = "undecided"
    if finding.little:
        what = (
            "explains too little of its targets"
            if train.measure == "r2"
            else f"fits too few {train.noun}"
        )
        text = f"Undecided: the network {what}: {_value(train)}{_chance(train)}."
        evidence = f"measured on {train.n:,} {train.noun}"
        return Answer("task", text, undecided, evidence, _TRAIN, "undecided", _PROBES)
    if finding.inputs in (InputFinding.PREDICT, InputFinding.FIRST_LAYER_PREDICTS):
        assert seen is not None
        if finding.inputs is InputFinding.PREDICT:
            share, where = seen.share(seen.inputs), "other examples' inputs"
            evidence = _raw_accuracy(seen)
        else:
            first = seen.first_layer_neighbours
            share, where = seen.share(first), "neighbours in the first layer"
            evidence = f"leave-one-out accuracy of neighbours in the first layer: {percent(first)}"
        share = min(share, 1.0)
        text = (
            f"Learning: {percent(share)} of this fit is predictable from {where}. Held-out data "
            "were not given."
        )
        evidence = f"{evidence}; the network's: {fits}"
        advice = f"Pass {interface.held_out} to measure how much of it carries over."
        return Answer("task", text, "likely", evidence, advice, "learning", _PROBES)
    decide = f"Pass {interface.held_out} to decide."
    if finding.inputs in (InputFinding.AT_CHANCE, InputFinding.FIRST_LAYER_ABOVE_CHANCE):
        assert seen is not None
        text = (
            "Undecided without held-out data: nearest neighbours and a linear model on the raw "
            f"inputs are at chance ({percent(seen.chance)}). The labels may be random, or the task "
            "may need this architecture."
        )
        evidence = f"the network's accuracy: {fits}"
        return Answer("task", text, undecided, evidence, decide, "undecided", _PROBES)
    text = (
        f"Undecided without held-out data: the network fits its examples ({_value(train)}), but "
        f"{_why_undecided(finding)}."
    )
    advice = decide
    if finding.left_out:
        text = (
            f"Undecided: none of the {finding.left_out} held-out examples can be used. They are "
            "copies of other examples, or of classes without training examples."
        )
        advice = f"Pass {interface.given} examples that are not among the training examples."
    evidence = f"measured on {train.n:,} {train.noun} that it may have been trained on"
    evidence += _chance(train)
    if seen is not None and isfinite(seen.inputs):
        evidence += f"; {_raw_accuracy(seen)}"
    if finding.repeated > REPEATED:
        evidence += f"; {percent(finding.repeated)} of the examples are copies of each other"
    if finding.input_r2 is not None and isfinite(finding.input_r2):
        number = _r2(finding.input_r2)
        evidence += f"; leave-one-out R² of a linear model on raw inputs: {number}"
    return Answer("task", text, undecided, evidence, advice, "undecided", _PROBES)


def _raw_accuracy(seen: FitEvidence) -> str:
    """The better of two accuracies on the raw inputs, and whose it is."""
    whose = "nearest neighbours" if seen.input_neighbours >= seen.input_probe else "a linear probe"
    return f"leave-one-out accuracy of {whose} on raw inputs: {percent(seen.inputs)}"


def _why_undecided(finding: FitOnTraining) -> str:
    """Why the raw inputs decide nothing about a fit."""
    seen = finding.evidence
    if finding.train.measure not in ("accuracy", "balanced_accuracy"):
        return "without held-out data only classification with one label can be judged"
    if seen is None:
        return "nothing was predicted from the raw inputs"
    if finding.inputs is InputFinding.PREDICT_PART:
        part = percent(seen.share(seen.inputs))
        return f"only {part} of this fit is predictable from other examples' inputs"
    if finding.inputs is InputFinding.BELOW_CHANCE:
        return "nearest neighbours and a linear model on the raw inputs are no better than chance"
    if finding.inputs is InputFinding.FIRST_LAYER_SCRAMBLES:
        return "features of the first layer predict less than half of what the raw inputs predict"
    if finding.repeated > REPEATED:
        return "copies among the examples make predictions from other examples meaningless"
    if finding.train.n < CALIBRATED:
        return f"fewer than {CALIBRATED} examples are too few to predict the fit from the inputs"
    return "the fit could not be predicted from the raw inputs"


def _held_out_fit(finding: HeldOutFit) -> Answer:
    """For example "Accuracy on examples that it was not trained on: 97 % (...)."."""
    measured = finding.measured
    low, high = measured.interval
    what = {
        "accuracy": "Accuracy",
        "balanced_accuracy": "Balanced accuracy",
        "label_accuracy": "Accuracy over all labels",
    }
    if measured.measure == "r2":
        ends = [_r2(end) for end in (low, high)]
        text = (
            f"R² on examples that it was not trained on: {_value(measured, short=True)} "
            f"(95 % interval {ends[0]} to {ends[1]})."
        )
    else:
        text = (
            f"{what[measured.measure]} on examples that it was not trained on: "
            f"{percent(measured.value)} ({_interval(low, high)}, chance "
            f"{percent(measured.chance)})."
        )
    evidence = f"measured on {measured.n:,} examples"
    if finding.labels is not None:
        evidence = (
            f"measured on {measured.n:,} positions, drawn evenly over {finding.labels} labels"
        )
    sure: Certainty = "clear" if finding.clear and finding.labels is None else "likely"
    return Answer("task", text, sure, evidence, "", "generalises" if measured.beyond_chance else
                  "chance", _PROBES)  # fmt: skip


def _last_layer(finding: LastLayer, interface: Interface) -> Answer:
    """For example "The network represents the labels: CKA to labels of the last layer ..."."""
    family = FAMILIES[finding.family]
    level = ""
    if finding.chance is not None:
        spread = abs(finding.value - finding.chance) / max(abs(finding.deviations), 1e-12)
        near = abs(finding.chance) < max(5e-3, spread)
        level = " (chance 0)" if near else f" (chance {_number(finding.chance)})"
    where = f"last layer ({finding.layer})" if finding.layer else "output"
    number = f"{family.heading} of the {where} is {_number(finding.value)}{level}"
    sure: Certainty = "likely" if isfinite(finding.deviations) else "undecided"
    known = finding.deviations < inf
    side = "above" if finding.value >= (finding.chance or 0.0) else "below"
    evidence = (
        f"{abs(finding.deviations):.3g} standard deviations {side} chance ({family.chance})"
        if known
        else "no chance level was measured"
    )
    advice = ""
    if finding.trained_on:
        evidence += "; measured on examples that the network may have been trained on"
        advice = f"Pass {interface.held_out} and measure the representation family."
        if finding.has_held_out:
            advice = "Measure the representation family, which reads the held-out examples."
    found = "aligned"
    text = f"The network represents the {finding.goal}: {number}."
    if not finding.beyond_chance:
        found, advice = "chance", _TRAIN
        text = f"The network does not represent the {finding.goal} beyond chance: {number}."
    elif finding.losses is not None and finding.losses[0] >= finding.losses[1]:
        loss, guess = finding.losses
        text = (
            f"The network does not do the task: its loss is {shown(loss)} (chance {shown(guess)})."
        )
        evidence = f"{number}; untrained features can be above chance too"
        found, sure, advice = "chance", "likely", _TRAIN
    return Answer("task", text, sure, evidence, advice, found, (family.figure, "steps-loss"))


def _layers(finding: LayerProbes, interface: Interface) -> Answer:
    """For example "Linear probes reach 99 % from fc2 on (chance 10 %). ..."."""
    shares = finding.measure == "probe_accuracy"
    kind, names = finding.finding, list(finding.values)
    first, best = finding.first, finding.best
    chance = f" (chance {percent(finding.chance)})" if shares else ""
    reach = "reach" if shares else "explain"
    of = "" if shares else f" of the variance of the {finding.goal}"

    def value(layer: str) -> str:
        return percent(finding.values[layer])

    where = "On these examples, " if finding.trained_on else ""
    prefix, none = (f"{where}linear", f"{where}no") if where else ("Linear", "No")
    raw = finding.input_value
    text = ""
    if kind is LayersFinding.CHANCE:
        text = (
            f"{none} layer's linear probe is significantly above chance: at most "
            f"{value(best)}{chance}."
            if shares
            else f"{none} layer's linear probe is significantly better than the mean."
        )
    elif kind is LayersFinding.INPUT_ALIKE:
        assert raw is not None
        text = (
            f"{none} layer's linear probe is significantly better than that of the raw input: "
            f"at most {value(best)}, against {percent(raw)}{of}{chance}."
        )
    elif kind is LayersFinding.ALL_ALIKE:
        low, high = (percent(end(finding.values.values())) for end in (min, max))
        span = high if low == high else f"{low.removesuffix(' %')} to {high}"
        every = "both layers" if len(names) == 2 else f"all {len(names)} layers"
        text = f"Layers do not differ significantly: linear probes {reach} {span}{of} in {every}"
        text = f"{text}{chance}."
    elif len(names) == 1:
        verb = "reaches" if shares else "explains"
        text = f"{'the' if where else 'The'} linear probe of {_names(names)} {verb} {value(best)}"
        text = f"{where}{text}{of}{chance}."
    elif kind is LayersFinding.FROM_LAYER and first == names[-1]:
        text = f"{prefix} probes are best in the last layer, {_names([first])}: {value(first)}"
        text = f"{text}{of}{chance}."
    elif kind is LayersFinding.FROM_LAYER:
        later = names[names.index(first) + 1 :]
        verb = "is" if len(later) == 1 else "are"
        text = (
            f"{prefix} probes {reach} {value(first)}{of} from {_names([first])} on{chance}. "
            f"{_names(later, opens=True)} {verb} not significantly better."
        )
    else:
        others = [name for name in finding.alike if name != best]
        text = f"{prefix} probes are best in {_names([best])}: {value(best)}{of}{chance}."
        if others:
            verb = "is" if len(others) == 1 else "are"
            text += f" {_names(others, opens=True)} {verb} not significantly worse."
    if raw is not None and kind not in (LayersFinding.CHANCE, LayersFinding.INPUT_ALIKE):
        text += f" The raw input: {percent(raw)}."
    return Answer(
        "layer",
        text,
        *_layer_ground(finding, interface),
        str(kind),
        (*_PROBES, "kernel-cka-target"),
    )


def _layer_ground(finding: LayerProbes, interface: Interface) -> tuple[Certainty, str, str]:
    """Certainty, evidence and advice of a sentence about layers."""
    spread = _interval(*finding.interval)
    of_best = f"{layer_name(finding.best)}: {spread}"
    if finding.judged_on == "held-out":
        where = (
            f"fitted on {finding.fitted_on:,} training and judged on {finding.n:,} held-out"
            f" {finding.noun}"
        )
    else:
        where = f"{finding.n:,} {finding.noun}, each left out in turn"
    pairs = "" if finding.paired else "; differences are not paired by example"
    evidence = f"{where}; {of_best}{pairs}"
    advice = ""
    if not finding.model and finding.above_chance:
        advice = f"Fit a linear model to the features of {layer_name(finding.first)}."
    elif not finding.model:
        advice = "Try features of other layers or models."
    if finding.memorised and finding.trained_on:
        return "undecided", f"the network memorised these {finding.goal}; {evidence}", advice
    if not finding.above_chance:  # no evidence for a difference is no evidence against one
        return "undecided", evidence, advice or ("" if finding.memorised else _MORE)
    if finding.repeated > REPEATED:
        copies = f"{percent(finding.repeated)} of the examples are copies of each other"
        decide = f"Pass {interface.held_out} to decide."
        return "undecided", f"{copies}; {evidence}", advice or decide
    differ = finding.finding in (LayersFinding.FROM_LAYER, LayersFinding.ONE_LAYER)
    if not differ and finding.may_differ:
        return "undecided", evidence, advice or _MORE
    if finding.trained_on and finding.model:
        reason = f"the features may have been trained on these {finding.goal}"
        held_out = f"Pass {interface.held_out} to judge layers on new examples."
        advice = "" if finding.has_held_out else held_out
        return "likely", f"{reason}; {evidence}", advice
    new = finding.model or finding.judged_on == "held-out"  # given features may be trained on them
    # More examples may show a difference.
    return ("clear" if finding.paired and new and differ else "likely"), evidence, advice


def _groups(finding: GroupContrast) -> Answer:
    """For example "The groups (a and b) disagree most in fc1: the gradient contrast is ..."."""
    names, layer = listed(map(str, finding.groups), most=5), layer_name(finding.layer)
    figures = ("gradient-omega-contrast", "gradient-in-class-omega")
    evidence = (
        f"agreement of gradients of all parameters: {_number(finding.within)} within groups, "
        f"{_number(finding.overall)} over all examples"
    )
    if finding.chance is None and finding.value > 0:
        text = (
            f"Undecided whether the groups ({names}) disagree: the gradient contrast is "
            f"highest in {layer}, {_number(finding.value)} (no chance level)."
        )
        advice = "Measure with `th.survey(..., groups=)`, which adds a chance level."
        return Answer("groups", text, "undecided", evidence, advice, "undecided", figures)
    if finding.value <= 0 or (finding.chance is not None and not finding.beyond):
        text = (
            f"The groups ({names}) do not disagree: gradients agree as much across groups as "
            "within them."
        )
        sure: Certainty = "undecided" if finding.chance is None else "likely"
        return Answer("groups", text, sure, evidence, "", "alike", figures)
    assert finding.chance is not None
    mean, spread = finding.chance
    text = (
        f"The groups ({names}) disagree most in {layer}: the gradient contrast is "
        f"{_number(finding.value)} (permuted groups {_number(mean)} ± {spread:.1g})."
    )
    evidence = f"{finding.beyond} of {finding.layers} layers beyond chance; {evidence}"
    return Answer(
        "groups", text, "clear" if finding.clear else "likely", evidence, "", "differ", figures
    )
