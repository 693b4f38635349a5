"""Plotly traces as plain dictionaries; each carries the path of its numbers in the record.

``trace["meta"]["source"]`` maps an axis (``x``, ``y``, ``error_y``, ``z``) to where its numbers
come from: ``{"run": r, "step": s, "path": [...]}`` with the position of the run among those given,
of the step in the run, and the path in that record. A list in a path stands for each of its
members in turn (``["rows", [3, 9], "value"]``); a list of steps goes along with it, and a list of
paths gives one row of a heat map each. ``scale`` multiplies what the path names, ``offset`` is
added to it.

Colors are names of the palette; they become colors when a figure is drawn.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from theodolite.report._numbers import carried, finite, shown
from theodolite.report._reading import Moment, RunView
from theodolite.report.pages import plotly_text, short

__all__ = [
    "Line",
    "Strand",
    "Table",
    "Trace",
    "curve_trace",
    "dash_of",
    "heatmap_trace",
    "layer_ticks",
    "null_trace",
    "profile_trace",
    "scale_for",
]

Trace = dict[str, Any]

_DASHES = ("solid", "dot", "dashdot", "longdash", "dash", "longdashdot")
_SYMBOLS = ("circle", "circle-open", "square", "diamond-open", "triangle-up", "x-thin-open")
_CURVE_DIGITS = 5
_THIN = {"thickness": 1, "width": 3}
_THICK = {"thickness": 9, "width": 0}
_COLORBAR = {
    "thickness": 8,
    "outlinewidth": 0,
    "len": 1.0,
    "nticks": 4,
    "tickfont": {"size": 10, "color": "muted"},
}
_NULL_WIDTH = 2  # standard deviations: about 95 % of what chance gives


def layer_ticks(layers: Sequence[str], most: int = 14) -> dict[str, Any]:
    """Ticks of an axis of layers; with very many only some have their name."""
    every = -(-len(layers) // most) if layers else 1
    positions = list(range(0, len(layers), every))
    return {
        "tickvals": positions,
        "ticktext": [plotly_text(short(layers[i], 16)) for i in positions],
    }


def dash_of(order: int) -> str:
    """Line of the n-th run of a group."""
    return _DASHES[order % len(_DASHES)]


@dataclass(frozen=True)
class Line:
    """One measure within a profile.

    Args:
        measure: its name in the record.
        label: its words where several share a panel.
        color: a name of the palette; None for the family's.
        marks_only: dashes at each layer instead of a line.
        with_null: whether what chance gives is drawn with it.
    """

    measure: str
    label: str = ""
    color: str | None = None
    marks_only: bool = False
    with_null: bool = True


def profile_trace(
    run: RunView, moment: Moment, family: str, line: Line, layers: Sequence[str], order: int = 0
) -> Trace:
    """One measure over layers."""
    at = _found(moment, family, line.measure, layers)
    indices = [i for _, i in at]
    rows = [moment.record.contents["rows"][i] for i in indices]
    color = line.color or family
    trace: Trace = {
        "type": "scatter",
        "mode": "markers" if line.marks_only else "lines+markers",
        "x": [x for x, _ in at],
        "y": carried(row["value"] for row in rows),
        "customdata": [plotly_text(layers[x]) for x, _ in at],
        "name": plotly_text(", ".join(part for part in (line.label, run.name) if part)),
        "hovertemplate": "%{customdata}: %{y:.3g}<extra>%{fullData.name}</extra>",
        "line": {"color": color, "dash": dash_of(order), "width": 2, "simplify": False},
        "marker": {"color": color, "size": 7, "symbol": _SYMBOLS[order % 6]},
        "meta": {"source": {"y": _rows_at(moment, indices, "value")}},
    }
    if line.marks_only:
        trace["marker"] |= {"symbol": "line-ew-open", "size": 14, "line": {"width": 2}}
    if any(finite(row.get("error")) for row in rows):
        errors = carried(row.get("error") for row in rows)
        trace["error_y"] = {"type": "data", "array": errors, "color": color} | _THIN
        trace["meta"]["source"]["error_y"] = _rows_at(moment, indices, "error")
    return trace


def null_trace(
    run: RunView, moment: Moment, family: str, measure: str, layers: Sequence[str], offset: float
) -> Trace | None:
    """What chance gives this run: mean and two standard deviations; None if it was not drawn."""
    rows = moment.record.contents["rows"]
    found = _found(moment, family, measure, layers)
    at = [(x, i) for x, i in found if finite(rows[i].get("null_mean"))]
    if not at:
        return None
    indices = [i for _, i in at]
    deviations = [rows[i].get("null_sd") for i in indices]
    wide = carried(_NULL_WIDTH * sd if finite(sd) else None for sd in deviations)
    source = {"y": _rows_at(moment, indices, "null_mean")}
    source["error_y"] = _rows_at(moment, indices, "null_sd") | {"scale": _NULL_WIDTH}
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [x + offset for x, _ in at],
        "y": carried(rows[i]["null_mean"] for i in indices),
        "customdata": [plotly_text(layers[x]) for x, _ in at],
        "error_y": {"type": "data", "array": wide, "color": "null"} | _THICK,
        "name": plotly_text(f"chance, {run.name}"),
        "hovertemplate": "%{customdata}: %{y:.3g}<extra>%{fullData.name}</extra>",
        "marker": {"color": "muted", "size": 9, "symbol": "line-ew-open", "line": {"width": 1}},
        "meta": {"source": source, "null": True},
    }


@dataclass(frozen=True)
class Strand:
    """How a curve becomes a line.

    Args:
        name: what a reader sees when pointing at it.
        style: keys of the trace that differ from a plain line.
        keep: positions of the points to draw; None for all.
        y_role: the array that gives the heights.
    """

    name: str = ""
    style: Mapping[str, Any] = field(default_factory=dict)
    keep: Sequence[int] | None = None
    y_role: str = "y"


def curve_trace(
    moment: Moment, family: str, curve: str, layer: str | None, strand: Strand
) -> Trace | None:
    """One curve of one layer; None where the record does not have it."""
    horizontal = moment.array(family, curve, layer, "x")
    vertical = moment.array(family, curve, layer, strand.y_role)
    if horizontal is None or vertical is None:
        return None
    (x_name, x), (y_name, y) = horizontal, vertical
    kept = None if strand.keep is None else [i for i in strand.keep if i < len(x)]
    points = list(range(len(x))) if kept is None else kept
    source = {"x": _array_at(moment, x_name, kept), "y": _array_at(moment, y_name, kept)}
    return {
        "type": "scatter",
        "mode": "lines",
        "x": carried(x[points], _CURVE_DIGITS),
        "y": carried(y[points], _CURVE_DIGITS),
        "name": plotly_text(strand.name),
        "hovertemplate": "%{x:.3g}, %{y:.3g}<extra>%{fullData.name}</extra>",
        # Without it Plotly leaves out vertices, and what is drawn is no longer the record.
        "line": {"simplify": False, "width": 2, "color": family},
        "meta": {"source": source},
    } | dict(strand.style)


@dataclass(frozen=True)
class Table:
    """Numbers of a map: one path for each row, and the names of rows and columns."""

    values: Sequence[Sequence[float | None]]
    sources: Sequence[Mapping[str, Any]]
    rows: Sequence[str] = ()
    columns: Sequence[str] = ()


def heatmap_trace(
    table: Table, family: str, *, show_text: bool, limits: tuple[float, float], name: str = ""
) -> Trace:
    """A map of numbers, with each in its cell where there is room; limits are (0 or -m, m)."""
    low, high = limits
    meta = {"source": {"z": list(table.sources)}}
    trace: Trace = {
        "type": "heatmap",
        "z": [carried(row) for row in table.values],
        "zmin": low,
        "zmax": high,
        "colorscale": scale_for(family, low),
        "showscale": not show_text,
        "colorbar": _COLORBAR,
        "xgap": 1 if show_text else 0,
        "ygap": 1 if show_text else 0,
        "hoverongaps": False,
        "name": plotly_text(name),
        "hovertemplate": "%{z:.3g}<extra>%{fullData.name}</extra>",
        "meta": meta | {"rows": list(table.rows), "columns": list(table.columns)},
    }
    if show_text:
        # Digits that a cell has room for; pointing at it shows more.
        trace["text"] = [["" if v is None else _cell(v) for v in row] for row in trace["z"]]
        trace["texttemplate"] = "%{text}"
        trace["textfont"] = {"color": "ink", "size": 11}
    return trace


def scale_for(family: str, low: float) -> list[list[Any]]:
    """Blank at zero, the family's pale color at the top; grey below zero, where there is any."""
    if low >= 0:
        return [[0, "surface"], [1, f"{family}-pale"]]
    return [[0, "null"], [0.5, "surface"], [1, f"{family}-pale"]]


def _cell(value: float) -> str:
    magnitude = abs(value)
    if magnitude >= 9.995 or (value and magnitude < 0.0005):
        return shown(value) if magnitude >= 9.995 else "0.00"
    return f"{value:.2f}" if magnitude >= 0.0995 else f"{value:.3f}"


def _found(
    moment: Moment, family: str, measure: str, layers: Sequence[str]
) -> list[tuple[int, int]]:
    """Position among the layers and in the rows, for the layers that have the measure."""
    found = [(x, moment.index(family, measure, layer)) for x, layer in enumerate(layers)]
    return [(x, i) for x, i in found if i is not None]


def _rows_at(moment: Moment, indices: list[int], key: str) -> dict[str, Any]:
    return {"run": moment.run, "step": moment.position, "path": ["rows", indices, key]}


def _array_at(moment: Moment, name: str, indices: list[int] | None) -> dict[str, Any]:
    path: list[Any] = ["arrays", name] + ([] if indices is None else [indices])
    return {"run": moment.run, "step": moment.position, "path": path}
