"""The overview: a row for each layer, a small picture and the headline number for each family."""

import html
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from theodolite.records import FAMILIES, READOUTS, Family
from theodolite.report._reading import Group, RunView
from theodolite.report._sentences import CHANCE, family_sentence, quiet_reason
from theodolite.report.pages import finite, plain, shown, shown_chance, shown_error, spaced

__all__ = ["Cell", "Column", "Overview", "Reading", "overview_of", "readings_of", "whole_numbers"]

_MOST_POINTS = 48
_WIDTH, _HEIGHT, _EDGE = 120.0, 34.0, 3.0
# The curve that a single survey shows for a headline; others have a profile over layers.
_THUMBNAILS = {
    "alignment_area": "alignment_curve",
    "relative_misalignment": "transfer",
    "cka_target": "cumulative_power",
    "feature_omega_contrast": "feature_class_contrast",
}
# Families whose curves differ by decades between layers have a scale for each.
_OWN_SCALE = {"covariance"}
# Measures of the whole model: what they are called, and what they mean.
_WHOLE = {
    "peak_layer": ("peak layer", "the layer with the highest tangent alignment, counted from 1"),
    "equilibrium_layer": (
        "balance",
        "depth, in layers from the input, at which the similarity of inputs (forward) and that of"
        " output gradients (backward) tell examples apart equally well, by theory",
    ),
    "omega": (
        "Ω, all parameters",
        "agreement of all gradients: 1 if they point the same way, 0 if they share nothing",
    ),
    "in_class_omega": ("Ω within classes", "the same among examples of one class"),
    "omega_contrast": ("gradient contrast", "Ω within classes minus Ω of all examples"),
    "logit_omega_contrast": (
        "logit contrast", "the same for gradients with respect to the outputs"
    ),
    "loss": ("loss", "mean loss on the examples"),
    "held_out_loss": ("held-out loss", "the same on sequences it was not trained on"),
    "carried_over": (
        "carried over",
        "of what the loss has fallen by since the first measurement, the share by which that of"
        " held-out sequences has",
    ),
    "accuracy": ("accuracy", "share of these examples that the network gets right"),
    "held_out_accuracy": ("held-out accuracy", "the same on examples it was not trained on"),
    "input_neighbour_accuracy": (
        "inputs, neighbours",
        "share told right by the nearest neighbours among the raw inputs, without the network",
    ),
    "input_readout_accuracy": (
        "inputs, read-out",
        "share told right by a linear read-out of the raw inputs, without the network",
    ),
    "r2": ("R²", "share of the variance of the targets that the outputs explain"),
    "held_out_r2": ("held-out R²", "the same on examples it was not trained on"),
    "label_accuracy": ("label accuracy", "share of the labels of these examples told right"),
    "held_out_label_accuracy": (
        "held-out label accuracy", "the same on examples it was not trained on"
    ),
    "input_readout_r2": (
        "inputs, read-out R²",
        "share of the variance of the targets that a linear read-out of the raw inputs explains,"
        " without the network",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Reading:
    """The number of one run in a cell, all of it text.

    Args:
        run: name of the run.
        order: its place among the runs.
        number: its value.
        source: path of the value in the record, as JSON.
        error: its standard error, or "".
        chance: its chance level or why it is undefined, or "".
        within: whether it cannot be told from chance.
        top: whether no layer is more aligned.
    """

    run: str
    order: int
    number: str
    source: str = "null"
    error: str = ""
    chance: str = ""
    within: bool = False
    top: bool = False


@dataclass(frozen=True)
class Cell:
    """One layer and family: a picture, and a reading for each run; ``quiet`` says why none."""

    picture: str = ""
    readings: tuple[Reading, ...] = ()
    quiet: str = ""


@dataclass(frozen=True)
class Column:
    """One family down the layers."""

    family: Family
    cells: tuple[Cell, ...]
    sentence: str


@dataclass(frozen=True)
class Overview:
    """Layers and columns; ``note`` tells what the pictures show, ``absent`` what is missing."""

    layers: tuple[str, ...]
    columns: tuple[Column, ...]
    note: str
    absent: tuple[str, ...] = ()


def overview_of(group: Group, step: int | None = None) -> Overview:
    """The overview of one group at a step; families without numbers are named, not drawn."""
    families = {family.headline: family for family in (*READOUTS.values(), *FAMILIES.values())}
    present = [f for f in families.values() if group.measured(f.key, f.headline)]
    columns = [_column(group, family, step) for family in present]
    rows = [i for i in range(len(group.layers)) if any(c.cells[i].readings for c in columns)]
    kept = tuple(Column(c.family, tuple(c.cells[i] for i in rows), c.sentence) for c in columns)
    absent = tuple(
        f"{f.title}: not shown, {quiet_reason(group, f.key).rstrip('.')}."
        for f in FAMILIES.values()
        if f not in present
    )
    return Overview(tuple(group.layers[i] for i in rows), kept, _note(group, kept), absent)


def whole_numbers(
    group: Group, family: str, step: int | None = None
) -> list[tuple[str, list[tuple[str, str, str, str]]]]:
    """Numbers of the whole model: run, then name, number, source and meaning of each."""
    found = []
    for run in group.runs:
        numbers = []
        for measure in group.whole(family):
            moment = run.holding(step, family, measure)
            index = moment.index(family, measure, None)
            name, meaning = _WHOLE.get(measure, (measure.replace("_", " "), ""))
            if index is not None:
                row = moment.record.contents["rows"][index]
                value = row["value"]
                if measure.endswith("accuracy") and finite(row.get("null_mean")):
                    meaning = f"{meaning} (chance {shown(row['null_mean'])})"
                source = _source(run, moment.position, ["rows", index, "value"])
                count = measure == "peak_layer" and float(value).is_integer()
                number = f"{value:.0f}" if count else shown(value)
                numbers.append((name, number, json.dumps(source), meaning))
        if numbers:
            found.append((plain(run.name), numbers))
    return found


def _note(group: Group, columns: Sequence[Column]) -> str:
    if group.is_history:
        return "training from left to right, one scale a column"
    own = any(column.family.key in _OWN_SCALE for column in columns)
    return "curve of each layer, one scale a column" + (" (covariance: its own)" if own else "")


def _column(group: Group, family: Family, step: int | None) -> Column:
    strokes = [_strokes(group, family, layer) for layer in group.layers]
    bands = [_band(group, family, layer) for layer in group.layers]
    every = [v for band in bands for v in band or ()]
    common = _limits([s for row in strokes for s in row], every)
    if group.is_history:
        common = (0.0, 1.0, *common[2:])
    apart = family.key in _OWN_SCALE and not group.is_history
    cells = []
    for layer, row, band in zip(group.layers, strokes, bands, strict=True):
        readings = readings_of(group, family, layer, step)
        if not readings:
            why = {r.at(step).unreadable.get(layer, "") for r in group.runs}
            cells.append(Cell(quiet=next(iter(filter(None, why)), "not measured here")))
            continue
        picture = ""
        if any(stroke.points() for stroke in row):
            limits = _limits(row) if apart else common
            name = f"{family.title} of {plain(layer)}"
            picture = _picture(row, limits, name, band, cursor=group.is_history)
        cells.append(Cell(picture, readings))
    sentence = (
        _peaks(group, family, step)
        if family.headline in READOUTS
        else family_sentence(group, family.key, step)
    )
    return Column(family, tuple(cells), sentence)


def _peaks(group: Group, family: Family, step: int | None) -> str:
    """Where read-outs tell most, in every run."""
    told = []
    for run in group.runs:
        layer = run.most_aligned(step, family)
        if layer is not None:
            moment = run.holding(step, family.key, family.headline)
            share = shown(moment.value(family.key, family.headline, layer))
            who = f"{plain(run.name)}: h" if len(group.runs) > 1 else "H"
            told.append(f"{who}ighest in {plain(layer)}, {share}.")
    return " ".join(told)


def readings_of(group: Group, family: Family, layer: str, step: int | None) -> tuple[Reading, ...]:
    """A number of each run that has it at some step; a dash where this step has none."""
    found = []
    for order, run in enumerate(group.runs):
        if all(m.index(family.key, family.headline, layer) is None for m in run.moments):
            continue
        moment = run.holding(step, family.key, family.headline)
        index = moment.index(family.key, family.headline, layer)
        if index is None:
            why = moment.unreadable.get(layer, "not measured")
            found.append(Reading(plain(run.name), order, shown(None), chance=why))
            continue
        row = moment.record.contents["rows"][index]
        level = run.chance(step, family.key, family.headline, layer)
        within, chance = False, ""
        if not finite(row["value"]) and row.get("reason"):
            chance = plain(str(row["reason"]))
        elif level is not None:
            word = "random" if family.lower_is_aligned else "chance"
            chance = f"{word} {shown_chance(level.mean, level.sd)}"
            within = level.sd > 0 and abs(level.score(row["value"])) <= CHANCE
        below = _below_floor(run, step, layer) if family.key == "covariance" else ""
        reading = Reading(
            plain(run.name),
            order,
            shown(row["value"]),
            json.dumps(_source(run, moment.position, ["rows", index, "value"])),
            shown_error(row),
            ", ".join(filter(None, (chance, below))),
            within,
            not within and layer == run.most_aligned(step, family),
        )
        found.append(reading)
    return tuple(found)


def _below_floor(run: RunView, step: int | None, layer: str) -> str:
    """A word for a misalignment below what sampling alone gives an aligned layer."""
    moment = run.holding(step, "covariance", "relative_misalignment")
    value, floor = (
        moment.value("covariance", name, layer) for name in ("misalignment", "misalignment_floor")
    )
    return "at its floor: fully aligned" if finite(floor) and value < floor else ""


def _source(run: RunView, position: Any, path: list[Any]) -> dict[str, Any]:
    return {"run": run.index, "step": position, "path": path}


@dataclass(frozen=True)
class _Stroke:
    """One line, row of bars or dot of a small picture.

    Args:
        x: positions along the picture.
        y: the numbers; those that cannot be drawn leave a gap.
        order: which run it belongs to.
        kind: "line", "bars" or "dots".
        source: path of the numbers in the record.
    """

    x: Sequence[int | float]
    y: Sequence[int | float]
    order: int = 0
    kind: str = "line"
    source: dict[str, Any] = field(default_factory=dict)

    def points(self) -> list[tuple[float, float]]:
        pairs = zip(self.x, self.y, strict=True)
        return [(float(x), float(y)) for x, y in pairs if finite(x) and finite(y)]


def _strokes(group: Group, family: Family, layer: str) -> list[_Stroke]:
    if group.is_history:
        return [_over_steps(group, family, layer, order) for order in range(len(group.runs))]
    if family.headline not in _THUMBNAILS:
        return _over_layers(group, family, layer)
    return [_thumbnail(group, family, layer, order) for order in range(len(group.runs))]


def _over_steps(group: Group, family: Family, layer: str, order: int) -> _Stroke:
    run = group.runs[order]
    found = [m for m in run.moments if finite(m.value(family.key, family.headline, layer))]
    known = [found[i] for i in spaced(len(found), _MOST_POINTS)]
    # Equal distances: training steps are often spread over decades. One step has one place in all
    # runs and families, however many steps these have.
    steps = group.steps
    places = [steps.index(m.step) / max(1, len(steps) - 1) for m in known]
    indices = [m.index(family.key, family.headline, layer) for m in known]
    source = _source(run, [m.position for m in known], ["rows", indices, "value"])
    values = [m.value(family.key, family.headline, layer) for m in known]
    return _Stroke(places, values, order, "line", {"y": source})


def _over_layers(group: Group, family: Family, layer: str) -> list[_Stroke]:
    """The profile with this layer marked, for families without a curve."""
    strokes = []
    names = group.measured(family.key, family.headline)
    for order, run in enumerate(group.runs):
        found = [(i, run.last.index(family.key, family.headline, n)) for i, n in enumerate(names)]
        values = [run.last.value(family.key, family.headline, name) for name in names]
        drawn = [(i, at, values[i]) for i, at in found if at is not None and finite(values[i])]
        for kind, kept in (("dots", [d for d in drawn if names[d[0]] == layer]), ("line", drawn)):
            path = ["rows", [at for _, at, _ in kept], "value"]
            source = {"y": _source(run, run.last.position, path)}
            x, y = [i for i, _, _ in kept], [v for _, _, v in kept]
            strokes.append(_Stroke(x, y, order, kind, source))
    return strokes


def _thumbnail(group: Group, family: Family, layer: str, order: int) -> _Stroke:
    run, alone = group.runs[order], len(group.runs) == 1
    moment, name = run.with_curves_at(None), _THUMBNAILS[family.headline]
    x, y = (moment.array(family.key, name, layer, role) for role in ("x", "y"))
    if x is None or y is None:
        return _Stroke([], [], order)
    kept = spaced(len(y[1]), _MOST_POINTS)
    positions = np.asarray(x[1], dtype=float)[kept]
    if family.key == "covariance":
        positions = np.log(np.where(positions > 0, positions, np.nan))
    if family.key == "kernel":
        positions = np.log1p(positions)
    source = {"y": _source(run, moment.position, ["arrays", y[0], kept])}
    kind = "bars" if family.key == "gradient" and alone else "line"
    heights = np.asarray(y[1], dtype=float)[kept].tolist()
    return _Stroke(positions.tolist(), heights, order, kind, source)


def _band(group: Group, family: Family, layer: str) -> tuple[float, float] | None:
    """Two standard deviations about chance, in the first run that knows it; none on curves."""
    if not group.is_history and family.headline in _THUMBNAILS:
        return None
    levels = (run.chance(None, family.key, family.headline, layer) for run in group.runs)
    level = next((level for level in levels if level is not None), None)
    if level is None:
        return None
    return level.mean - CHANCE * level.sd, level.mean + CHANCE * level.sd


def _limits(strokes: Sequence[_Stroke], also: Sequence[float] = ()) -> tuple[float, ...]:
    """Left, right, bottom and top that hold every stroke, zero included."""
    points = [point for stroke in strokes for point in stroke.points()]
    half = 0.5 if any(stroke.kind == "bars" for stroke in strokes) else 0.0
    xs = [x + side for x, _ in points for side in (-half, half)] or [0.0, 1.0]
    ys = [0.0, *(y for _, y in points), *(float(v) for v in also if finite(v))]
    left, right, bottom, top = min(xs), max(xs), min(ys), max(ys)
    return (
        left,
        right if right > left else left + 1.0,
        bottom,
        top if top > bottom else bottom + 1.0,
    )


def _picture(
    strokes: Sequence[_Stroke], limits: Sequence[float], label: str,
    band: tuple[float, float] | None, *, cursor: bool,
) -> str:  # fmt: skip
    """An SVG element; every stroke carries its source and the element its limits."""
    left, right, bottom, top = limits
    across = (_WIDTH - 2 * _EDGE) / (right - left)
    down = (_HEIGHT - 2 * _EDGE) / (top - bottom)

    def at(x: float, y: float) -> tuple[float, float]:
        return (_EDGE + (x - left) * across, _HEIGHT - _EDGE - (y - bottom) * down)

    parts = []
    if band is not None and (low := max(bottom, band[0])) < (high := min(top, band[1])):
        upper, lower = at(0.0, high)[1], at(0.0, low)[1]
        place = f'x="{_EDGE:g}" y="{upper:.2f}" width="{_WIDTH - 2 * _EDGE:g}"'
        parts.append(f'<rect class="band" {place} height="{max(1.0, lower - upper):.2f}"/>')
    zero = at(left, max(bottom, 0.0))[1]
    parts.append(f'<path class="baseline" d="M{_EDGE:g},{zero:.2f}H{_WIDTH - _EDGE:g}"/>')
    parts += [_drawn(stroke, at, across) for stroke in reversed(strokes)]
    if cursor:
        place = f'transform="translate({_WIDTH - 2 * _EDGE:g},0)"'
        parts.append(f'<path class="cursor" {place} d="M{_EDGE:g},0V{_HEIGHT:g}"/>')
    frame = html.escape(json.dumps([float(f"{v:.6g}") for v in limits]))
    return (
        f'<svg class="spark" viewBox="0 0 {_WIDTH:g} {_HEIGHT:g}" role="img" '
        f'aria-label="{html.escape(label)}" data-limits="{frame}">{"".join(parts)}</svg>'
    )


def _drawn(stroke: _Stroke, at: Any, across: float) -> str:
    points = stroke.points()
    if not points:
        return ""
    source = html.escape(json.dumps(stroke.source, separators=(",", ":")))
    name = f'class="run{stroke.order % 6} {stroke.kind}" data-source="{source}"'
    placed = [at(x, y) for x, y in points]
    if stroke.kind == "line" and len(placed) > 1:
        path = " ".join(f"{x:.2f},{y:.2f}" for x, y in placed)
        return f'<polyline {name} points="{path}"/>'
    if stroke.kind == "bars":
        floor = at(0.0, 0.0)[1]
        half = 0.38 * across
        bars = "".join(
            f"M{x - half:.2f},{floor:.2f}V{y:.2f}H{x + half:.2f}V{floor:.2f}Z" for x, y in placed
        )
        return f'<path {name} d="{bars}"/>'
    return "".join(f'<circle {name} cx="{x:.2f}" cy="{y:.2f}" r="2.4"/>' for x, y in placed)
