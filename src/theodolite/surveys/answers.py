"""Sentences about a survey that a person can act on, from its rows alone.

They are written into the record; pages and terminals show them as they stand there. Read-outs
answer where they were taken, elsewhere the headlines of the families that read labels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite, log
from typing import Any, Literal

from theodolite.advice import FitEvidence, HeldOut, LabelVerdict, judge_fit
from theodolite.records import FAMILIES, Answer, listed

__all__ = ["answers_of"]

Row = Mapping[str, Any]
_READOUTS = ("representation-readout-accuracy", "representation-readout-r2")  # one of them is there
_TRAINED_ON = ("train", "unknown", None)  # splits that may have been trained on
_ALIKE = 0.1  # of a tangent alignment: a smaller lead is none
_FITTED = 0.1  # of what there is to explain: less of it is little
_MOST = 0.5  # of the fit: more is most of it
_RESOLVED = 0.35  # of the fit, two standard errors, within which a share of it is told
_CALIBRATED = 100  # examples at least: the verdict was calibrated on 105 and more
_LABELED = ("kernel", "representation", "gradient")  # families that read labels, the first first
_CHANCE, _CLEAR = 2.0, 5.0  # standard deviations: nearer is within chance, further is clear
_NEARLY = 0.9  # of the highest number: a layer that has it carries most of the task
_WELL = 0.25  # of the loss of chance: less of it is a fit


def answers_of(contents: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What the network does with its task, which layer carries it, what to do; plain data.

    Where examples have groups besides their labels, whether these pull apart.

    Args:
        contents: of a survey record: rows, layers and data.
    """
    rows = {(row["layer"], row["measure"]): row for row in contents["rows"]}
    layers = [layer["name"] for layer in contents["layers"]]
    data = contents["data"]
    verdict = (
        _verdict_of_gain(rows, data)
        or _verdict(rows, data, layers)
        or _verdict_of_columns(rows, data)
    )
    several = data.get("task") == "multi-label"
    goal = "targets" if data.get("num_classes", 0) is None and not several else "labels"
    headlines = _headlines(rows, layers)
    task = _task(verdict) or _fit_alone(rows, data)
    carrier = _carrier(rows, layers, verdict, goal)
    following = _next(rows, layers, verdict, goal)
    if data.get("outputs", 0) is None and carrier is not None:
        following = following or _without_model(carrier)
    elif headlines:
        losses = _losses(rows, contents)
        single = goal == "labels" and not several
        says = ("tell", "the classes apart") if single else ("follow", f"the {goal}")
        task = task or _task_of_headline(headlines[0], losses, *says)
        carrier = carrier or _layer_of_headlines(headlines, losses)
        following = following or _next_of_headline(rows, data, headlines[0], losses)
    elif data.get("task") == "unlabeled":
        following = following or _ask_for_labels()
    found = [task, carrier, following, _groups(rows, layers, data)]
    return [{**vars(a), "evidence": list(a.evidence)} for a in found if a is not None]


def _task(verdict: LabelVerdict | None) -> Answer | None:
    if verdict is None:
        return None
    certainty = "open" if verdict.answer == "undecided" else "likely"
    if verdict.measured:
        certainty = "clear" if verdict.answer != "undecided" else "likely"
    why = f"{verdict.sure}; {verdict.because}"
    return Answer("task", verdict.sentence, certainty, why, _READOUTS)


def _verdict(
    rows: Mapping[tuple[str | None, str], Row], data: Mapping[str, Any], layers: Sequence[str]
) -> LabelVerdict | None:
    """Learning or memorising; None where there are no classes or no outputs."""
    accuracy = rows.get((None, "accuracy"))
    if accuracy is None or data.get("split") not in _TRAINED_ON:
        return None
    shape, held_out = data.get("input_shape"), rows.get((None, "held_out_accuracy"))
    near, line = (rows.get((None, f"input_{kind}_accuracy")) for kind in ("neighbour", "readout"))
    in_layers = (rows.get((name, "neighbour_accuracy")) for name in layers)
    first = next((row for row in in_layers if row is not None), None)
    size = 1
    for length in shape or ():
        size *= length
    known = near is not None and line is not None and first is not None
    evidence = FitEvidence(
        accuracy=accuracy["value"],
        chance=accuracy["null_mean"],
        examples=accuracy["n"],
        input_size=max(size, 1),
        input_neighbours=near["value"] if known else float("nan"),  # type: ignore[index]
        input_readout=line["value"] if known else float("nan"),  # type: ignore[index]
        first_layer_neighbours=first["value"] if known else float("nan"),  # type: ignore[index]
    )
    if held_out is not None:
        return judge_fit(evidence, HeldOut(held_out["value"], held_out["n"]))
    if not known or evidence.examples < _CALIBRATED:
        return None
    return judge_fit(evidence)


def _verdict_of_gain(
    rows: Mapping[tuple[str | None, str], Row], data: Mapping[str, Any]
) -> LabelVerdict | None:
    """Of a training that is watched: how much of what it gains on its sequences others share."""
    share = rows.get((None, "carried_over"))
    if share is None or data.get("split") not in _TRAINED_ON:
        return None
    own, other = (rows[None, name] for name in ("loss", "held_out_loss"))
    because = (
        f"the loss is {own['value']:.3g} on {own['n']} sequences of the probe and "
        f"{other['value']:.3g} on {other['n']} held-out ones"
    )
    if share["value"] is None or not isfinite(share["value"]):
        return LabelVerdict(
            "undecided",
            "Training has not clearly lowered the loss of its sequences yet.",
            because,
            "no verdict: the change since the first measurement lies within its error",
            "Train on, or put more sequences into the probe.",
        )
    carried, spread = share["value"], 2 * share["error"]
    sure = (
        f"measured on held-out sequences: {carried:.0%} ± {spread:.0%} of what the loss has fallen "
        "by since the first measurement carries over"
    )
    answer: Literal["learning", "memorising", "undecided"] = "undecided"
    text = "Training helps held-out sequences about half as much as its own, or cannot be told yet."
    advice = "Pass more held_out= sequences, or train on: the share is too uncertain to act on."
    if carried - spread > _MOST:
        answer = "learning"
        text = "Training learns: most of what it gains on its sequences carries over to others."
    elif carried + spread < _MOST:
        answer = "memorising"
        text = "Training mostly memorises its sequences: most of its gain does not carry over."
        advice = (
            "Stop earlier, make fewer passes over the text, add text, or train fewer parameters."
        )
    return LabelVerdict(answer, text, because, sure, advice, measured=True)


def _verdict_of_columns(
    rows: Mapping[tuple[str | None, str], Row], data: Mapping[str, Any]
) -> LabelVerdict | None:
    """The same of numbers and of several labels: what held-out examples say, or no verdict."""
    own = _fit_row(rows)
    if own is None or own["measure"] == "accuracy" or data.get("split") not in _TRAINED_ON:
        return None
    goal = "targets" if own["measure"] == "r2" else "labels"
    fit, said = _beyond(own), _told_of(own)
    other = rows.get((None, f"held_out_{own['measure']}"))
    if fit < _FITTED or (other is not None and fit <= 2 * _beyond(other, error=True)):
        return LabelVerdict(
            "undecided",
            f"The network fits too little of its {goal} to ask whether it learns or memorises.",
            f"{said} of the examples given",
            "no verdict",
            f"Train it longer, or check {goal}, their scale, preprocessing and learning rate.",
        )
    line = rows.get((None, "input_readout_r2"))
    inputs = ""
    if line is not None:
        share = _percent(line["value"])
        inputs = f"; a linear read-out of the raw inputs, each example left out, explains {share}"
    if other is None:
        return LabelVerdict(
            "undecided",
            f"The network fits its {goal}: {said}. Whether it learns or memorises them, these "
            "examples alone do not say.",
            f"the rule that tells them apart was calibrated on classes alone{inputs}",
            "no verdict",
            "Pass held_out= examples: they tell learning from memorising.",
        )
    carried, spread = _beyond(other) / fit, 2 * _beyond(other, error=True) / fit
    because = f"{said} in training, {_percent(other['value'])} on {other['n']} held-out examples"
    sure = (
        f"measured on held-out data: {max(carried, 0.0):.0%} ± {spread:.0%} of the fit carries over"
    )
    answer: Literal["learning", "memorising", "undecided"] = "undecided"
    text = f"About half of what the network fits of its {goal} carries over."
    if spread > _RESOLVED:
        text = "There are too few held-out examples to say how much of the fit carries over."
    if carried - spread > _MOST:
        answer, text = "learning", "The network learns its task: most of its fit carries over."
    elif carried + spread < _MOST:
        answer = "memorising"
        text = "The network mostly memorises: most of its fit does not carry over."
    advice = f"Look at the {goal} of some examples; add data or weight decay; stop earlier."
    return LabelVerdict(answer, text, f"{because}{inputs}", sure, advice, measured=True)


def _fit_alone(
    rows: Mapping[tuple[str | None, str], Row], data: Mapping[str, Any]
) -> Answer | None:
    """How much the outputs tell, where there is no verdict on learning and memorising."""
    own = _fit_row(rows)
    if own is None:
        return None
    fit, error = _beyond(own), _beyond(own, error=True)
    noun = "positions" if "unit" in data else "examples"
    if data.get("unit") == "token" and data.get("num_classes"):  # of a vocabulary a few
        noun = f"{noun}, drawn evenly over {data['num_classes']} labels"
    sure = f"± {200 * own['error']:.0f} points with {own['n']} {noun}"
    said = _told_of(own)
    if data.get("split") not in _TRAINED_ON:
        text = f"Asked about examples that it was not trained on, {said}."
        certainty = "clear" if abs(fit) > 5 * error else "likely"
        return Answer("task", text, certainty, sure, _READOUTS)
    if fit <= 2 * error:
        text = f"The network does no better than chance: {said}."
        return Answer("task", text, "likely", sure, _READOUTS)
    text = f"The network fits these examples, which alone do not say whether it learned: {said}."
    few = f"{_CALIBRATED} examples and more, with inputs that are numbers"
    domain = "one label per example" if "unit" in data else few
    why = f"no verdict: the rule was calibrated on {domain}; {sure}"
    return Answer("task", text, "open", why, _READOUTS)


def _fit_row(rows: Mapping[tuple[str | None, str], Row]) -> Row | None:
    """What the outputs tell of the targets; None where they are not read, or chance is all."""
    known = (rows.get((None, measure)) for measure in ("accuracy", "r2", "label_accuracy"))
    found = next((row for row in known if row is not None), None)
    return found if found and isfinite(found["value"]) and found["null_mean"] < 1 else None


def _beyond(row: Row, *, error: bool = False) -> float:
    """A number, or its error, in units of what lies between chance and all."""
    chance: float = row["null_mean"]
    return float(row["error"] if error else row["value"] - chance) / (1 - chance)


def _told_of(row: Row) -> str:
    if row["measure"] == "r2":
        less = ", less than their mean" if row["value"] < 0 else ""
        return f"its outputs explain {_percent(row['value'])} of the variance of the targets{less}"
    return f"it tells {row['value']:.0%} of the labels right (chance {row['null_mean']:.0%})"


def _percent(share: float) -> str:
    """A share of variance, which can be anything below 0."""
    return f"{share:.0%}" if share >= -0.005 else "none"


def _carrier(
    rows: Mapping[tuple[str | None, str], Row],
    layers: Sequence[str],
    verdict: LabelVerdict | None,
    goal: str,
) -> Answer | None:
    """The first layer whose linear read-out tells the targets as well as that of any other."""
    measure = "readout_accuracy"
    if not any((name, measure) in rows for name in layers):
        measure = "readout_r2"
    known = {name: rows.get((name, measure)) for name in layers}
    finite = {name: row for name, row in known.items() if row and isfinite(row["value"])}
    if not finite:
        return None
    classes = measure == "readout_accuracy"
    best = max(finite.values(), key=lambda row: row["value"])
    chance, n, spread = best["null_mean"], best["n"], best["null_sd"] or best["error"]
    each = _each({name: _percent(row["value"]) for name, row in finite.items()})
    why = f"± {200 * best['error']:.0f} points with {n} examples, each left out in turn; {each}"
    evidence = (f"representation-{measure.replace('_', '-')}", "kernel-cka-target")
    if best["value"] < chance + 3 * spread:
        level = "are at chance" if classes else "say no more than the mean"
        text = f"No layer carries the task: linear read-outs of all of them {level}."
        least = f"chance {chance:.0%}; " if classes else ""
        return Answer("layer", text, "likely", f"{least}{why}", evidence)
    near = 2 * max(best["error"], 0.25 / n**0.5)
    equal = [name for name in finite if finite[name]["value"] >= best["value"] - near]
    first, others = equal[0], ""
    if len(equal) > 1:
        verb = "is" if len(equal) == 2 else "are"
        others = f"; {_layers(equal[1:])} {verb} no better within the error"
    share = _percent(finite[first]["value"])
    does = f"gets {share} right (chance {chance:.0%})"
    if not classes:
        does = f"explains {share} of the variance of the {goal}"
    text = (
        f"Layer {_name(first)} carries it: a linear read-out of it, fitted to the other examples, "
        f"{does}{others}."
    )
    certainty = "clear" if best["value"] > chance + 5 * spread else "likely"
    if verdict is not None and verdict.answer == "memorising":
        text = text.replace("carries it", f"holds the {goal} best", 1)
        certainty, why = "open", f"the layer was built from these very {goal}; {why}"
    return Answer("layer", text, certainty, why, evidence)


def _next(
    rows: Mapping[tuple[str | None, str], Row],
    layers: Sequence[str],
    verdict: LabelVerdict | None,
    goal: str,
) -> Answer | None:
    """What to do: the verdict's advice, or which layer moves the outputs towards the targets."""
    if verdict is not None and verdict.answer != "learning":
        why = "follows from the first answer"
        return Answer("next", verdict.advice, "likely", why, _READOUTS)
    found = {name: rows.get((name, "tangent_alignment")) for name in layers}
    tangent = {name: row for name, row in found.items() if row and isfinite(row["value"])}
    if not tangent:
        return None
    peak = max(tangent, key=lambda name: tangent[name]["value"])
    value, chance = tangent[peak]["value"], tangent[peak]["null_mean"]
    spreads = (tangent[peak]["error"] or 0.0, tangent[peak]["null_sd"] or 0.0)
    spread = max(2 * max(spreads), _ALIKE * value)
    alike = [name for name in tangent if tangent[name]["value"] >= value - spread]
    text = (
        f"To change it with least effort, train layer {_name(peak)}: a small step there "
        f"moves the outputs most towards the {goal}."
    )
    if chance is not None and value <= chance + 2 * (tangent[peak]["null_sd"] or 0.0):
        text = "No layer stands out as the one to train: tangent alignments are within chance."
    elif len(alike) > 1:
        text = (
            f"To change it, train any of {_layers(alike)}: small steps there move the outputs "
            f"towards the {goal} about equally."
        )
    if verdict is not None and not verdict.measured:
        text = f"Confirm it on held-out examples (held_out=). {text}"
    each = _each({name: f"{row['value']:.2g}" for name, row in tangent.items()})
    guess = "" if chance is None else f", chance {chance:.2g}"
    why = f"describes this moment, and is no forecast; tangent alignment {each}{guess}"
    return Answer("next", text, "likely", why, ("tangent-tangent-alignment",))


@dataclass(frozen=True)
class _Headline:
    """The headline of one family, layer by layer."""

    family: str
    rows: Mapping[str, Row]

    @property
    def heading(self) -> str:
        return FAMILIES[self.family].heading

    @property
    def figure(self) -> str:
        return FAMILIES[self.family].figure

    @property
    def last(self) -> str:
        return [*self.rows][-1]

    @property
    def top(self) -> str | None:
        """The layer with the highest number, among those above 0 that are not within chance."""
        values = {name: row["value"] for name, row in self.rows.items()}
        beyond = [name for name in values if values[name] > 0 and self.score(name) > _CHANCE]
        return max(beyond, key=values.__getitem__, default=None)

    def score(self, layer: str) -> float:
        """Standard deviations above chance; infinitely many where chance was not drawn."""
        row = self.rows[layer]
        known = row["null_mean"] is not None and row["null_sd"]
        return (row["value"] - row["null_mean"]) / row["null_sd"] if known else inf

    def told(self, layer: str) -> str:
        """A number with its chance level."""
        row = self.rows[layer]
        if row["null_mean"] is None:
            return f"{row['value']:.3g}"
        near = abs(row["null_mean"]) <= (row["null_sd"] or 0.0)
        return f"{row['value']:.3g} (chance {0 if near else row['null_mean']:.2g})"


def _headlines(
    rows: Mapping[tuple[str | None, str], Row], layers: Sequence[str]
) -> list[_Headline]:
    """Headlines of the families that read labels, as far as they are numbers."""
    found = []
    for family in _LABELED:
        every = {name: rows.get((name, FAMILIES[family].headline)) for name in layers}
        known = {name: row for name, row in every.items() if row and isfinite(row["value"])}
        found += [_Headline(family, known)] if known else []
    return found


def _losses(
    rows: Mapping[tuple[str | None, str], Row], contents: Mapping[str, Any]
) -> tuple[float, float] | None:
    """The loss and that of chance; None where it is not a cross entropy of classes."""
    data, loss = contents["data"], rows.get((None, "loss"))
    default = contents.get("config", {}).get("loss") in {None, "default", "cross_entropy"}
    single = data.get("task") in {None, "classification", "sequence"}
    classes = data.get("num_classes")
    if not (default and single and classes and loss and isfinite(loss["value"])):
        return None
    return loss["value"], log(classes)


def _task_of_headline(
    headline: _Headline, losses: tuple[float, float] | None, verb: str, what: str
) -> Answer:
    """What the last layer shows of the task."""
    last, score = headline.last, headline.score(headline.last)
    place = f"in its last layer ({last})" if last else "of its outputs"
    number = f"{headline.heading} {place} is {headline.told(last)}"
    chance = FAMILIES[headline.family].chance
    distance = f"{abs(score):.{0 if abs(score) >= _CHANCE else 1}f}"
    why = f"{distance} standard deviations from what {chance} give"
    certainty = "clear" if score >= _CLEAR else "likely"
    if score == inf:
        certainty, why = "open", "no chance level was measured"
    evidence = (headline.figure, "steps-loss")
    if score <= _CHANCE:
        text = f"The network does not {verb} {what}: {number}."
        return Answer("task", text, "likely" if score < 1 else "open", why, evidence)
    text = f"The network {verb}s {what}: {number}"
    if losses is not None:
        loss, level = losses
        if loss >= level:
            text = (
                f"The network does not do the task: its loss on these examples is {loss:.3g}, "
                f"chance is {level:.3g}. What its last layer shows of the labels may be what the "
                f"inputs tell: {headline.heading} {headline.told(last)}."
            )
            return Answer("task", text, "clear", "the loss is that of chance", evidence)
        fits = "it fits" if loss < _WELL * level else "it partly fits"
        text += f"; {fits} these examples (loss {loss:.3g}, chance {level:.3g})"
    return Answer("task", f"{text}.", certainty, why, evidence)


def _layer_of_headlines(
    headlines: Sequence[_Headline], losses: tuple[float, float] | None
) -> Answer:
    """The layer where the headlines are highest, and whether they agree."""
    evidence = tuple(headline.figure for headline in headlines)
    known = [(headline, top) for headline in headlines if (top := headline.top) is not None]
    if not known:
        text = "No layer carries the task: no number is beyond chance."
        why = f"{len(headlines)} of {len(headlines)} measures agree"
        return Answer("layer", text, "clear" if len(headlines) > 1 else "likely", why, evidence)
    told: dict[str, list[str]] = {}
    for headline, top in known:
        value = headline.rows[top]["value"]
        told.setdefault(top, []).append(f"{headline.heading} ({value:.3g})")
    if len(told) > 1:
        parts = listed(
            f"{listed(numbers)} in layer {_name(name)}" for name, numbers in told.items()
        )
        text = f"No single layer carries the task: highest are {parts}"
        certainty, why = "open", "the measures disagree about the layer"
    else:
        ((only, numbers),) = told.items()
        does = "shows most of it" if losses and losses[0] >= losses[1] else "carries the task"
        verb = "is" if len(known) == 1 else "are"
        text = f"Layer {_name(only)} {does}: {listed(numbers)} {verb} highest there"
        certainty, why = "likely", "the one measure of labels that was taken"
        if len(known) > 1:
            certainty, why = "clear", f"{len(known)} of {len(known)} measures agree"
    headline, top = known[0]
    values = {name: row["value"] for name, row in headline.rows.items()}
    first = next(name for name in values if values[name] >= _NEARLY * values[top])
    if first != top:
        share = f"{values[first] / values[top]:.0%} of its {headline.heading}"
        share = "as much" if share.startswith("100%") else share
        text += f"; layer {_name(first)} already has {share}"
    return Answer("layer", f"{text}.", certainty, why, evidence)


def _next_of_headline(
    rows: Mapping[tuple[str | None, str], Row],
    data: Mapping[str, Any],
    headline: _Headline,
    losses: tuple[float, float] | None,
) -> Answer:
    """What would tell most, by what is missing."""
    evidence = (headline.figure,)
    if losses and losses[0] >= losses[1]:
        text = "Train it, or check labels and preprocessing: it is no better than chance."
        return Answer("next", text, "likely", "the loss is that of chance", ("steps-loss",))
    held_out = any(measure.startswith("held_out_") for _, measure in rows)
    if data.get("split") in _TRAINED_ON and not held_out:
        text = (
            "Pass held_out= examples and measure the representation family: on training examples a "
            "network that memorises can show the same numbers."
        )
        why = "no number here is of other examples than those given"
        return Answer("next", text, "clear", why, evidence)
    top = headline.top or headline.last
    text = f"To reuse this network, take the features of layer {_name(top)}."
    return Answer("next", text, "likely", f"{headline.heading} is highest there", evidence)


def _ask_for_labels() -> Answer:
    text = "Give the survey labels or targets: with them four more families can be measured."
    return Answer("next", text, "clear", "the data have none")


def _groups(
    rows: Mapping[tuple[str | None, str], Row], layers: Sequence[str], data: Mapping[str, Any]
) -> Answer | None:
    """Whether gradients agree more within groups, such as domains, than over all examples."""
    found = {name: rows.get((name, "omega_contrast")) for name in layers}
    known = {name: row for name, row in found.items() if row and isfinite(row["value"])}
    whole = rows.get((None, "omega_contrast"))
    if not data.get("groups") or whole is None or not known or not isfinite(whole["value"]):
        return None
    inside, every = (rows[None, name]["value"] for name in ("in_class_omega", "omega"))
    total = f"Ω of all parameters is {inside:.2g} within groups and {every:.2g} over all sequences"
    each = _each({name: f"{row['value']:.2g}" for name, row in known.items()})
    why = f"{total}; within minus over all {each}"
    evidence = ("gradient-omega-contrast", "gradient-in-class-omega")
    top = max(known, key=lambda name: known[name]["value"])
    level, spread = known[top]["null_mean"], known[top]["null_sd"]
    names = listed(map(str, data["groups"]), most=5)
    if level is None or spread is None:
        text = (
            f"Whether the groups ({names}) pull apart is open: gradients agree more within them "
            f"by at most {known[top]['value']:.2g}, in layer {_name(top)}, and chance was not "
            "measured."
        )
        if known[top]["value"] > 0:
            why = f"{why}; th.survey(..., groups=) measures what permuted groups give"
            return Answer("groups", text, "open", why, evidence)
        certainty = "open"
    else:
        chances = [row for row in known.values() if row["null_mean"] is not None]
        beyond = sum(r["value"] > r["null_mean"] + 3 * (r["null_sd"] or 0) for r in chances)
        why = f"{why}; permuted groups {level:.2g} ± {spread:.2g} in {_name(top)}"
        if not beyond:
            text = (
                f"The groups ({names}) do not pull apart beyond chance: gradients agree within "
                "them no more than within permuted ones."
            )
            return Answer("groups", text, "likely", why, evidence)
        certainty = "clear" if known[top]["value"] > level + 5 * spread else "likely"
        why = f"{beyond} of {len(chances)} layers beyond chance; {why}"
    text = (
        f"The groups ({names}) pull apart most in layer {_name(top)}: there gradients agree more "
        f"within a group than over all by {known[top]['value']:.2g}."
    )
    if known[top]["value"] <= 0:
        text = f"The groups ({names}) do not pull apart: gradients agree no more within them."
    return Answer("groups", text, certainty, why, evidence)


def _without_model(carrier: Answer) -> Answer:
    """Features without a model: what they are good for, and what only the model can tell."""
    text = "To use it, fit a linear model to the features of that layer; pass the model to "
    text = f"{text}th.survey for what the network makes of them."
    if carrier.text.startswith("No layer"):
        text = "Try features of other layers or models: a linear model of these tells nothing."
    return Answer("next", text, "likely", "follows from the read-outs", carrier.evidence)


def _name(layer: str) -> str:
    return layer or "(whole model)"


def _layers(names: Sequence[str]) -> str:
    """Layers within a sentence: "layer a", "layers a and b", "layers a, b, c and 4 more"."""
    return f"layer{'s' * (len(names) > 1)} {listed(map(_name, names), most=3)}"


def _each(numbers: Mapping[str, str]) -> str:
    """A number for each layer; of many layers the first two and the last two."""
    told = []
    for name, number in numbers.items():
        noun = "layer " if name and not any(map(str.isalpha, name)) else ""  # "0" needs one
        told.append(f"{number} in {noun}{_name(name)}")
    if len(told) > 5:
        told = [*told[:2], "…", *told[-2:]]
    return ", ".join(told)
