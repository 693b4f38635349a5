"""The overview: a row for each layer, a small picture and the headline number for each family."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from theodolite.records import FAMILIES, Family
from theodolite.report._numbers import finite, shown, shown_error, spaced
from theodolite.report._reading import Group, RunView
from theodolite.report._sentences import overview_sentence
from theodolite.report._spark import Stroke, limits_of, spark
from theodolite.report.pages import plain

__all__ = ["Cell", "Column", "Overview", "overview_of", "whole_numbers"]

_MOST_POINTS = 48
# The curve that a single survey shows for a family; the tangent family has none.
_THUMBNAILS = {
    "representation": "alignment_curve",
    "covariance": "transfer",
    "kernel": "cumulative_power",
    "gradient": "feature_class_contrast",
}
# Families whose curves differ by decades between layers have a scale for each.
_OWN_SCALE = {"covariance"}


@dataclass(frozen=True)
class Cell:
    """One layer and family: all of it is text, except for the picture."""

    picture: str = ""
    number: str = ""
    source: str = ""
    error: str = ""
    chance: str = ""
    others: tuple[tuple[str, str, str], ...] = ()  # run, number, source
    quiet: str = ""


@dataclass(frozen=True)
class Column:
    """One family down the layers."""

    family: Family
    cells: tuple[Cell, ...]
    sentence: str


@dataclass(frozen=True)
class Overview:
    """Layers and columns; ``note`` says what the small pictures show."""

    layers: tuple[str, ...]
    columns: tuple[Column, ...]
    note: str


def overview_of(group: Group) -> Overview:
    """The overview of one group, at its latest step."""
    columns = [_column(group, family) for family in FAMILIES.values()]
    shown_rows = [
        i for i in range(len(group.layers)) if any(not column.cells[i].quiet for column in columns)
    ]
    kept = tuple(
        Column(c.family, tuple(c.cells[i] for i in shown_rows), c.sentence) for c in columns
    )
    return Overview(tuple(plain(group.layers[i]) for i in shown_rows), kept, _note(group, kept))


def _note(group: Group, columns: Sequence[Column]) -> str:
    if group.is_history:
        return "training from left to right, one scale a column"
    own = any(column.family.key in _OWN_SCALE for column in columns)
    return "curve of each layer, one scale a column" + (" (covariance: its own)" if own else "")


def _column(group: Group, family: Family) -> Column:
    strokes = [_strokes(group, family, layer) for layer in group.layers]
    bands = [_band(group.runs[0], family, layer) for layer in group.layers]
    # On curves the null of the number would be out of place.
    flat = group.is_history or family.key not in _THUMBNAILS
    used = [band for band in bands if band is not None and flat]
    common = limits_of([s for row in strokes for s in row], [v for band in used for v in band])
    if group.is_history:
        common = (0.0, 1.0, *common[2:])
    apart = family.key in _OWN_SCALE and not group.is_history
    limits = [limits_of(row) if apart else common for row in strokes]
    cells = tuple(
        _cell(group, family, layer, strokes[i], limits[i], bands[i] if flat else None)
        for i, layer in enumerate(group.layers)
    )
    return Column(family, cells, overview_sentence(group, family.key))


def _cell(
    group: Group, family: Family, layer: str, strokes: Sequence[Stroke], limits: Sequence[float],
    band: tuple[float, float] | None,
) -> Cell:  # fmt: skip
    run = group.runs[0]
    numbers = [_number(view, family.key, family.headline, layer) for view in group.runs]
    if all(number is None for number in numbers):
        return Cell(quiet="not measured here")
    first = numbers[0] or ("–", "")
    moment = run.holding(None, family.key, family.headline)
    row = moment.row(family.key, family.headline, layer) or {}
    picture = spark(strokes, limits, band=band, label=f"{family.title} of {plain(layer)}") if any(
        stroke.points() for stroke in strokes
    ) else ""  # fmt: skip
    word = "random" if family.key == "covariance" else "chance"
    chance = f"{word} {shown(row['null_mean'])}" if finite(row.get("null_mean")) else ""
    if not finite(row.get("value")) and row.get("reason"):
        chance = plain(str(row["reason"]))
    others = tuple(
        (plain(view.name), *number)
        for view, number in zip(group.runs[1:], numbers[1:], strict=True)
        if number is not None
    )
    return Cell(picture, *first, error=shown_error(row), chance=chance, others=others)


def whole_numbers(group: Group, family: str) -> list[tuple[str, list[tuple[str, str, str]]]]:
    """Numbers of the whole model at the latest step: run, then measure, number and source."""
    found = []
    for run in group.runs:
        numbers = [
            (measure.replace("_", " "), *number)
            for measure in group.whole(family)
            if (number := _number(run, family, measure, None)) is not None
        ]
        if numbers:
            found.append((plain(run.name), numbers))
    return found


def _number(run: RunView, family: str, measure: str, layer: str | None) -> tuple[str, str] | None:
    moment = run.holding(None, family, measure)
    index = moment.index(family, measure, layer)
    if index is None:
        return None
    row = moment.record.contents["rows"][index]
    source = {"run": run.index, "step": moment.position, "path": ["rows", index, "value"]}
    return shown(row["value"]), json.dumps(source)


def _strokes(group: Group, family: Family, layer: str) -> list[Stroke]:
    if group.is_history:
        return [_over_steps(group, family, layer, order) for order in range(len(group.runs))]
    if family.key not in _THUMBNAILS:
        return _over_layers(group, family, layer)
    return [_thumbnail(run, family, layer, order) for order, run in enumerate(group.runs)]


def _over_steps(group: Group, family: Family, layer: str, order: int) -> Stroke:
    run = group.runs[order]
    found = [m for m in run.moments if finite(m.value(family.key, family.headline, layer))]
    known = [found[i] for i in spaced(len(found), _MOST_POINTS)]
    # Equal distances: training steps are often spread over decades. One step has one place in all
    # runs and families, however many steps these have.
    steps = group.steps
    places = [steps.index(m.step) / max(1, len(steps) - 1) for m in known]
    indices = [m.index(family.key, family.headline, layer) for m in known]
    source = {
        "run": run.index,
        "step": [m.position for m in known],
        "path": ["rows", indices, "value"],
    }
    values = [m.value(family.key, family.headline, layer) for m in known]
    return Stroke(places, values, order, "line", {"y": source})


def _over_layers(group: Group, family: Family, layer: str) -> list[Stroke]:
    """The profile with this layer marked, for families without a curve."""
    strokes = []
    for order, run in enumerate(group.runs):
        names = group.measured(family.key, family.headline)
        found = [
            (i, run.last.index(family.key, family.headline, name)) for i, name in enumerate(names)
        ]
        known = [(i, at) for i, at in found if at is not None]
        values = [run.last.value(family.key, family.headline, names[i]) for i, _ in known]
        drawn = [(i, at, v) for (i, at), v in zip(known, values, strict=True) if finite(v)]
        source = {"run": run.index, "step": run.last.position}
        line = {"y": source | {"path": ["rows", [at for _, at, _ in drawn], "value"]}}
        dots = [(i, at, v) for i, at, v in drawn if names[i] == layer]
        dot = {"y": source | {"path": ["rows", [at for _, at, _ in dots], "value"]}}
        strokes.append(Stroke([i for i, _, _ in dots], [v for _, _, v in dots], order, "dots", dot))
        strokes.append(
            Stroke([i for i, _, _ in drawn], [v for _, _, v in drawn], order, "line", line)
        )
    return strokes


def _thumbnail(run: RunView, family: Family, layer: str, order: int) -> Stroke:
    moment, name = run.with_curves_at(None), _THUMBNAILS[family.key]
    x, y = (moment.array(family.key, name, layer, role) for role in ("x", "y"))
    if x is None or y is None:
        return Stroke([], [], order)
    kept = spaced(len(y[1]), _MOST_POINTS)
    positions = np.asarray(x[1], dtype=float)[kept]
    if family.key == "covariance":
        positions = np.log(np.where(positions > 0, positions, np.nan))
    if family.key == "kernel":
        positions = np.log1p(positions)
    source = {"run": run.index, "step": moment.position, "path": ["arrays", y[0], kept]}
    kind = "bars" if family.key == "gradient" else "line"
    return Stroke(
        positions.tolist(), np.asarray(y[1], dtype=float)[kept].tolist(), order, kind, {"y": source}
    )


def _band(run: RunView, family: Family, layer: str) -> tuple[float, float] | None:
    row = run.holding(None, family.key, family.headline).row(family.key, family.headline, layer)
    if row is None or not finite(row.get("null_mean")):
        return None
    half = 2.0 * row["null_sd"] if finite(row.get("null_sd")) else 0.0
    return float(row["null_mean"] - half), float(row["null_mean"] + half)
