"""Figures of curves: one panel a layer, or one panel a run with the layers as lines."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from theodolite.report._escape import plain, short
from theodolite.report._figure import Figure, Panel, axis
from theodolite.report._numbers import spaced
from theodolite.report._reading import Group, Moment
from theodolite.report._traces import Trace, curve_trace, dash_of

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
        chance: whether the record holds what shuffled labels give.
        ranges: of axes that are known beforehand.
    """

    family: str
    name: str
    x: str
    y: str
    logarithmic: str = ""
    marks: bool = False
    top_only: bool = False
    chance: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)

    def layout(self) -> dict[str, Any]:
        """Both axes."""
        return {
            "xaxis": axis(self.x, log="x" in self.logarithmic),
            "yaxis": axis(self.y, log="y" in self.logarithmic, **self.options),
        }

    def keep(self, moment: Moment, layer: str) -> list[int] | None:
        """The points that a page carries; None for all of them."""
        found = moment.array(self.family, self.name, layer, "x")
        if found is None or len(found[1]) <= _MOST_POINTS:
            return None
        if self.top_only:
            return list(range(_MOST_POINTS))
        # Over a logarithmic axis of counts the first points matter most.
        counts = "x" in self.logarithmic and found[1][0] < found[1][-1]
        return spaced(len(found[1]), _MOST_POINTS, logarithmic=counts)


def layer_panels(
    group: Group, curve: Curve, *, title: str, reading: str, columns: int = 4
) -> Figure | None:
    """A panel for each layer, every run in its own dash; many layers fold all but eight away."""
    layers = group.curved(curve.family, curve.name)
    if not layers:
        return None
    panels = {layer: Panel(short(layer, 32), _drawer(group, curve, layer), curve.layout(), height=220)
              for layer in layers}  # fmt: skip
    first = [layers[i] for i in spaced(len(layers), _MOST_PANELS)]
    return Figure(
        f"{curve.family}-{curve.name}".replace("_", "-"),
        title,
        reading,
        tuple(panels[layer] for layer in first),
        tuple(panel for layer, panel in panels.items() if layer not in first),
        columns=min(columns, max(2, len(first))),
        shared=True,
        finding=lambda step: _kept_at(group, step),
    )


def overlay(group: Group, curve: Curve, *, title: str, reading: str) -> Figure | None:
    """A panel for each run with one line a layer, stronger towards the output."""
    layers = group.curved(curve.family, curve.name)
    if not layers:
        return None
    panels = []
    for order, run in enumerate(group.runs):

        def draw(step: int | None, run_index: int = order) -> list[Trace]:
            moment = group.runs[run_index].with_curves_at(step)
            traces = [_depth_line(moment, curve, layers, i) for i in range(len(layers))]
            return [trace for trace in traces if trace is not None]

        panels.append(Panel(plain(run.name) if len(group.runs) > 1 else "", draw, curve.layout()))
    return Figure(
        f"{curve.family}-{curve.name}".replace("_", "-"),
        title,
        reading,
        tuple(panels),
        columns=min(2, len(panels)),
        shared=True,
        finding=lambda step: _kept_at(group, step),
    )


def _drawer(group: Group, curve: Curve, layer: str) -> Any:
    def draw(step: int | None) -> list[Trace]:
        traces: list[Trace | None] = []
        for order, run in enumerate(group.runs):
            moment = run.with_curves_at(step)
            keep = curve.keep(moment, layer)
            where = (moment, curve.family, curve.name, layer)
            if curve.chance:
                name = f"shuffled labels, {run.name}"
                style = {
                    "line": {
                        "color": "muted",
                        "width": 1,
                        "dash": dash_of(order),
                        "simplify": False,
                    }
                }
                traces.append(
                    curve_trace(*where, roles=("x", "chance"), keep=keep, name=name, style=style)
                )
            style = _marks(curve.family, order) if curve.marks else _line(curve.family, order)
            traces.append(curve_trace(*where, keep=keep, name=run.name, style=style))
        return [trace for trace in traces if trace is not None]

    return draw


def _line(family: str, order: int) -> dict[str, Any]:
    line = {"color": family, "width": 2, "dash": dash_of(order), "simplify": False}
    return {"line": line}


def _marks(family: str, order: int) -> dict[str, Any]:
    symbol = ("circle", "circle-open")[order % 2]
    return {"mode": "markers", "marker": {"color": family, "size": 5, "symbol": symbol}}


def _depth_line(moment: Moment, curve: Curve, layers: Sequence[str], i: int) -> Trace | None:
    depth = (i + 1) / len(layers)
    style = {
        "line": {"color": curve.family, "width": 1 + 1.5 * depth, "simplify": False},
        "opacity": 0.3 + 0.7 * depth,
    }
    keep = curve.keep(moment, layers[i])
    return curve_trace(
        moment, curve.family, curve.name, layers[i], keep=keep, name=layers[i], style=style
    )


def _kept_at(group: Group, step: int | None) -> str:
    """Says so where curves were kept at another step than the one asked for."""
    if not group.is_history:
        return ""
    steps = sorted({run.with_curves_at(step).step for run in group.runs})
    return f"Curves of step {', '.join(map(str, steps))}."
