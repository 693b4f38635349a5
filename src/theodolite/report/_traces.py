"""Plotly traces as plain dictionaries; each carries the path of its numbers in the record.

``trace["meta"]["source"]`` maps an axis (``x``, ``y``, ``error_y``, ``z``) to where its numbers come
from: ``{"run": r, "step": s, "path": [...]}`` with the position of the run among those given, of
the step in the run, and the path in that record. A list in a path stands for each of its members
in turn (``["rows", [3, 9], "value"]``); a list of steps goes along with it, and a list of paths
gives one row of a heat map each. ``scale`` multiplies what the path names.

Colors are names of the palette; they become colors when a figure is drawn.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from theodolite.report._escape import plotly_text, short
from theodolite.report._numbers import carried, finite, shown
from theodolite.report._reading import Moment, RunView

__all__ = [
    "Trace",
    "curve_trace",
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
_NULL_WIDTH = 2  # standard deviations: about 95 % of what chance gives


def layer_ticks(layers: Sequence[str], most: int = 14) -> dict[str, Any]:
    """Ticks of an axis of layers; with very many only some have their name."""
    every = -(-len(layers) // most) if layers else 1
    positions = list(range(0, len(layers), every))
    longest = 16 if len(positions) <= 6 else 11
    return {
        "tickvals": positions,
        "ticktext": [plotly_text(short(layers[i], longest)) for i in positions],
    }


def dash_of(order: int) -> str:
    """Line of the n-th run of a group."""
    return _DASHES[order % len(_DASHES)]


def profile_trace(
    run: RunView, moment: Moment, family: str, measure: str, *, layers: Sequence[str],
    order: int = 0, color: str | None = None, label: str = "", marks_only: bool = False,
) -> Trace:  # fmt: skip
    """One measure over layers."""
    found = [(x, moment.index(family, measure, layer)) for x, layer in enumerate(layers)]
    at = [(x, i) for x, i in found if i is not None]
    rows = [moment.record.contents["rows"][i] for _, i in at]
    trace: Trace = {
        "type": "scatter",
        "mode": "markers" if marks_only else "lines+markers",
        "x": [x for x, _ in at],
        "y": carried(row["value"] for row in rows),
        "customdata": [plotly_text(layers[x]) for x, _ in at],
        "name": plotly_text(", ".join(part for part in (label, run.name) if part)),
        "hovertemplate": "%{customdata}: %{y:.3g}<extra>%{fullData.name}</extra>",
        "line": {"color": color or family, "dash": dash_of(order), "width": 2},
        "marker": {"color": color or family, "size": 7, "symbol": _SYMBOLS[order % 6]},
        "meta": {"source": {"y": _rows_at(moment, [i for _, i in at], "value")}},
    }
    if marks_only:
        trace["marker"] |= {"symbol": "line-ew-open", "size": 14, "line": {"width": 2}}
    if any(finite(row.get("error")) for row in rows):
        trace["error_y"] = {
            "type": "data",
            "array": carried(row.get("error") for row in rows),
            "color": color or family,
            "thickness": 1,
            "width": 3,
        }
        trace["meta"]["source"]["error_y"] = _rows_at(moment, [i for _, i in at], "error")
    return trace


def null_trace(
    run: RunView, moment: Moment, family: str, measure: str, *, layers: Sequence[str],
    offset: float = 0.0,
) -> Trace | None:  # fmt: skip
    """What chance gives this run: mean and two standard deviations; None if it was not drawn."""
    found = [(x, moment.index(family, measure, layer)) for x, layer in enumerate(layers)]
    rows = moment.record.contents["rows"]
    at = [(x, i) for x, i in found if i is not None and finite(rows[i].get("null_mean"))]
    if not at:
        return None
    indices = [i for _, i in at]
    deviation = [rows[i].get("null_sd") for i in indices]
    source = {"y": _rows_at(moment, indices, "null_mean")}
    source["error_y"] = _rows_at(moment, indices, "null_sd") | {"scale": _NULL_WIDTH}
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [x + offset for x, _ in at],
        "customdata": [plotly_text(layers[x]) for x, _ in at],
        "y": carried(rows[i]["null_mean"] for i in indices),
        "error_y": {
            "type": "data",
            "array": carried(_NULL_WIDTH * sd if finite(sd) else None for sd in deviation),
            "color": "null",
            "thickness": 9,
            "width": 0,
        },
        "name": plotly_text(f"chance, {run.name}"),
        "hovertemplate": "%{y:.3g}<extra>%{fullData.name}</extra>",
        "marker": {"color": "muted", "size": 9, "symbol": "line-ew-open", "line": {"width": 1}},
        "meta": {"source": source, "null": True},
    }


def curve_trace(
    moment: Moment, family: str, curve: str, layer: str | None, *, roles: tuple[str, str] = ("x", "y"),
    keep: Sequence[int] | None = None, name: str = "", style: Mapping[str, Any] | None = None,
) -> Trace | None:  # fmt: skip
    """One curve of one layer; None where the record does not have it."""
    found = [moment.array(family, curve, layer, role) for role in roles]
    if found[0] is None or found[1] is None:
        return None
    (x_name, x), (y_name, y) = found[0], found[1]
    indices = list(range(len(x))) if keep is None else [i for i in keep if i < len(x)]
    whole = len(indices) == len(x)
    return {
        "type": "scatter",
        "mode": "lines",
        "x": carried(x[indices], _CURVE_DIGITS),
        "y": carried(y[indices], _CURVE_DIGITS),
        "name": plotly_text(name),
        "hovertemplate": "%{x:.3g}, %{y:.3g}<extra>%{fullData.name}</extra>",
        # Without it Plotly leaves out vertices, and what is drawn is no longer the record.
        "line": {"simplify": False, "width": 2, "color": family},
        "meta": {
            "source": {
                "x": _array_at(moment, x_name, None if whole else indices),
                "y": _array_at(moment, y_name, None if whole else indices),
            }
        },
    } | dict(style or {})


def heatmap_trace(
    values: Sequence[Sequence[float | None]], sources: Sequence[Mapping[str, Any]], family: str,
    *, show_text: bool, limits: tuple[float, float], name: str = "",
    names: tuple[Sequence[str], Sequence[str]] = ((), ()),
) -> Trace:  # fmt: skip
    """A map of numbers; ``sources`` has one path for each row, ``names`` those of rows and columns."""
    low, high = limits
    trace: Trace = {
        "type": "heatmap",
        "z": [carried(row) for row in values],
        "zmin": low,
        "zmax": high,
        "colorscale": scale_for(family, low, high),
        "showscale": not show_text,
        "colorbar": {"thickness": 8, "outlinewidth": 0, "len": 1.0, "nticks": 4},
        "xgap": 1 if show_text else 0,
        "ygap": 1 if show_text else 0,
        "hoverongaps": False,
        "name": plotly_text(name),
        "hovertemplate": "%{z:.3g}<extra>%{fullData.name}</extra>",
        "meta": {"source": {"z": list(sources)}, "rows": list(names[0]), "columns": list(names[1])},
    }
    if show_text:
        # Digits that a cell has room for; the map's own hover and its data have more.
        trace["text"] = [["" if v is None else _cell(v) for v in row] for row in trace["z"]]
        trace["texttemplate"] = "%{text}"
        trace["textfont"] = {"color": "ink", "size": 11}
    return trace


def scale_for(family: str, low: float, high: float) -> list[list[Any]]:
    """Blank at zero, the family's pale color at the top, grey below zero."""
    if low >= 0:
        return [[0, "surface"], [1, f"{family}-pale"]]
    zero = min(1.0, -low / (high - low)) if high > low else 0.5
    stops: list[list[Any]] = [[0, "null"], [zero, "surface"]]
    return stops if zero >= 1 else [*stops, [1, f"{family}-pale"]]


def _cell(value: float) -> str:
    magnitude = abs(value)
    if magnitude >= 9.995 or (value and magnitude < 0.0005):
        return shown(value) if magnitude >= 9.995 else "0.00"
    return f"{value:.2f}" if magnitude >= 0.0995 else f"{value:.3f}"


def _rows_at(moment: Moment, indices: list[int], key: str) -> dict[str, Any]:
    return {"run": moment.run, "step": moment.position, "path": ["rows", indices, key]}


def _array_at(moment: Moment, name: str, indices: list[int] | None) -> dict[str, Any]:
    path: list[Any] = ["arrays", name] + ([] if indices is None else [indices])
    return {"run": moment.run, "step": moment.position, "path": path}
