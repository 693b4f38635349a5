"""Figures of curves: one panel a layer, or one panel a run with the layers as lines."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from theodolite.report._figure import Draw, Figure, Panel, Words, axis
from theodolite.report._numbers import spaced
from theodolite.report._reading import Group, Moment, RunView
from theodolite.report._traces import Strand, Trace, curve_trace, dash_of
from theodolite.report.pages import plain, short

__all__ = ["Curve", "layer_panels", "overlay"]

_MOST_PANELS = 8
_MOST_POINTS = 80


@dataclass(frozen=True)
class Curve:
    """What a figure needs to know about a curve.

    Args:
        family: the family that measures it.
        name: its name in the record.
        x: words of the horizontal axis (and ``y`` of the vertical one).
        logarithmic: names of the axes that are ("x", "y").
        marks: markers instead of a line.
        top_only: keep the first points instead of some of all.
        smallest: share of the largest number below which a logarithmic axis leaves points out.
        chance: whether the record holds what shuffled labels give.
        options: more settings of the vertical axis.
    """

    family: str
    name: str
    x: str
    y: str
    logarithmic: str = ""
    marks: bool = False
    top_only: bool = False
    smallest: float = 0.0
    chance: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)

    def layout(self) -> dict[str, Any]:
        """Both axes."""
        return {
            "xaxis": axis(self.x, log="x" in self.logarithmic, tickangle=0),
            "yaxis": axis(self.y, log="y" in self.logarithmic, **self.options),
        }

    def keep(self, moment: Moment, layer: str) -> list[int] | None:
        """The points that a page carries; None for all of them."""
        found = {role: moment.array(self.family, self.name, layer, role) for role in "xy"}
        if any(item is None for item in found.values()):
            return None
        arrays = {role: item[1] for role, item in found.items() if item is not None}
        shown = np.ones(len(arrays["x"]), dtype=bool)
        for role in self.logarithmic:
            # Zero has no logarithm, and rounding noise would take up most of the axis.
            largest = arrays[role].max(initial=0.0)
            shown &= (arrays[role] > 0) & (arrays[role] >= self.smallest * largest)
        points = np.flatnonzero(shown).tolist()
        if len(points) <= _MOST_POINTS:
            return None if len(points) == len(shown) else points
        if self.top_only:
            return list(points[:_MOST_POINTS])
        # Over a logarithmic axis of counts the first points matter most.
        counts = "x" in self.logarithmic and bool(arrays["x"][0] < arrays["x"][-1])
        return [points[i] for i in spaced(len(points), _MOST_POINTS, logarithmic=counts)]


def layer_panels(group: Group, curve: Curve, words: Words, *, columns: int = 4) -> Figure | None:
    """A panel for each layer, every run in its own dash; many layers fold all but eight away."""
    layers = group.curved(curve.family, curve.name)
    if not layers:
        return None
    panels = {
        layer: Panel(short(layer, 32), _drawer(group, curve, layer), curve.layout(), height=220)
        for layer in layers
    }
    first = [layers[i] for i in spaced(len(layers), _MOST_PANELS)]
    return Figure(
        f"{curve.family}-{curve.name}".replace("_", "-"),
        words.title,
        words.reading,
        tuple(panels[layer] for layer in first),
        tuple(panel for layer, panel in panels.items() if layer not in first),
        columns=min(columns, len(first)),
        shared=True,
        finding=lambda step: _kept_at(group, step),
    )


def overlay(group: Group, curve: Curve, words: Words) -> Figure | None:
    """A panel for each run with one line a layer, stronger towards the output."""
    layers = group.curved(curve.family, curve.name)
    if not layers:
        return None
    runs = [run for run in group.runs if run.drawn(curve.family, curve.name)]
    titles = [plain(run.name) if len(group.runs) > 1 else "" for run in runs]
    panels = [
        Panel(title, _layers_of(run, curve, layers), curve.layout())
        for title, run in zip(titles, runs, strict=True)
    ]
    return Figure(
        f"{curve.family}-{curve.name}".replace("_", "-"),
        words.title,
        words.reading,
        tuple(panels),
        columns=min(2, len(panels)),
        shared=True,
        finding=lambda step: _kept_at(group, step),
    )


def _drawer(group: Group, curve: Curve, layer: str) -> Draw:
    def draw(step: int | None) -> list[Trace]:
        traces: list[Trace | None] = []
        for order, run in enumerate(group.runs):
            moment = run.with_curves_at(step)
            keep = curve.keep(moment, layer)
            where = (moment, curve.family, curve.name, layer)
            if curve.chance:
                style = _line("muted", order, width=1.0)
                name = f"shuffled labels, {run.name}"
                traces.append(curve_trace(*where, Strand(name, style, keep, y_role="chance")))
            style = _marks(curve, order) if curve.marks else _line(curve.family, order)
            traces.append(curve_trace(*where, Strand(run.name, style, keep)))
        return [trace for trace in traces if trace is not None]

    return draw


def _layers_of(run: RunView, curve: Curve, layers: Sequence[str]) -> Draw:
    def draw(step: int | None) -> list[Trace]:
        moment = run.with_curves_at(step)
        traces = []
        for i, layer in enumerate(layers):
            depth = (i + 1) / len(layers)
            line = _line(curve.family, 0, width=1 + 1.5 * depth)
            style = line | {"opacity": round(0.3 + 0.7 * depth, 3)}
            strand = Strand(layer, style, curve.keep(moment, layer))
            traces.append(curve_trace(moment, curve.family, curve.name, layer, strand))
        return [trace for trace in traces if trace is not None]

    return draw


def _line(color: str, order: int, width: float = 2.0) -> dict[str, Any]:
    shape = {"color": color, "width": round(width, 2), "dash": dash_of(order), "simplify": False}
    return {"line": shape}


def _marks(curve: Curve, order: int) -> dict[str, Any]:
    symbol = ("circle", "circle-open")[order % 2]
    marker = {"color": curve.family, "size": 5, "symbol": symbol}
    return {"mode": "markers", "marker": marker}


def _kept_at(group: Group, step: int | None) -> str:
    """Says so where curves were kept at another step than the one asked for."""
    if not group.is_history:
        return ""
    steps = sorted({run.with_curves_at(step).step for run in group.runs})
    return f"Curves of step {', '.join(map(str, steps))}."
