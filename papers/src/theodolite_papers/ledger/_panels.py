"""Pictures of a study: panels as plain data, and as Plotly's dictionaries with named colors."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from theodolite.report.pages import plotly_text

__all__ = [
    "Bars",
    "Heat",
    "Line",
    "Mark",
    "Panel",
    "Points",
    "Tiles",
    "mean_and_error",
    "plotly_panel",
]


@dataclass(frozen=True)
class Line:
    """A curve, with a band of its standard error where ``error`` is given.

    Args:
        color: number of the colour; None takes the next one. Curves that belong together share it.
    """

    name: str
    x: Sequence[float | int] | np.ndarray
    y: Sequence[float | int] | np.ndarray
    error: Sequence[float | int] | np.ndarray | None = None
    dashed: bool = False
    color: int | None = None


@dataclass(frozen=True)
class Points:
    """A scatter of points, each with a text to show on hovering."""

    name: str
    x: Sequence[float | int] | np.ndarray
    y: Sequence[float | int] | np.ndarray
    text: Sequence[str] = ()
    color: int | None = None


@dataclass(frozen=True)
class Bars:
    """Bars by label, with error bars where ``error`` is given."""

    name: str
    labels: Sequence[str]
    y: Sequence[float | int] | np.ndarray
    error: Sequence[float | int] | np.ndarray | None = None
    color: int | None = None


@dataclass(frozen=True)
class Heat:
    """A matrix by rows (downwards) and columns."""

    values: np.ndarray
    rows: Sequence[str] = ()
    columns: Sequence[str] = ()
    diverging: bool = False


@dataclass(frozen=True)
class Tiles:
    """Small images in rows: (rows, count, height, width) gray or (..., 3) color.

    Each tile is scaled by its largest magnitude about zero, so that zero is the same gray
    everywhere.
    """

    images: np.ndarray
    rows: Sequence[str] = ()


Mark = Line | Points | Bars | Heat | Tiles


@dataclass(frozen=True)
class Panel:
    """One set of axes.

    Args:
        title: what stands above it, with the figure's number: ``"Figure 7, MNIST"``.
        marks: what is drawn.
        x: name of the horizontal axis.
        y: name of the vertical axis.
        log: which axes are logarithmic: "", "x", "y" or "xy".
        printed: whether it shows what the paper prints, not what was measured here.
    """

    title: str
    marks: Sequence[Mark]
    x: str = ""
    y: str = ""
    log: str = ""
    printed: bool = False


def mean_and_error(stacked: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard error over the first axis; the error of one run is zero."""
    runs = len(stacked)
    spread = stacked.std(axis=0, ddof=1) if runs > 1 else np.zeros_like(stacked[0])
    return stacked.mean(axis=0), spread / np.sqrt(runs)


_DIGITS = 4
_STRONG = ("representation", "gradient", "kernel", "covariance", "tangent")
_COLORS = (*_STRONG, "muted", *(f"{name}-pale" for name in _STRONG))
_HEIGHT = 270  # of a panel, with room for one row of names
_ROW = 19  # of a legend's row
_ACROSS, _UPWARD = 50, 28  # letters of an axis' title in one line
_TICKS = 16  # labels along an axis, at most
_CHROMA = 5  # axes of colour tiles


def plotly_panel(panel: Panel) -> dict[str, Any]:
    """``{"title", "data", "layout"}`` with plain lists."""
    data = [trace for k, mark in enumerate(panel.marks) for trace in _traces(mark, k)]
    layout: dict[str, Any] = {
        "xaxis": {"title": {"text": _folded(panel.x, _ACROSS)}},
        "yaxis": {"title": {"text": _folded(panel.y, _UPWARD)}},
        "height": _HEIGHT + _ROW * max(0, _legend_rows(panel) - 1),
    }
    for letter in panel.log:
        layout[f"{letter}axis"]["type"] = "log"
    for axis in _labeled_axes(panel):
        # Labels may look like numbers; if there are many, only some are shown.
        layout[axis] |= {"type": "category", "nticks": _TICKS}
    if any(isinstance(mark, (Heat, Tiles)) for mark in panel.marks):
        layout["yaxis"]["autorange"] = "reversed"
    if any(isinstance(mark, Tiles) for mark in panel.marks):
        layout["yaxis"] |= {"scaleanchor": "x", "constrain": "domain"}
        layout["xaxis"]["visible"] = False
        _name_rows(panel, layout)
    layout["showlegend"] = sum(not isinstance(m, (Heat, Tiles)) for m in panel.marks) > 1
    return {"title": panel.title, "data": data, "layout": layout}


def _folded(title: str, letters: int) -> str:
    """A long title, broken into lines that fit the panel."""
    return "<br>".join(plotly_text(line) for line in textwrap.wrap(title, letters))


def _legend_rows(panel: Panel) -> int:
    """Approximate number of rows of a legend; short names share a row."""
    names = [mark.name for mark in panel.marks if not isinstance(mark, (Heat, Tiles))]
    if len(names) < 2:
        return 0
    columns = max(1, 310 // (45 + 6 * max(len(name) for name in names)))
    return -(-len(names) // columns)


def _labeled_axes(panel: Panel) -> set[str]:
    """Axes of categories, each with its label."""
    axes: set[str] = set()
    for mark in panel.marks:
        if isinstance(mark, Bars):
            axes.add("xaxis")
        elif isinstance(mark, Heat):
            sides = {"xaxis": mark.columns, "yaxis": mark.rows}
            axes |= {axis for axis, labels in sides.items() if len(labels)}
    return axes


def _traces(mark: Mark, number: int) -> list[dict[str, Any]]:
    if isinstance(mark, Line):
        return _line(mark, number)
    if isinstance(mark, Points):
        return [_points(mark, number)]
    if isinstance(mark, Bars):
        return [_bars(mark, number)]
    return [_heat(mark) if isinstance(mark, Heat) else _tiles(mark)]


def _line(mark: Line, number: int) -> list[dict[str, Any]]:
    color = _color(mark.color, number)
    x, y = _plain(mark.x), np.asarray(mark.y, dtype=np.float64)
    few = 12  # points that are worth a marker
    line = {
        "type": "scatter",
        "mode": "lines+markers" if len(x) <= few else "lines",
        "name": plotly_text(mark.name),
        "x": x,
        "y": _plain(y),
        "line": {"color": color, "width": 2, "dash": "dash" if mark.dashed else "solid"},
        "marker": {"size": 5, "color": color},
    }
    if mark.error is None or not np.any(np.asarray(mark.error)):
        return [line]
    error = np.asarray(mark.error, dtype=np.float64)
    band = {
        "type": "scatter",
        "mode": "lines",
        "x": x + x[::-1],
        "y": _plain(np.concatenate([y + error, (y - error)[::-1]])),
        "fill": "toself",
        "opacity": 0.25,
        "fillcolor": color,
        "line": {"width": 0, "color": color},
        "hoverinfo": "skip",
        "showlegend": False,
    }
    return [band, line]


def _points(mark: Points, number: int) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": plotly_text(mark.name),
        "x": _plain(mark.x),
        "y": _plain(mark.y),
        "text": [plotly_text(text) for text in mark.text],
        "marker": {"size": 7, "opacity": 0.8, "color": _color(mark.color, number)},
    }


def _bars(mark: Bars, number: int) -> dict[str, Any]:
    bars: dict[str, Any] = {
        "type": "bar",
        "name": plotly_text(mark.name),
        "x": [plotly_text(label) for label in mark.labels],
        "y": _plain(mark.y),
        "marker": {"color": _color(mark.color, number)},
    }
    if mark.error is not None:
        bars["error_y"] = {"array": _plain(mark.error), "color": "ink", "thickness": 1, "width": 3}
    return bars


def _heat(mark: Heat) -> dict[str, Any]:
    heat: dict[str, Any] = {
        "type": "heatmap",
        "z": [_plain(row) for row in np.asarray(mark.values, dtype=np.float64)],
        "colorscale": "RdBu" if mark.diverging else "Viridis",
        "colorbar": {"thickness": 8, "outlinewidth": 0},
    }
    if mark.diverging:
        heat["zmid"] = 0
    for key, labels in (("y", mark.rows), ("x", mark.columns)):
        if len(labels):
            heat[key] = [plotly_text(str(label)) for label in labels]
    return heat


def _tiles(mark: Tiles) -> dict[str, Any]:
    images = np.asarray(mark.images, dtype=np.float64)
    if images.ndim < _CHROMA:
        images = np.repeat(images[..., None], 3, axis=-1)
    peak = np.abs(images).max(axis=(2, 3, 4), keepdims=True)
    levels = 128 + 127 * images / np.where(peak > 0, peak, 1)
    framed = np.pad(levels, ((0, 0), (0, 0), (0, 1), (0, 1), (0, 0)), constant_values=255)
    rows, count, height, width, _ = framed.shape
    mosaic = framed.transpose(0, 2, 1, 3, 4).reshape(rows * height, count * width, 3)
    return {"type": "image", "z": mosaic.round().astype(int).tolist(), "hoverinfo": "skip"}


def _name_rows(panel: Panel, layout: dict[str, Any]) -> None:
    tiles = next(mark for mark in panel.marks if isinstance(mark, Tiles))
    height = np.asarray(tiles.images).shape[2] + 1
    layout["yaxis"] |= {
        "tickvals": [(k + 0.5) * height - 1 for k in range(len(tiles.rows))],
        "ticktext": [plotly_text(row) for row in tiles.rows],
        "showgrid": False,
    }


def _color(chosen: int | None, number: int) -> str:
    return _COLORS[(number if chosen is None else chosen) % len(_COLORS)]


def _plain(values: Sequence[Any] | np.ndarray) -> list[Any]:
    """Numbers to a few digits, None where undefined; text as it is."""
    array = np.asarray(values)
    if array.dtype.kind not in "fiub":
        return [plotly_text(str(value)) for value in array]
    return [float(f"{v:.{_DIGITS}g}") if np.isfinite(v) else None for v in array.astype(float)]
