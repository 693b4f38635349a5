"""Figures of curves: one panel a layer, or one panel a run with the layers as lines."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from plotly import graph_objects as go

from theodolite.advice.captions import curves_sentence
from theodolite.records import Group, Moment, RunView, plain, spaced
from theodolite.report._figures import (
    MOST_PANELS,
    Figure,
    Key,
    Numbers,
    Panel,
    Series,
    Words,
    array_at,
    axes,
    by_moment,
    tone,
)
from theodolite.report.pages import LIGHT, page_numbers, plotly_text, short

_MOST_POINTS = 80
_MOST_NAMED = 8  # layers in a legend
_MOST_LAYERS = 24  # layers with curves on a page; the record has all of them
_DIGITS = 5


@dataclass(frozen=True)
class Curve:
    """The description of a curve for its figures.

    Args:
        family: the family that measures it.
        name: its name in the record.
        x: words of the horizontal axis (and ``y`` of the vertical one).
        logarithmic: names of the axes that are ("x", "y").
        marks: markers instead of a line.
        top_only: keep the first points instead of some of all.
        smallest: share of the largest number below which a logarithmic axis leaves points out.
        chance: whether the record has the curve for permuted labels.
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

    @property
    def key(self) -> str:
        """The key of its figure."""
        return f"{self.family}-{self.name}".replace("_", "-")

    def layout(self) -> dict[str, Any]:
        """Both axes."""
        return axes(self.x, self.y, log=self.logarithmic, xaxis={"tickangle": 0})

    def numbers(self, moment: Moment, layer: str, height: str = "y") -> Numbers:
        """The points of a layer on a page; empty if the record has no such curve."""
        found = {role: moment.array(self.family, self.name, layer, role) for role in ("x", height)}
        (x_name, x), (y_name, y) = (item or ("", np.array([])) for item in found.values())
        if not len(x) or not len(y):
            return {"x": [], "y": [], "meta": {}}
        kept = self._kept(moment, layer)
        points = list(range(len(x))) if kept is None else kept
        source = {"x": array_at(moment, x_name, kept), "y": array_at(moment, y_name, kept)}
        drawn = {"x": page_numbers(x[points], _DIGITS), "y": page_numbers(y[points], _DIGITS)}
        return drawn | {"meta": {"source": source}}

    def _kept(self, moment: Moment, layer: str) -> list[int] | None:
        """Positions of the points to draw; None for all of them."""
        found = {role: moment.array(self.family, self.name, layer, role) for role in "xy"}
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


def layer_panels(group: Group, curve: Curve, words: Words) -> Figure | None:
    """A panel for each layer, a colour for each run; many layers fold all but eight away."""
    layers = _some_layers(group, curve)
    if not layers:
        return None
    panels = {
        layer: Panel(short(layer, 32), _runs_of(group, curve, layer), curve.layout(), height=220)
        for layer in layers
    }
    first = [layers[i] for i in spaced(len(layers), MOST_PANELS)]
    several = len(group.runs) > 1
    legend = [
        Key(plain(run.name) if several else curve.y, tone(group, curve.family, order), mark)
        for order, run in enumerate(group.runs)
        if run.has_curve(curve.family, curve.name)
        for mark in ("dots" if curve.marks else "line",)
    ]
    if curve.chance:
        legend.append(Key("chance level: permuted labels", LIGHT["muted"], dash="dot"))
    return Figure(
        curve.key,
        words,
        tuple(panels[layer] for layer in first),
        tuple(panel for layer, panel in panels.items() if layer not in first),
        finding=lambda step: curves_sentence(group, step),
        legend=tuple(legend) if several or curve.chance else (),
        columns=min(4, len(first)),
        shared=True,
    )


def overlay(group: Group, curve: Curve, words: Words) -> Figure | None:
    """A panel for each run with one line a layer, stronger towards the output."""
    layers = _some_layers(group, curve)
    if not layers:
        return None
    runs = [run for run in group.runs if run.has_curve(curve.family, curve.name)]
    panels = tuple(
        Panel(
            plain(run.name) if len(group.runs) > 1 else "",
            tuple(
                _layer_series(run, curve, layer, (i + 1) / len(layers))
                for i, layer in enumerate(layers)
            ),
            curve.layout(),
        )
        for run in runs
    )
    named = spaced(len(layers), _MOST_NAMED)
    legend = [
        Key(short(layers[i]), LIGHT[curve.family], opacity=_strength((i + 1) / len(layers)))
        for i in named
    ]
    return Figure(
        curve.key,
        words,
        panels,
        finding=lambda step: curves_sentence(group, step),
        legend=tuple(legend),
        columns=min(2, len(panels)),
        shared=True,
    )


def _some_layers(group: Group, curve: Curve) -> list[str]:
    """Layers with the curve, the first and the last among them."""
    layers = group.layers_with_curve(curve.family, curve.name)
    return [layers[i] for i in spaced(len(layers), _MOST_LAYERS)]


def _runs_of(group: Group, curve: Curve, layer: str) -> tuple[Series, ...]:
    series = []
    for order, run in enumerate(group.runs):
        if not run.has_curve(curve.family, curve.name):
            continue
        color = tone(group, curve.family, order)
        if curve.chance:
            look = _line(f"permuted labels, {run.name}", LIGHT["muted"], 1.0, "dot")
            series.append(Series(look, _at_steps(run, curve, layer, "chance")))
        look = _line(run.name, color, 2.0)
        if curve.marks:
            marker = {"color": color, "size": 5, "symbol": ("circle", "circle-open")[order % 2]}
            look.update(mode="markers", marker=marker)
        series.append(Series(look, _at_steps(run, curve, layer)))
    return tuple(series)


def _layer_series(run: RunView, curve: Curve, layer: str, depth: float) -> Series:
    look = _line(layer, LIGHT[curve.family], 1 + 1.5 * depth)
    return Series(look.update(opacity=_strength(depth)), _at_steps(run, curve, layer))


def _strength(depth: float) -> float:
    return round(0.25 + 0.75 * depth, 3)


def _at_steps(
    run: RunView, curve: Curve, layer: str, height: str = "y"
) -> Callable[[int | None], Numbers]:
    return by_moment(run.with_curves_at, lambda moment: curve.numbers(moment, layer, height))


def _line(name: str, color: str, width: float, dash: str = "solid") -> Any:
    # Without simplify=False Plotly leaves out vertices, and the drawing differs from the record.
    return go.Scatter(
        mode="lines",
        name=plotly_text(name),
        hovertemplate="%{x:.3g}, %{y:.3g}<extra>%{fullData.name}</extra>",
        line={"color": color, "width": round(width, 2), "dash": dash, "simplify": False},
    )
