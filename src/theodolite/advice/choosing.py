"""Which model to start from: a ranking with notes about it.

:func:`theodolite.transfer` measures the numbers. Models are ranked by their leave-one-out error on
the new task. A note compares this ranking with the ranking by size, and says if both are the same.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite, isnan, sqrt
from typing import Any

import numpy as np

from theodolite.advice.reasons import Reason, named, reason
from theodolite.advice.sentences import layer_name, percent
from theodolite.records import CHANCE, Answer, Certainty, Note, listed

# Above this leave-one-out error fine-tuned networks learn features that kernel regression lacks.
# Below it forecasts hold to a few points on most targets. Above it networks may be up to 47 points
# more accurate (benchmarks/transfer).
SMALL_ERROR = 0.7
FEW_LABELS = 10  # in a class; with fewer a note says so, and every answer is likely at most
RANKING_QUESTIONS = {
    "model": "Which model?",
    "layer": "Which layer?",
    "labels": "How many labels?",
}
_SAME_LIST = 0.8  # Kendall's tau above which two rankings count as equal


@dataclass(frozen=True)
class Candidate:
    """The numbers of one model on the new task.

    Args:
        name: name of the model.
        error: leave-one-out error of the ranking; 1 is no better than the mean, nan is unknown.
        features_error: the same for a linear probe of the features, on the same examples.
        forecast: expected accuracy after fine-tuning (error for a regression).
        parameters: number of parameters.
        misses: squared error of each example, in one order for all models.
        incomplete: whether the tangent kernel was wanted and could not be measured.
        frozen: whether only linear probes are fitted, so that no feature is learned.
    """

    name: str
    error: float
    features_error: float
    forecast: float
    parameters: int
    misses: np.ndarray = field(repr=False, compare=False, default_factory=lambda: np.empty(0))
    incomplete: bool = False
    frozen: bool = False


def ranked(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Smallest leave-one-out error first; models without a number come last, in the order given."""
    return sorted(candidates, key=lambda entry: inf if isnan(entry.error) else entry.error)


def tied(candidates: Sequence[Candidate]) -> list[str]:
    """Models whose errors do not differ significantly from the best one's, best first.

    Empty if no model ties with the best, or if errors of single examples are unknown.

    Examples:
        >>> rows = np.array([[0.1, 0.4, 0.2, 0.3], [0.3, 0.2, 0.4, 0.15], [0.9, 0.8, 0.9, 0.7]])
        >>> tied([Candidate(n, float(r.mean()), 1.0, 1.0, 1, r) for n, r in zip("abc", rows)])
        ['a', 'b']
    """
    known = [entry for entry in ranked(candidates) if isfinite(entry.error)]
    near = [entry.name for entry in known[1:] if not _apart(known[0], entry)]
    return [known[0].name, *near] if near else []


def choosing_notes(candidates: Sequence[Candidate], *, points: bool = True) -> list[Reason]:
    """Notes about a ranking, with their kinds and facts.

    They say where the evidence disagrees, and whether the ranking by size is the same.

    Args:
        candidates: models in any order.
        points: whether forecasts are accuracies, whose differences are in points.

    Examples:
        >>> pair = [Candidate("a", 0.5, 0.3, 0.7, 10), Candidate("b", 0.3, 0.4, 0.8, 5)]
        >>> for note in choosing_notes(pair):
        ...     print(note)
        Linear probes rank a first; the tangent kernel ranks b first.
        The ranking by size starts with a, whose forecast is 10.0 points lower.
    """
    known = [entry for entry in ranked(candidates) if isfinite(entry.error)]
    notes: list[Reason] = []
    low = [entry for entry in known if points and entry.error > SMALL_ERROR]
    bounds = [entry.name for entry in low if not entry.frozen]
    if bounds:
        notes.append(reason(Note.LOW_FORECASTS, models=bounds, share=100 * SMALL_ERROR))
    if len(known) < 2:
        return notes
    first = known[0]
    alone = [entry.name for entry in known if entry.incomplete]
    if 0 < len(alone) < len(known):
        notes.append(reason(Note.JUDGED_BY_FEATURES, models=alone))
    plain = min(known, key=lambda entry: _number(entry.features_error))
    if plain.name != first.name:
        notes.append(reason(Note.PROBES_DISAGREE, probes=plain.name, kernel=first.name))
    notes.append(_beside_size(known, points))
    return notes


def _number(value: float) -> float:
    return inf if isnan(value) else value


def _apart(first: Candidate, other: Candidate) -> bool:
    """Whether the errors of two models differ by more than chance, example by example."""
    count = min(len(first.misses), len(other.misses))
    if count < 2:
        return True
    gaps = other.misses[:count] - first.misses[:count]
    error = float(gaps.std(ddof=1)) / sqrt(count)
    return float(gaps.mean()) > CHANCE * error


def _beside_size(known: Sequence[Candidate], points: bool) -> Reason:
    """A comparison of the ranking with the ranking by number of parameters."""
    from scipy.stats import kendalltau

    first, largest = known[0], max(known, key=lambda entry: entry.parameters)
    if len({entry.parameters for entry in known}) == 1:
        return reason(Note.ONE_SIZE)
    tau = float(kendalltau([-e.error for e in known], [e.parameters for e in known]).statistic)
    if largest.name == first.name and (tau >= _SAME_LIST or len(known) == 2):
        return reason(Note.ORDER_OF_SIZE, tau=tau)
    if largest.name == first.name:
        return reason(Note.LARGEST_FIRST, largest=first.name, tau=tau)
    gap = first.forecast - largest.forecast if points else largest.forecast - first.forecast
    size = f"{100 * abs(gap):.1f} points" if points else f"{abs(gap):.3f}"
    difference = (
        f"{size} {'lower' if points == (gap > 0) else 'higher'}" if abs(gap) > 5e-4 else "equal"
    )
    return reason(Note.LARGEST_NOT_FIRST, largest=largest.name, difference=difference)


def ranking_lead(contents: Mapping[str, Any]) -> str:
    """What was ranked, on which examples and how, as the page of a ranking begins."""
    models, data = len(contents["models"]), contents["data"]
    text = f"{models} model{'s' if models > 1 else ''} on {data['probe']:,} labelled examples"
    if data["num_classes"] is not None:
        text += f" of {data['num_classes']} classes (chance {percent(data['chance'])})"
    return f"{text}. Each example is predicted from all the others; nothing was trained."


def transfer_answers(contents: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> list[Answer]:
    """Answers about a ranking: which model, which layer, how many labels.

    Args:
        contents: contents of the record of a ranking; docs/records.md has the layout.
        arrays: arrays of the same record.
    """
    models, data = contents["models"], contents["data"]
    classes = models[0]["forecast"]["measure"] == "accuracy"
    few = (data.get("smallest_class") or FEW_LABELS) < FEW_LABELS
    found = [_model_answer(contents, classes, few), _layer_answer(models[0], classes, few)]
    found.append(_labels_answer(contents, arrays, classes))
    return [answer for answer in found if answer is not None]


def _model_answer(contents: Mapping[str, Any], classes: bool, few: bool) -> Answer:
    models = contents["models"]
    best, ties = models[0], contents.get("ties") or []
    forecast = best["forecast"]
    span = _span(forecast["low"], forecast["high"], classes)
    reach = f"{_shown(forecast['value'], classes)} ({span})"
    name = named(best["name"])
    error = f"leave-one-out error {best['error']:.2f} for {name}"
    others = [model for model in models[1:] if model["name"] not in ties]
    if len(models) > 1:
        error += f", {models[1]['error']:.2f} for {named(models[1]['name'])}"
    evidence = f"{error}; {contents['data']['probe']:,} labels, each predicted from the others"
    if len(models) == 1:
        text = f"Fine-tuning {name} is expected to reach {reach}. No other model was given."
        return Answer("model", text, "likely", evidence, finding="one-model")
    if ties:
        text = f"Tie: {listed(map(named, ties), most=4)} are not distinguished on these labels."
        text += f" Fine-tuning {name} is expected to reach {reach}."
        sizes = {m["name"]: int(m["parameters"]) for m in models if m["name"] in ties}
        choice = "any of them"
        if len(set(sizes.values())) > 1:
            choice = f"the smallest of them, {named(min(sizes, key=sizes.__getitem__))}"
        advice = f"Start from {choice}, or label more examples."
        return Answer("model", text, "undecided", evidence, advice, "tie")
    text = f"Start from {name}: fine-tuning is expected to reach {reach}."
    incomplete = few or any(model["tangent"] is None for model in models)
    sure: Certainty = "likely" if incomplete or not others else "clear"
    return Answer("model", text, sure, evidence, finding="one-best")


def _layer_answer(best: Mapping[str, Any], classes: bool, few: bool) -> Answer | None:
    """The layer after which to cut the best model, if its linear probes differ."""
    layers, measure = best["layers"], "accuracy" if classes else "error"
    chosen = next((x for x in layers if x["name"] == best["best_layer"]), None)
    if chosen is None:
        return None
    last = layers[-1]
    reach = _shown(chosen[measure], classes)
    span = _span(chosen[f"{measure}_low"], chosen[f"{measure}_high"], classes)
    evidence = f"95 % interval {span}, {chosen['n']:,} examples"
    head = f"Without fine-tuning, {_cut(best, chosen)}: a linear probe reaches"
    text, finding, sure = f"{head} {reach}.", "one-layer", "likely"
    apart = abs(last[measure] - chosen[measure]) * 2 > abs(
        chosen[f"{measure}_high"] - chosen[f"{measure}_low"]
    )
    if chosen is not last:
        end = _shown(last[measure], classes)
        text = f"{head} {reach}, after the last layer {end}."
        if classes and last[measure] > chosen[measure]:  # layers are compared by squared error
            text = f"Without fine-tuning, {_cut(best, chosen)}: its linear probe has the lowest"
            text += f" squared error (accuracy {reach}, after the last layer {end})."
        if not apart:
            text += " This difference may be chance."
            finding, sure = "layers-alike", "undecided"
    certainty: Certainty = "undecided" if sure == "undecided" or few else "likely"
    return Answer("layer", text, certainty, evidence, finding=finding)


def _cut(model: Mapping[str, Any], layer: Mapping[str, Any]) -> str:
    """What to keep of a model. What its head receives, or what it returns, is no layer."""
    name = named(model["name"])
    if layer.get("type") != "":
        return f"cut {name} after {layer_name(layer['name'])}"
    if model.get("head") is None:
        return f"use the outputs of {name}"
    return f"remove only the head of {name}"


def _labels_answer(
    contents: Mapping[str, Any], arrays: Mapping[str, np.ndarray], classes: bool
) -> Answer:
    measure = "accuracy" if classes else "error"
    labels, values = arrays["0/curve/labels"], arrays[f"0/curve/{measure}"]
    low, high = sorted(float(end) for end in arrays[f"0/curve/{measure}_interval"][:, -1])
    now = contents["data"]["probe"]
    most = _shown(float(values[-1]), classes)
    name = named(contents["models"][0]["name"])
    text = f"Fine-tuning {name} with {labels[-1]:,.0f} labels is expected to reach {most}."
    if labels[0] <= 2 * now < labels[-1]:
        double = float(np.interp(np.log(2 * now), np.log(labels), values))
        text = f"Fine-tuning {name} with twice the labels ({2 * now:,}) is expected to reach"
        text += f" {_shown(double, classes)}, with {labels[-1]:,.0f} labels {most}."
    evidence = f"95 % interval with {labels[-1]:,.0f} labels: {_span(low, high, classes)}"
    return Answer("labels", text, "likely", evidence, finding="curve")


def _shown(value: float, classes: bool) -> str:
    """A share in per cent, or an error."""
    if isnan(value):
        return "undefined"
    return percent(value) if classes else f"an error of {value:.3f}"


def _span(low: float, high: float, classes: bool) -> str:
    if not classes:
        return f"{low:.3f} to {high:.3f}"
    return f"{percent(low).removesuffix(' %')} to {percent(high)}"
