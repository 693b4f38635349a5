"""A figure: panels that can be drawn at any step, with the words that belong to them."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from theodolite.report._numbers import finite
from theodolite.report._traces import Trace

__all__ = ["Draw", "Figure", "Panel", "Words", "axis", "panel_layout", "states_of", "with_ranges"]

_NARROW = 1.5  # decades with too few powers of ten to read
_MOST_DECADES = 3.5  # that each have their label
_FEWEST_TICKS = 2
_WIDEST = 520  # pixels across a panel that grows
Draw = Callable[[int | None], list[Trace]]
_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"


@dataclass(frozen=True)
class Panel:
    """One set of axes.

    Args:
        title: what stands above it; plain text.
        draw: the traces at a step (the latest for None).
        layout: its axes and what else differs from the common layout.
        fixed: whether the slider leaves it alone.
        height: in pixels.
        aspect: width over height, for a panel that grows with the page instead of having a height.
    """

    title: str
    draw: Draw
    layout: dict[str, Any]
    fixed: bool = False
    height: int = 260
    aspect: float | None = None

    @property
    def style(self) -> str:
        """The room that a page keeps for it."""
        if self.aspect is None:
            return f"min-height:{self.height}px"
        return f"aspect-ratio:{self.aspect:.3f};max-width:{_WIDEST}px"


@dataclass(frozen=True)
class Words:
    """Title of a figure and how to read it."""

    title: str
    reading: str = ""


@dataclass(frozen=True)
class Figure:
    """Panels that answer one question.

    Args:
        key: unique within a group; letters, digits and dashes.
        title: the question or the quantity.
        reading: how to read it, whatever the numbers are.
        panels: the panels that are always shown.
        more: panels behind a fold (the other layers of a deep network).
        finding: one sentence computed from the numbers at a step; "" if there is none.
        columns: panels side by side on a wide screen.
        shared: whether all panels have one scale on the vertical axis.
        roomy: whether a panel needs the whole width of a phone.
    """

    key: str
    title: str
    reading: str
    panels: tuple[Panel, ...]
    more: tuple[Panel, ...] = ()
    finding: Callable[[int | None], str] = lambda _: ""
    columns: int = 1
    shared: bool = False
    roomy: bool = False

    @property
    def all_panels(self) -> tuple[Panel, ...]:
        """Every panel, folded or not."""
        return self.panels + self.more


def axis(title: str = "", *, log: bool = False, **options: Any) -> dict[str, Any]:
    """One axis in house style; ``title`` is Plotly's text."""
    return {
        "title": {"text": title, "standoff": 8, "font": {"size": 12, "color": "muted"}},
        "type": "log" if log else "linear",
        "gridcolor": "grid",
        "linecolor": "line",
        "zeroline": False,
        "tickfont": {"size": 11, "color": "muted"},
        "fixedrange": True,
        "automargin": True,
        **({"exponentformat": "power"} if log else {"nticks": 5}),
        **options,
    }


def panel_layout(panel: Panel) -> dict[str, Any]:
    """The whole layout of a panel."""
    return {
        "font": {"family": _FONT, "size": 12, "color": "ink"},
        "paper_bgcolor": "surface",
        "plot_bgcolor": "surface",
        "margin": {"l": 52, "r": 14, "t": 8, "b": 44},
        **({"height": panel.height} if panel.aspect is None else {}),
        "showlegend": False,
        "hovermode": "closest",
        "dragmode": False,
        "hoverlabel": {"namelength": -1},
        **panel.layout,
    }


def states_of(panel: Panel, steps: Sequence[int]) -> tuple[list[list[Trace]], list[int]]:
    """What the panel shows at each step: the different states, and which of them a step has."""
    states: list[list[Trace]] = []
    frames: list[int] = []
    for step in [steps[-1]] if panel.fixed else steps:
        traces = panel.draw(step)
        if traces not in states:
            states.append(traces)
        frames.append(states.index(traces))
    return states, frames if len(frames) == len(steps) else frames * len(steps)


def with_ranges(layouts: Sequence[dict[str, Any]], states: Sequence[list[list[Trace]]], *,
                shared: bool) -> list[dict[str, Any]]:  # fmt: skip
    """The layouts with ranges that hold every state, so that a slider never moves an axis."""
    every = [[trace for state in panel for trace in state] for panel in states]
    together = [trace for traces in every for trace in traces]
    return [
        layout
        | {
            "xaxis": _ranged(layout["xaxis"], traces, "x"),
            "yaxis": _ranged(layout["yaxis"], together if shared else traces, "y"),
        }
        for layout, traces in zip(layouts, every, strict=True)
    ]


def _ranged(settings: dict[str, Any], traces: Iterable[Trace], name: str) -> dict[str, Any]:
    if "range" in settings:
        return settings
    values = [v for trace in traces for v in _extent(trace, name)]
    if settings["type"] == "log":
        values = [math.log10(v) for v in values if v > 0]
    elif name == "y":
        values.append(0.0)
    if not values:
        return settings | {"range": [0, 1]}
    low, high = min(values), max(values)
    pad = 0.06 * (high - low) or 0.5
    bottom = low if name == "y" and low == 0 and settings["type"] != "log" else low - pad
    limits: dict[str, Any] = {"range": [float(f"{bottom:.6g}"), float(f"{high + pad:.6g}")]}
    if settings["type"] == "log":
        # Powers of ten only: labels of the steps between them collide on a phone.
        decades = {"dtick": math.ceil((high - low) / _MOST_DECADES)}
        limits |= decades if high - low >= _NARROW else _ticks(*limits["range"])
    return settings | limits


def _ticks(low: float, high: float) -> dict[str, Any]:
    """1, 2 and 5 times powers of ten, written out; three places where there are too few."""
    powers = range(math.floor(low), math.ceil(high) + 1)
    values = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
    inside = [value for value in values if low <= math.log10(value) <= high]
    if len(inside) < _FEWEST_TICKS:
        places = [low + share * (high - low) for share in (0.1, 0.5, 0.9)]
        inside = sorted({float(f"{10**place:.3g}") for place in places})
    return {"tickvals": inside, "ticktext": [f"{value:g}" for value in inside]}


def _extent(trace: Trace, name: str) -> list[float]:
    values = [float(v) for v in trace.get(name, []) if finite(v)]
    if name == "y" and "error_y" in trace:
        pairs = zip(trace["y"], trace["error_y"]["array"], strict=True)
        both = [(v, e) for v, e in pairs if finite(v) and finite(e)]
        values += [v - e for v, e in both] + [v + e for v, e in both]
    return values
