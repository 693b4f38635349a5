"""A figure: panels of Plotly traces that can be drawn at any step, with title and caption.

A ``Series`` has the look of a trace, a Plotly object that is made once, and its numbers, which
depend on the step. Looks have the colours of the light palette; a page can replace them by those of
the dark one.

Numbers name their place in the record. ``meta["source"]`` maps an axis (``x``, ``y``, ``error_y``,
``z``) to ``{"run": r, "step": s, "path": [...]}``: the position of the run, the position of the
step in the run, and the path in that record. A list in a path stands for each of its members in
turn (``["rows", [3, 9], "value"]``). A list of steps has one step for each of them. A list of paths
gives one row of a heat map each. Numbers of the path are multiplied by ``scale``, then ``offset``
is added.
"""

import copy
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from plotly import graph_objects as go

from theodolite.records import Group, Moment, finite
from theodolite.report.pages import LIGHT, distinct, plotly_text, short

MOST_PANELS = 8  # that a figure shows; the others are folded
_NARROW = 1.5  # decades with too few powers of ten to read
_LINEAR = 0.7  # decades: below a factor of five a logarithmic axis has too few round numbers
_MOST_DECADES = 3.5  # that each have their label
_MOST_TICKS = 40  # layers with a name
_WIDEST = 520  # pixels across a panel that grows
_RUN_TONES = ("representation", "gradient", "kernel", "covariance", "tangent", "muted")
_DASHES = ("solid", "dot", "dash", "dashdot", "longdash", "longdashdot")
_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"
_AXIS = {
    "title": {"standoff": 8, "font": {"size": 12, "color": LIGHT["muted"]}},
    "gridcolor": LIGHT["grid"],
    "linecolor": LIGHT["line"],
    "zeroline": False,
    "tickfont": {"size": 11, "color": LIGHT["muted"]},
    "fixedrange": True,
    "automargin": True,
    "exponentformat": "power",
}
HOUSE_STYLE = go.layout.Template(
    layout={
        "font": {"family": _FONT, "size": 12, "color": LIGHT["ink"]},
        "paper_bgcolor": LIGHT["surface"],
        "plot_bgcolor": LIGHT["surface"],
        "margin": {"l": 52, "r": 14, "t": 8, "b": 44},
        "showlegend": False,
        "hovermode": "closest",
        "dragmode": False,
        "hoverlabel": {"namelength": -1},
        "xaxis": _AXIS,
        "yaxis": _AXIS,
    }
)

Numbers = dict[str, Any]  # keys of the trace that a step changes; "error" is the array of error_y


@dataclass(frozen=True)
class Series:
    """One trace.

    Args:
        look: the part that no step changes: kind, colours, name.
        at: the numbers at a step (the latest for None).
    """

    look: Any
    at: Callable[[int | None], Numbers]

    def trace(self, step: int | None = None) -> Any:
        """The whole Plotly object at a step."""
        numbers = dict(self.at(step))
        errors = numbers.pop("error", None)
        found = copy.deepcopy(self.look).update(numbers)
        return found if errors is None else found.update(error_y_array=errors)


@dataclass(frozen=True)
class Panel:
    """One set of axes.

    Args:
        title: text above the panel, without markup.
        series: the traces.
        layout: axes and other settings that differ from those of all panels.
        cursor: place of each step of the group on the horizontal axis, if this axis has steps.
        height: in pixels.
        aspect: width over height, for a panel that grows with the page instead of having a height.
    """

    title: str
    series: tuple[Series, ...]
    layout: Mapping[str, Any]
    cursor: Sequence[int] | None = None
    height: int = 260
    aspect: float | None = None

    @property
    def style(self) -> str:
        """The space that a page keeps for it."""
        if self.aspect is None:
            return f"min-height:{self.height}px"
        return f"aspect-ratio:{self.aspect:.3f};max-width:{_WIDEST}px"

    def states(self, steps: Iterable[int]) -> tuple[list[list[Numbers]], list[int]]:
        """Its different states, and which of them each step has."""
        return distinct([series.at(step) for series in self.series] for step in steps)

    def draw(self, step: int | None = None) -> list[Any]:
        """The traces at a step, those without numbers left out."""
        traces = [series.trace(step) for series in self.series]
        return [t for t in traces if _has_numbers(t.to_plotly_json())]


@dataclass(frozen=True)
class Key:
    """An entry of a legend: ``mark`` is "line", "dots", "dash" or "band"."""

    name: str
    color: str
    mark: str = "line"
    dash: str = "solid"
    opacity: float = 1.0


@dataclass(frozen=True)
class Words:
    """Title of a figure and how to read it."""

    title: str
    reading: str = ""


@dataclass(frozen=True)
class Figure:
    """Panels with one title and caption; without panels, a few numbers in words.

    Args:
        key: unique within a group; letters, digits and dashes.
        words: title, and how to read it whatever the numbers are.
        panels: the panels that are always shown.
        more: panels behind a fold (the other layers of a deep network).
        finding: one sentence computed from the numbers at a step; "" if there is none.
        legend: the meaning of colours and dashes.
        columns: number of panels side by side on a wide screen.
        shared: whether all panels have one scale on the vertical axis.
        roomy: whether a panel needs the whole width of a phone.
    """

    key: str
    words: Words
    panels: tuple[Panel, ...]
    more: tuple[Panel, ...] = ()
    finding: Callable[[int | None], str] = lambda _: ""
    legend: tuple[Key, ...] = ()
    columns: int = 1
    shared: bool = False
    roomy: bool = False

    @property
    def all_panels(self) -> tuple[Panel, ...]:
        """Every panel, folded or not."""
        return self.panels + self.more

    def with_content(self, steps: Sequence[int]) -> "Figure | None":
        """The figure without panels that stay empty at all steps; None if nothing is left."""
        kept = tuple(p for p in self.panels if _is_drawn(p, steps))
        folded = tuple(p for p in self.more if _is_drawn(p, steps))
        if (self.panels and not kept) or not (kept or self.finding(None)):
            return None
        columns = max(1, min(self.columns, len(kept)))
        return replace(self, panels=kept, more=folded, columns=columns)


def by_moment(
    moment_at: Callable[[int | None], Moment], numbers: Callable[[Moment], Numbers]
) -> Callable[[int | None], Numbers]:
    """Numbers of the moment that is shown at a step, computed once for each moment."""
    known: dict[int, Numbers] = {}

    def found(step: int | None) -> Numbers:
        moment = moment_at(step)
        if moment.position not in known:
            known[moment.position] = numbers(moment)
        return known[moment.position]

    return found


def _is_drawn(panel: Panel, steps: Sequence[int]) -> bool:
    return any(_has_numbers(s.at(step)) for step in reversed(steps) for s in panel.series)


def _has_numbers(numbers: Mapping[str, Any]) -> bool:
    z = numbers.get("z")
    if z is not None:
        return any(value is not None for row in z for value in row)
    x, y = numbers.get("x") or (), numbers.get("y") or ()
    return any(a is not None and b is not None for a, b in zip(x, y, strict=True))


def tone(group: Group, family: str, order: int) -> str:
    """The colour of a run: the family's colour for a single run, else one colour for each run."""
    return LIGHT[family if len(group.runs) == 1 else _RUN_TONES[order % len(_RUN_TONES)]]


def dash_of(order: int) -> str:
    """The dash of the n-th measure in a panel."""
    return _DASHES[order % len(_DASHES)]


def axes(x: str, y: str, *, log: str = "", **options: Any) -> dict[str, Any]:
    """Both axes by their titles; ``xaxis`` and ``yaxis`` may hold more settings."""
    named = {"xaxis": (x, "x" in log), "yaxis": (y, "y" in log)}
    return {
        key: {
            "title": {"text": plotly_text(title) if title else ""},
            "type": "log" if logarithmic else "linear",
            **({} if logarithmic else {"nticks": 5}),
            **options.get(key, {}),
        }
        for key, (title, logarithmic) in named.items()
    } | {key: value for key, value in options.items() if key not in named}


def layer_ticks(layers: Sequence[str]) -> dict[str, Any]:
    """Ticks of an axis of layers; with very many layers only some have names."""
    every = -(-len(layers) // _MOST_TICKS) if layers else 1
    positions = list(range(0, len(layers), every))
    texts = [plotly_text(short(layers[i], 16)) for i in positions]
    return {"tickvals": positions, "ticktext": texts}


def step_axis(steps: Sequence[int], named: Sequence[int]) -> dict[str, Any]:
    """An axis with one place for each step: training steps are often spread over decades."""
    return {
        "range": [-0.5, len(steps) - 0.5],
        "tickangle": 0,
        "tickvals": list(named),
        "ticktext": [str(steps[i]) for i in named],
    }


def array_at(moment: Moment, name: str, indices: Sequence[int] | None) -> dict[str, Any]:
    """The source of some or all numbers of an array."""
    path: list[Any] = ["arrays", name] + ([] if indices is None else [list(indices)])
    return {"run": moment.run, "step": moment.position, "path": path}


def with_ranges(
    panels: Sequence[Panel], states: Sequence[Sequence[Sequence[Numbers]]], *, shared: bool
) -> list[dict[str, Any]]:
    """Layouts with ranges that contain every state, so that the slider does not change an axis."""
    every = [[numbers for state in panel for numbers in state] for panel in states]
    together = [numbers for panel in every for numbers in panel]
    return [
        dict(panel.layout)
        | {
            "xaxis": _ranged(panel.layout["xaxis"], numbers, "x"),
            "yaxis": _ranged(panel.layout["yaxis"], together if shared else numbers, "y"),
        }
        | ({"height": panel.height} if panel.aspect is None else {})
        for panel, numbers in zip(panels, every, strict=True)
    ]


def _ranged(settings: dict[str, Any], numbers: Sequence[Numbers], name: str) -> dict[str, Any]:
    if "range" in settings:
        return settings
    values = [v for entry in numbers for v in _extent(entry, name)]
    if settings["type"] == "log":
        values = [math.log10(v) for v in values if v > 0]
    elif name == "y":
        values.append(0.0)
    if not values:
        return settings | {"range": [0, 1]}
    low, high = min(values), max(values)
    if settings["type"] == "log" and high - low < _LINEAR:
        return _ranged(settings | {"type": "linear", "nticks": 5}, numbers, name)
    pad = 0.06 * (high - low) or 0.5
    bottom = low if name == "y" and low == 0 and settings["type"] != "log" else low - pad
    limits: dict[str, Any] = {"range": [float(f"{bottom:.6g}"), float(f"{high + pad:.6g}")]}
    if settings["type"] == "log":
        # Powers of ten only: labels of the steps between them collide on a phone.
        decades = {"dtick": math.ceil((high - low) / _MOST_DECADES)}
        limits |= decades if high - low >= _NARROW else _ticks(*limits["range"])
    return settings | limits


def _ticks(low: float, high: float) -> dict[str, Any]:
    """1, 2 and 5 times powers of ten, written out."""
    powers = range(math.floor(low), math.ceil(high) + 1)
    values = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
    inside = [value for value in values if low <= math.log10(value) <= high]
    return {"tickvals": inside, "ticktext": [f"{value:g}" for value in inside]}


def _extent(numbers: Numbers, name: str) -> list[float]:
    values = [float(v) for v in numbers.get(name, []) if finite(v)]
    if name == "y" and numbers.get("error"):
        pairs = zip(numbers["y"], numbers["error"], strict=True)
        both = [(v, e) for v, e in pairs if finite(v) and finite(e)]
        values += [v - e for v, e in both] + [v + e for v, e in both]
    return values
