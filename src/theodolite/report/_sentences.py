"""Sentences computed from the numbers: none is written in advance."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from theodolite.records import FAMILIES
from theodolite.report._numbers import finite, shown
from theodolite.report._reading import Group, Moment, RunView
from theodolite.report.pages import plain

__all__ = [
    "headline_sentence",
    "joined",
    "opening_sentence",
    "overview_sentence",
    "profile_sentence",
    "quiet_reason",
]

_LEVEL = 0.05  # changes below this share of the largest value are called none
_RESOLVED = 2.0  # standard deviations of the null

Values = list[tuple[str, float]]


def headline_sentence(group: Group, family: str, step: int | None = None) -> str:
    """What the headline numbers of a family say in this group, at a step."""
    measure = FAMILIES[family].headline
    parts = []
    for run in group.runs:
        moment = run.holding(step, family, measure)
        values = _values(group, moment, family, measure)
        if values:
            who = f"{plain(run.name)}: " if len(group.runs) > 1 else ""
            told = _told(values, _scores(moment, family, measure, values), family)
            since = _since_start(run, step, family)
            parts.append(who + told + since + _dated(run, moment, step))
    if len(group.runs) > 1:
        parts.append(_between_runs(group, family, measure, step))
    if family == "tangent":
        parts.append(_balance(group, step))
    return paragraph(group, parts)


def overview_sentence(group: Group, family: str) -> str:
    """One sentence about the first run at its latest step, and how the others differ."""
    measure = FAMILIES[family].headline
    run = group.runs[0]
    moment = run.holding(None, family, measure)
    values = _values(group, moment, family, measure)
    if not values:
        return f"Not shown: {quiet_reason(group, family).rstrip('.')}."
    parts = [_told(values, _scores(moment, family, measure, values), family)]
    if len(group.runs) > 1:
        parts.append(_between_runs(group, family, measure, None))
    else:
        parts[0] += _since_start(run, None, family) + _dated(run, moment, None)
    text = "; ".join(part for part in parts if part)
    return f"{text[:1].upper()}{text[1:]}."


def profile_sentence(group: Group, family: str, measure: str, step: int | None = None) -> str:
    """Where a measure is highest and lowest, for every run."""
    parts = []
    for run in group.runs:
        moment = run.holding(step, family, measure)
        values = _values(group, moment, family, measure)
        endless = [
            _layer(name) for name in group.layers
            if math.isinf(moment.value(family, measure, name))
        ]  # fmt: skip
        told = [_extremes(values)] if values else []
        told += [f"infinite in {', '.join(endless)}"] if endless else []
        who = f"{plain(run.name)}: " if len(group.runs) > 1 else ""
        parts += [who + "; ".join(told) + _dated(run, moment, step)] if told else []
    if not parts and group.is_history:
        return f"Not measured at step {group.steps[-1] if step is None else step}."
    return paragraph(group, parts)


def opening_sentence(group: Group) -> str:
    """What was measured, on what, and when."""
    run = group.runs[0]
    data = run.last.record.contents.get("data", {})
    layers = len(group.layers)
    of = f" of {plain(group.name)}" if len(group.runs) == 1 and run.run.name else ""
    pieces = [f"{_count(layers, 'layer')}{of}"]
    examples = data.get("probe") or data.get("n")
    if examples:
        split = {"train": "training"}.get(data.get("split"), data.get("split"))
        kind = f" {plain(split)}" if split not in {None, "unknown"} else ""
        labels = (
            f" ({plain(data['label_source'])} labels)"
            if data.get("label_source") not in {None, "given"}
            else ""
        )
        pieces.append(f"measured on {examples}{kind} examples{labels}")
    if group.is_history:
        pieces.append(f"at {len(group.steps)} steps from {group.steps[0]} to {group.steps[-1]}")
    longest = max(group.runs, key=lambda view: len(view.run.steps))
    text = ", ".join(pieces) + _some_steps(longest) + "."
    if len(group.runs) > 1:
        names = ", ".join(f"“{plain(r.name)}”" for r in group.runs)
        text += f" {len(group.runs)} runs side by side: {names}."
    return text + _losses(group)


def _some_steps(run: RunView) -> str:
    """Which families were taken at fewer steps than the others."""
    counts = {family: _taken(run, family) for family in FAMILIES}
    most = max(counts.values())
    fewer = sorted({count for count in counts.values() if 0 < count < most})
    parts = [f"{', '.join(f for f in counts if counts[f] == n)} at {n}" for n in fewer]
    cadence = run.run.head.contents.get("config", {}).get("cadence")
    why = ", the cadence of the monitor" if cadence else ""
    return f" ({'; '.join(parts)} of {most}{why})" if parts else ""


def _taken(run: RunView, family: str) -> int:
    """Steps of the whole run, shown or not, at which a family has its headline."""
    headline, steps = FAMILIES[family].headline, run.run.steps
    return sum(any(row["measure"] == headline for row in s.contents["rows"]) for s in steps)


def quiet_reason(group: Group, family: str) -> str:
    """Why a family has no numbers; at its first step a monitor takes all that it can."""
    moments = [moment for run in group.runs for moment in (run.moments[0], run.last)]
    reasons = (moment.record.contents.get("skipped", {}).get(family) for moment in moments)
    known = next((plain(str(text)) for text in reasons if text), "")
    if known or not group.measured(family):
        return known or "not measured"
    headline = FAMILIES[family].headline
    if group.measured(family, headline):
        row = moments[-1].row(family, headline, group.measured(family, headline)[0]) or {}
        return f"undefined in every layer, {plain(str(row.get('reason')))}"
    task = plain(str(moments[0].record.contents.get("data", {}).get("task", "these")))
    needs = "classes" if family == "gradient" else "targets"
    return f"{task} data have no {needs} for it; what needs none is below"


def _dated(run: RunView, moment: Moment, step: int | None) -> str:
    """Says so where numbers are of another step than the one asked for."""
    return "" if moment is run.at(step) else f"; numbers of step {moment.step}"


def _values(group: Group, moment: Moment, family: str, measure: str) -> Values:
    pairs = [(layer, moment.value(family, measure, layer)) for layer in group.layers]
    return [(layer, value) for layer, value in pairs if finite(value)]


def _extremes(values: Values) -> str:
    if len(values) == 1:
        return f"{shown(values[0][1])} in {_layer(values[0][0])}"
    top, bottom = max(values, key=_second), min(values, key=_second)
    if shown(top[1]) == shown(bottom[1]):
        return f"{shown(top[1])} in every layer"
    return f"highest in {_named(top)}, lowest in {_named(bottom)}"


def _trend(values: Values) -> str:
    first, last = values[0][1], values[-1][1]
    scale = max(abs(value) for _, value in values)
    if abs(last - first) <= _LEVEL * scale:
        return "level from input to output"
    word = "rises" if last > first else "falls"
    return f"{word} from {_named(values[0])} to {_named(values[-1])}"


def _representation(values: Values) -> str:
    if len(values) == 1:
        return f"alignment area {shown(values[0][1])} in {_layer(values[0][0])}"
    return f"alignment area {_trend(values)}; highest in {_named(max(values, key=_second))}"


def _covariance(values: Values) -> str:
    layer, value = min(values, key=_second)
    change = f"{abs(1 - value):.0%}"
    word = "less" if value < 1 else "more"
    than = f"{change} {word} misaligned with the data than" if change != "0%" else "no better than"
    return f"weights of {_layer(layer)} are {than} random bases"


def _kernel(values: Values) -> str:
    last = values[-1]
    text = f"CKA to the target is {shown(last[1])} in the last layer"
    top = max(values, key=_second)
    return text + (f", highest in {_named(top)}" if top != last else ", the highest of all layers")


def _tangent(values: Values) -> str:
    return (
        f"highest in {_named(max(values, key=_second))}: its own kernel points most at the target"
    )


def _gradient(values: Values) -> str:
    layer, value = values[-1]
    word = "more" if value >= 0 else "less"
    agree = f"gradients of one class agree {shown(abs(value))} {word}"
    return f"in {_layer(layer)}, {agree} than those of any two examples"


_CORE: Mapping[str, Callable[[Values], str]] = {
    "representation": _representation,
    "covariance": _covariance,
    "kernel": _kernel,
    "tangent": _tangent,
    "gradient": _gradient,
}


def _told(values: Values, scores: Mapping[str, float], family: str) -> str:
    """What the numbers of a run say, and in how many layers that is more than chance."""
    beyond = [(layer, value) for layer, value in values if scores.get(layer, 0) > _RESOLVED]
    # The lowest misalignment is often that of a layer with few filters, which is chance.
    text = _CORE[family](beyond if beyond and family == "covariance" else values)
    return text + (
        f"; {len(beyond)} of {_count(len(scores), 'layer')} beyond chance" if scores else ""
    )


def _scores(moment: Moment, family: str, measure: str, values: Values) -> dict[str, float]:
    """Standard deviations from chance by layer, where chance is known; more is more aligned."""
    sign = -1 if family == "covariance" else 1
    rows = {layer: moment.row(family, measure, layer) for layer, _ in values}
    found = {layer: _score(row) for layer, row in rows.items() if row is not None}
    return {layer: sign * score for layer, score in found.items() if score is not None}


def _score(row: Mapping[str, Any]) -> float | None:
    numbers = (row.get("value"), row.get("null_mean"), row.get("null_sd"))
    if not all(finite(number) for number in numbers) or not row["null_sd"]:
        return None
    return float((row["value"] - row["null_mean"]) / row["null_sd"])


def _since_start(run: RunView, step: int | None, family: str) -> str:
    layers, measure = run.layers, FAMILIES[family].headline
    start, now = run.moments[0], run.holding(step, family, measure)
    if start is now:
        return ""
    pairs = [
        (start.value(family, measure, name), now.value(family, measure, name)) for name in layers
    ]
    known = [
        (name, a, b) for name, (a, b) in zip(layers, pairs, strict=True) if finite(a) and finite(b)
    ]
    if not known:
        return ""
    name, before, after = max(known, key=lambda item: abs(item[2] - item[1]))
    change = f"{shown(before)} → {shown(after)}"
    return f"; since step {start.step} most changed in {_layer(name)}, {change}"


def _between_runs(group: Group, family: str, measure: str, step: int | None) -> str:
    first = dict(_values(group, group.runs[0].holding(step, family, measure), family, measure))
    parts = []
    for run in group.runs[1:]:
        other = dict(_values(group, run.holding(step, family, measure), family, measure))
        both = [layer for layer in first if layer in other]
        if both:
            where = _of(sum(other[layer] < first[layer] for layer in both), len(both))
            parts.append(f"{plain(run.name)}: lower in {where}")
    return "; ".join(parts)


def _balance(group: Group, step: int | None) -> str:
    moment = group.runs[0].holding(step, "tangent", "equilibrium_layer")
    value = moment.value("tangent", "equilibrium_layer", None)
    if not finite(value):
        return ""
    layers = len(group.measured("tangent"))
    return f"Forward and backward information balance at layer {shown(value)} of {layers}"


def _losses(group: Group) -> str:
    told = []
    for run in group.runs:
        moment = run.holding(None, "gradient", "loss")
        loss = moment.value("gradient", "loss", None)
        at = "" if moment is run.last else f" at step {moment.step}"
        name = f" ({plain(run.name)})" if len(group.runs) > 1 else ""
        told += [f"{shown(loss)}{at}{name}"] if finite(loss) else []
    on = "" if len(group.runs) > 1 else " on them"
    return f" Loss{on}: {', '.join(told)}." if told else ""


def _of(part: int, whole: int) -> str:
    if whole == 1:
        return "the one layer" if part else "no layer"
    return (
        "every layer" if part == whole else "no layer" if not part else f"{part} of {whole} layers"
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _layer(name: str) -> str:
    """A layer within a sentence; a mere number needs a noun."""
    return plain(name) if any(map(str.isalpha, name)) or not name else f"layer {plain(name)}"


def _named(item: tuple[str, float]) -> str:
    return f"{_layer(item[0])} ({shown(item[1])})"


def _second(item: tuple[str, float]) -> float:
    return item[1]


def paragraph(group: Group, parts: Sequence[str]) -> str:
    """Parts as sentences; those of several runs begin with a name, which stays as it is."""
    single = len(group.runs) == 1
    return joined([f"{p[0].upper() if single else p[0]}{p[1:]}." for p in parts if p])


def joined(sentences: Sequence[str]) -> str:
    """Sentences as one paragraph."""
    return " ".join(sentence for sentence in sentences if sentence)
