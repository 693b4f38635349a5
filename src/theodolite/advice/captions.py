"""Captions of the figures of a page, computed from the numbers of a family or a measure."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from theodolite.advice.findings import LABELED, LEVEL_SHARE
from theodolite.advice.reasons import TOO_FEW_FILTERS, count_of, shared_words
from theodolite.advice.sentences import layer_name, percent
from theodolite.records import (
    CHANCE,
    FAMILIES,
    Group,
    Moment,
    Record,
    RunView,
    finite,
    listed,
    plain,
    probed_examples,
    shown,
    shown_as,
)

Values = dict[str, float]

_HIGHEST = ("kernel", "tangent", "gradient")  # their sentences name the highest layer
_MOST_OTHERS = 5  # runs that are compared with the first
_NO_CHANGE = 5e-4  # shares below this are printed as 0 %


def family_sentence(group: Group, family: str, step: int | None = None) -> str:
    """A sentence about the headline of a family in the first run, and how other runs differ."""
    measure = FAMILIES[family].headline
    run = next((r for r in group.runs if r.measured(family, measure)), group.runs[0])
    moment = run.latest_with(step, family, measure)
    values = values_of(group, moment, family, measure)
    if not values:
        return f"Not shown: {missing_reason(group, family).rstrip('.')}."
    scores = scores_of(run, step, family, values)
    beyond = {layer: v for layer, v in values.items() if scores.get(layer, 0) > CHANCE}
    # The lowest misalignment often belongs to a layer with few filters, where it is chance.
    who = f"{plain(run.name)}: " if len(group.runs) > 1 else ""
    said = _DESCRIPTIONS[family](beyond if beyond and family == "covariance" else values)
    within = family == "covariance" and scores and not beyond
    parts = [f"{who}{said}{', within the range of chance' if within else ''}"]
    near = _as_high(moment, family, measure, values) if family in _HIGHEST else []
    if near and len(group.runs) == 1:
        parts += [f"That is not significantly higher than in {listed(near, most=3)}"]
    if scores:
        read = (
            " with enough filters"
            if family == "covariance" and moment.layers_with_few_filters
            else ""
        )
        share, verb = _share(len(beyond), len(scores)), "is" if len(scores) == 1 else "are"
        verb = "is" if len(beyond) in (0, 1, len(scores)) else verb
        parts += [f"{share[0].upper()}{share[1:]}{read} {verb} more aligned than chance"]
    if len(group.runs) == 1:
        parts += [_since_start(run, step, family), _dated(run, moment, step)]
    return paragraph(group, [*parts, *_other_runs(group, run, family, measure, step)])


def _as_high(moment: Moment, family: str, measure: str, values: Values) -> list[str]:
    """Layers whose number is within two standard errors of the highest one."""

    def error(layer: str) -> float:
        found = (moment.row(family, measure, layer) or {}).get("error")
        return float(found) if found is not None and finite(found) else 0.0

    top = max(values, key=values.__getitem__)
    near = (
        layer
        for layer, value in values.items()
        if layer != top and values[top] - value <= CHANCE * math.hypot(error(top), error(layer))
    )
    return list(map(layer_words, near))


def profile_sentence(
    group: Group, family: str, measure: str, step: int | None = None, words: str = ""
) -> str:
    """Where a measure is highest and lowest in the first run, and how the others differ.

    ``words`` names the measure, for a chart that has more than one.
    """
    known = (r for r in group.runs if values_of(group, r.latest_with(step, family, measure), family,
                                                measure))  # fmt: skip
    run = next(known, group.runs[0])
    moment = run.latest_with(step, family, measure)
    values = values_of(group, moment, family, measure)
    endless = [
        layer_words(name) for name in group.layers
        if math.isinf(moment.value(family, measure, name))
    ]  # fmt: skip
    parts = [_extremes(values, measure)] if values else []
    parts += [f"{'It is i' if values else 'i'}nfinite in {', '.join(endless)}"] if endless else []
    if not parts:
        at = group.steps[-1] if step is None else step
        return f"Not measured at step {at}." if group.is_history else ""
    about = [plain(run.name)] * (len(group.runs) > 1) + [words] * bool(words)
    parts[0] = (f"{', '.join(about)}: " if about else "") + parts[0]
    others = _other_runs(group, run, family, measure, step)
    return paragraph(group, [*parts, _dated(run, moment, step), *others])


def numbers_sentence(
    group: Group, family: str, names: Mapping[str, str], layer: str, step: int | None = None
) -> str:
    """The measures of one layer, written out."""
    parts = []
    for run in group.runs:
        found = [
            (words, run.latest_with(step, family, measure).value(family, measure, layer))
            for measure, words in names.items()
        ]
        numbers = ", ".join(f"{words} {shown(value)}" for words, value in found if finite(value))
        who = f"{plain(run.name)}: " if len(group.runs) > 1 else ""
        parts += [f"{who}{numbers} in {layer_words(layer)}"] if numbers else []
    return paragraph(group, parts)


def loss_sentence(group: Group) -> str:
    """The loss of each run, first and last."""
    parts = []
    for run in group.runs:
        moments = [m for m in run.moments if finite(m.value("gradient", "loss", None))]
        if moments:
            ends = [shown(m.value("gradient", "loss", None)) for m in (moments[0], moments[-1])]
            who = f"{plain(run.name)}: " if len(group.runs) > 1 else ""
            parts.append(f"{who}{' → '.join(ends)}")
    return paragraph(group, parts)


def trend_sentence(group: Group) -> str:
    """How the headline of each run changed over its last third, in the layer with its maximum."""
    parts = []
    for run in group.runs:
        headlines = [(f, FAMILIES[f].headline) for f in LABELED]
        family, measure = next((pair for pair in headlines if run.measured(*pair)), headlines[0])
        known = run.moments_with(family, measure)
        last = values_of(group, known[-1], family, measure) if len(known) > 2 else {}
        if not last:
            continue
        layer = max(last, key=last.__getitem__)
        earlier = known[-1 - max(1, len(known) // 3)]
        before, now = earlier.value(family, measure, layer), last[layer]
        if not finite(before):
            continue
        small = LEVEL_SHARE * max(abs(before), abs(now))
        word = "falls" if before - now > small else "has levelled"
        word = "still rises" if now - before > small else word
        who = f"{plain(run.name)}: " if len(group.runs) > 1 else ""
        change = f"{shown(before)} → {shown(now)} since step {earlier.step}"
        parts.append(f"{who}{FAMILIES[family].heading} of {layer_words(layer)} {word}, {change}")
    drawn = "The loss, and each headline number by layer and step."
    return f"{drawn} {paragraph(group, parts)}".rstrip()


def sketch_sentence(runs: Sequence[RunView], family: str, measure: str) -> str:
    """The errors of sketches, after another sentence; "" if kernels were exact."""
    errors: dict[int, float] = {}
    for moment in (moment for run in runs for moment in run.moments):
        contents = moment.record.contents
        vectors = contents.get("config", {}).get("sketch_vectors")
        for row in contents["rows"]:
            of_this = (row["family"], row["measure"], row["method"]) == (family, measure, "sketch")
            if of_this and vectors is not None and finite(row["error"]):
                errors[vectors] = max(errors.get(vectors, 0.0), float(row["error"]))
    if not errors:
        return ""
    text = " and ".join(f"{n} (errors up to {shown(errors[n])})" for n in sorted(errors))
    last = " The last step has the most, so a jump there may be an error." * (len(errors) > 1)
    return f" Estimated with random vectors, {text}.{last}"


def curves_sentence(group: Group, step: int | None) -> str:
    """Name the step of the curves if it is not the requested step."""
    if not group.is_history:
        return ""
    steps: Sequence[int] = sorted({run.with_curves_at(step).step for run in group.runs})
    return f"Curves of step {', '.join(map(str, steps))}."


def opening_sentence(group: Group, step: int | None = None) -> str:
    """What was measured, on what, and when."""
    pieces = [count_of(layer_count(group), "layer")]
    contents = [run.at(step).record.contents for run in group.runs]
    examples = list(dict.fromkeys(filter(None, map(_examples, contents))))
    if examples:
        pieces.append(f"measured on {' and '.join(examples[:3])}")
    if group.is_history:
        steps = group.steps
        pieces.append(f"at {len(steps)} steps from {steps[0]} to {steps[-1]}")
    longest = max(group.runs, key=lambda view: len(view.run.steps))
    text = ", ".join(pieces) + _some_steps(longest) + "."
    if len(group.runs) > 1:
        text += f" {len(group.runs)} runs side by side."
    return text + _losses(group, step)


def _examples(contents: Mapping[str, Any]) -> str:
    """How many examples of which kind, and whose labels."""
    data = contents.get("data", {})
    if not (data.get("probe") or data.get("n")):
        return ""
    split = {"train": "training"}.get(data.get("split", ""), data.get("split"))
    kind = f" {plain(split)}" if split not in {None, "unknown"} else ""
    labels = data.get("label_source")
    source = f" ({plain(labels)} labels)" if labels not in {None, "given"} else ""
    return f"{probed_examples(contents)}{kind} examples{source}"


def _some_steps(run: RunView) -> str:
    """Families that were measured at fewer steps than the others."""
    taken = dict.fromkeys(FAMILIES, 0)
    for record in run.run.steps:
        measures = {row["measure"] for row in record.contents["rows"]}
        for family, words in FAMILIES.items():
            taken[family] += words.headline in measures
    most = max(taken.values())
    fewer = sorted({count for count in taken.values() if 0 < count < most})
    parts = [f"{listed(f for f in taken if taken[f] == n)} at {n}" for n in fewer]
    return f" ({'; '.join(parts)} of {most})" if parts else ""


def _losses(group: Group, step: int | None) -> str:
    losses = []
    for run in group.runs:
        moment = run.latest_with(step, "gradient", "loss")
        loss = moment.value("gradient", "loss", None)
        at = "" if moment is run.at(step) else f" at step {moment.step}"
        name = f" ({plain(run.name)})" if len(group.runs) > 1 else ""
        losses += [f"{shown(loss)}{at}{name}"] if finite(loss) else []
    on = "" if len(group.runs) > 1 else " on them"
    return f" Loss{on}: {', '.join(losses)}." if losses else ""


def missing_reason(group: Group, family: str) -> str:
    """Why a family has no numbers; a monitor measures all families at its first step."""
    moments = [moment for run in group.runs for moment in (run.moments[0], run.last)]
    reasons = (moment.record.contents.get("skipped", {}).get(family) for moment in moments)
    known = next((plain(str(text)) for text in reasons if text), "")
    if known or not group.measured(family):
        return known or "not measured"
    headline = FAMILIES[family].headline
    if family == "covariance" and moments[-1].layers_with_few_filters:
        return TOO_FEW_FILTERS
    if group.measured(family, headline):
        last, layers = moments[-1], group.measured(family, headline)
        rows = [last.row(family, headline, layer) or {} for layer in layers]
        said = dict.fromkeys(plain(str(row["reason"])) for row in rows if row.get("reason"))
        shared = shared_words(last.note(family, headline, layers[0])) if len(said) > 1 else None
        why = shared or next(iter(said), "")
        return f"undefined in every layer{', ' if why else ''}{why}"
    needs = "classes" if family == "gradient" else "targets"
    return f"{FAMILIES[family].heading} needs {needs}; other measures are below"


def values_of(group: Group, moment: Moment, family: str, measure: str) -> Values:
    """The finite numbers of a measure by layer."""
    pairs = ((layer, moment.value(family, measure, layer)) for layer in group.layers)
    return {layer: value for layer, value in pairs if finite(value)}


def scores_of(run: RunView, step: int | None, family: str, values: Values) -> Values:
    """Standard deviations from chance by layer, if chance is known; larger is more aligned."""
    words = FAMILIES[family]
    sign = -1 if words.lower_is_aligned else 1
    levels = {layer: run.chance(step, family, words.headline, layer) for layer in values}
    scores = {la: sign * c.score(values[la]) for la, c in levels.items() if c is not None}
    return {layer: score for layer, score in scores.items() if finite(score)}


def compared(first: Values, other: Values, than: str = "") -> str:
    """In how many layers another run is higher or lower, whichever are more.

    Args:
        first: the numbers of a run.
        other: the numbers of another run.
        than: words that follow "higher" or "lower".
    """
    both = [layer for layer in first if layer in other]
    if not both:
        return ""
    higher = sum(other[layer] > first[layer] for layer in both)
    lower = sum(other[layer] < first[layer] for layer in both)
    if not higher and not lower:
        return f"equal in {_share(len(both), len(both))}"
    word, number = ("higher", higher) if higher >= lower else ("lower", lower)
    return f"{word} in {_share(number, len(both))}{than}"


def _other_runs(
    group: Group, first: RunView, family: str, measure: str, step: int | None
) -> list[str]:
    """In how many layers other runs are higher or lower; the raw input is no layer."""
    here = values_of(group, first.latest_with(step, family, measure), family, measure)
    here = {layer: here[layer] for layer in here if layer not in _raw_inputs(group)}
    than = f" than with {plain(first.name)}"
    parts = []
    for run in [run for run in group.runs if run is not first][:_MOST_OTHERS]:
        there = values_of(group, run.latest_with(step, family, measure), family, measure)
        words = compared(here, there, than)
        parts += [f"{plain(run.name)}: {words}"] if words else []
    return parts


def _since_start(run: RunView, step: int | None, family: str) -> str:
    measure = FAMILIES[family].headline
    start, now = run.moments[0], run.latest_with(step, family, measure)
    if start is now:
        return ""
    pairs = {
        name: (start.value(family, measure, name), now.value(family, measure, name))
        for name in run.layers
    }
    known = {name: pair for name, pair in pairs.items() if all(map(finite, pair))}
    if not known:
        return ""
    name = max(known, key=lambda layer: abs(known[layer][1] - known[layer][0]))
    change = " → ".join(shown(value) for value in known[name])
    return f"The largest change since step {start.step} is in {layer_words(name)}: {change}"


def _dated(run: RunView, moment: Moment, step: int | None) -> str:
    """Name the step of the numbers if it is not the requested step."""
    return "" if moment is run.at(step) else f"Numbers are those of step {moment.step}"


def _extremes(values: Values, measure: str) -> str:
    text = {layer: shown_as(measure, value) for layer, value in values.items()}
    top, bottom = max(values, key=values.__getitem__), min(values, key=values.__getitem__)
    ends = [f"{layer_words(layer)} ({text[layer]})" for layer in (top, bottom)]
    if len(values) == 1:
        return f"{text[top]} in {layer_words(top)}"
    if text[top] == text[bottom]:
        return f"{text[top]} in every layer"
    return f"highest in {ends[0]}, lowest in {ends[1]}"


def _representation(values: Values) -> str:
    layers = list(values)
    if len(layers) == 1:
        return f"label alignment is {shown(values[layers[0]])} in {layer_words(layers[0])}"
    first, last = values[layers[0]], values[layers[-1]]
    top = max(values, key=values.__getitem__)
    highest = f". It is highest in {_named(values, top)}"
    if abs(last - first) <= LEVEL_SHARE * max(map(abs, values.values())):
        return f"label alignment differs little between layers{highest}"
    word = "rises" if last > first else "falls"
    ends = f"from {_named(values, layers[0])} to {_named(values, layers[-1])}"
    return f"label alignment {word} {ends}{'' if values[top] in (first, last) else highest}"


def _covariance(values: Values) -> str:
    layer = min(values, key=values.__getitem__)
    change = abs(1 - values[layer])
    word = "less" if values[layer] < 1 else "more"
    than = f"{percent(change)} {word} misaligned with the data than"
    if change < _NO_CHANGE:
        than = "no better than"
    return f"weights of {layer_words(layer)} are {than} random bases"


def _last_and_highest(family: str, values: Values) -> str:
    last, top = list(values)[-1], max(values, key=values.__getitem__)
    text = f"{FAMILIES[family].heading} is {shown(values[last])} in {layer_words(last)}"
    if len(values) == 1:
        return text
    return text + (f", highest in {_named(values, top)}" if top != last else ", the highest of all")


def _tangent(values: Values) -> str:
    top = max(values, key=values.__getitem__)
    return f"tangent alignment is highest in {_named(values, top)}"


_DESCRIPTIONS: Mapping[str, Callable[[Values], str]] = {
    "representation": _representation,
    "covariance": _covariance,
    "kernel": partial(_last_and_highest, "kernel"),
    "tangent": _tangent,
    "gradient": partial(_last_and_highest, "gradient"),
}


def _share(part: int, whole: int) -> str:
    if not part:
        return "no layer"
    if whole == 1:
        return "the one layer"
    return "every layer" if part == whole else f"{part} of {count_of(whole, 'layer')}"


def layer_count(group: Group) -> int:
    """Number of layers, without the row of the raw input."""
    return len(set(group.layers) - _raw_inputs(group))


def _raw_inputs(group: Group) -> set[str]:
    """The row of the raw input, if there is one."""
    entries = group.runs[0].run.head.contents.get("layers", [])
    return {entry["name"] for entry in entries if entry.get("role") == "input"}


def layer_words(name: str) -> str:
    """A layer in a sentence of a page; names come from models and may contain anything."""
    return plain(layer_name(name))


def _named(values: Values, layer: str) -> str:
    return f"{layer_words(layer)} ({shown(values[layer])})"


def paragraph(group: Group, parts: Sequence[str]) -> str:
    """Parts as sentences. With several runs they begin with a name, which stays unchanged."""
    single = len(group.runs) == 1
    sentences = [f"{p[0].upper() if single else p[0]}{p[1:]}." for p in parts if p]
    return " ".join(sentences)


CHANCE_BAND = f"chance level ± {CHANCE:g} standard deviations"
CHANCE_DIFFERENCES = f"differences that chance explains ({CHANCE:g} standard deviations)"


def chance_band(drawn: str) -> str:
    """What a band of chance shows; ``drawn`` names what was drawn at random."""
    return f"chance: {drawn}, ± {CHANCE:g} standard deviations"


def ends_sentence(lines: Iterable[tuple[str, Sequence[tuple[str, str]]]]) -> str:
    """The first and the last number of every line of a chart, for screen readers.

    Args:
        lines: names of lines, each with its layers and their numbers as text.
    """
    parts = []
    for name, points in lines:
        known = [f"{number} in {plain(layer)}" for layer, number in points]
        parts += [f"{name}: {known[0]}, {known[-1]}"] if known else []
    return "; ".join(parts) + "."


def chart_sentence(title: str, text: str) -> str:
    """A chart over layers in words."""
    return f"{title}, layer by layer. {text}"


def with_chance(meaning: str, measure: str, chance: float) -> str:
    """What a number of the whole model means, with its chance level."""
    return f"{meaning} (chance {shown_as(measure, chance)})"


def digest_words(*records: Record) -> str:
    """A warning about files of old versions; "" if every file has a digest."""
    if not any(record.unverified for record in records):
        return ""
    return "no digest: a version before 0.3 wrote this file, so changes in it cannot be detected"
