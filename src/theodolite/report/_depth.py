"""Charts over depth: layers from left to right, measures as lines, the chance level in grey.

A chart is drawn as SVG without scripts. Circles and shaded blocks are placed in per cent of the
width, and lines in a box that stretches. So the same drawing fits a screen, a phone and paper. When
the step changes, the script of a page draws it again from the same states.
"""

import html
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from theodolite.advice.captions import (
    chance_band,
    chart_sentence,
    ends_sentence,
    profile_sentence,
)
from theodolite.records import (
    CHANCE,
    FAMILIES,
    PROBES,
    Group,
    RunView,
    finite,
    plain,
    short_count,
    shown_as,
    spaced,
)
from theodolite.report._figures import Figure, Key, Panel, Series, Words, axes, dash_of, tone
from theodolite.report.pages import LIGHT, distinct, page_numbers, plotly_text, short

_PAD = 6.0  # pixels above and below what is drawn
_ACROSS = 1000.0  # units of the box that stretches
_DOTS = {60: 3.0, 120: 2.0}  # up to so many layers: radius of a dot; beyond, the smallest
_SMALLEST_DOT, _OPEN = 1.2, 2.6
_MOST_BLOCKS = 40
_LONG = 1e5  # larger ends of an axis are written as 6.9M
_ABOUT_ZERO = 0.05  # smaller negative numbers, relative to the range, do not move the axis
_DOMINANT = 0.8  # if one block has this share of all layers, its parts become the blocks
_SHORTCUT = re.compile(r"(^|[._])(downsample|shortcut|skip|short_?cut)([._\d]|$)", re.IGNORECASE)


@dataclass(frozen=True)
class Line:
    """One measure within a chart.

    Args:
        measure: its name in the record.
        label: its words.
        marks_only: short bars at each layer instead of a line.
        with_chance: whether its chance level is drawn.
        chance: how its chance level is measured, if not as that of the family's headline.
    """

    measure: str
    label: str = ""
    marks_only: bool = False
    with_chance: bool = True
    chance: str = ""

    @property
    def words(self) -> str:
        """Its name in a legend."""
        return self.label or self.measure.replace("_", " ")


@dataclass(frozen=True)
class Block:
    """Neighbouring layers of one part of the network: from ``start`` up to ``stop``."""

    name: str
    start: int
    stop: int


def blocks_of(layers: Sequence[str]) -> list[Block]:
    """Parts of a network by the names of its layers; none if they would have one layer each.

    Examples:
        >>> names = ["stem", *(f"net.{b}.{layer}" for b in range(3) for layer in "ab"), "head"]
        >>> [(block.name, block.stop - block.start) for block in blocks_of(names)]
        [('stem', 1), ('net', 6), ('head', 1)]
        >>> [block.name for block in blocks_of(["fc1", "fc2"])]
        ['fc1', 'fc2']
    """
    parts = [name.split(".") for name in layers]
    depth = dict.fromkeys(range(len(layers)), 1)

    def label(i: int) -> str:
        return ".".join(parts[i][: depth[i]])

    for _ in range(max(map(len, parts), default=1)):
        counts: dict[str, list[int]] = {}
        for i in range(len(layers)):
            counts.setdefault(label(i), []).append(i)
        largest = max(counts.values(), key=len, default=[])
        deeper = [i for i in largest if len(parts[i]) > depth[i]]
        if len(largest) <= max(2, _DOMINANT * len(layers)) or not deeper:
            break
        depth |= {i: depth[i] + 1 for i in deeper}
    found = []
    for name, members in groupby(range(len(layers)), key=label):
        where = list(members)
        found.append(Block(name, where[0], where[-1] + 1))
    return found if len(found) <= _MOST_BLOCKS else []


@dataclass(frozen=True)
class Trace:
    """One measure of one run over places along a chart.

    Args:
        run: the run.
        line: the measure.
        color: a colour of the light palette.
        name: the name in a legend and on hover.
        places: share of the width for each layer.
        group: the position of the network on the page.
        dash: the dash of the line.
        base: the run that is subtracted, for differences.
        step: a fixed step that is always shown; by default that of the slider.
    """

    run: RunView
    line: Line
    color: str
    name: str
    places: Mapping[str, float]
    group: int
    dash: str = "solid"
    base: RunView | None = None
    step: int | None = None

    def at(self, family: str, step: int | None) -> dict[str, Any]:
        """Numbers of every place at a step; None where nothing was measured."""
        wanted = step if self.step is None else self.step
        measure = self.line.measure
        moment = self.run.latest_with(wanted, family, measure)
        base = None if self.base is None else self.base.latest_with(wanted, family, measure)
        chance = self.chance(family, wanted) if self.line.with_chance else {}
        state: dict[str, Any] = {key: [] for key in ("y", "text", "error", "chance", "within")}
        rows: list[int | None] = []
        for layer, x in self.places.items():
            row = moment.row(family, measure, layer) or {}
            other = {"value": 0.0, "error": 0.0} if base is None else base.row(
                family, measure, layer) or {}  # fmt: skip
            value = _difference(row.get("value"), other.get("value"))
            low, high = chance.get(round(x, 5), (math.nan, math.nan))
            state["y"].append(value)
            state["text"].append(shown_as(measure, value, signed=base is not None))
            state["error"].append(_joint_error(row.get("error"), other.get("error")))
            middle, half = (low + high) / 2, (high - low) / 2 / CHANCE
            near = 0.0 if abs(middle) <= half else middle
            state["chance"].append(shown_as(measure, near) if finite(middle) else "")
            state["within"].append(int(half > 0 and low <= value <= high))
            rows.append(moment.index(family, measure, layer))
        state["y"], state["error"] = page_numbers(state["y"]), page_numbers(state["error"])
        empty = {"error": None, "chance": "", "within": 0}
        dropped = [key for key, none in empty.items() if all(v == none for v in state[key])]
        kept = {key: values for key, values in state.items() if key not in dropped}
        return kept | {"where": [self.run.index, moment.position, rows]}

    def static(self) -> dict[str, Any]:
        """The part that is equal at all steps."""
        return {
            "name": self.name,
            "group": self.group,
            "color": token(self.color),
            "dash": self.dash,
            "marks": self.line.marks_only,
        }

    def chance(self, family: str, step: int | None) -> dict[float, tuple[float, float]]:
        """Two standard deviations about chance, by place."""
        found = {}
        for layer, x in self.places.items():
            level = self.run.chance(step, family, self.line.measure, layer)
            if level is None:
                continue
            mean, sd = level.mean, level.sd
            if self.base is not None:
                other = self.base.chance(step, family, self.line.measure, layer)
                if other is None:
                    continue
                mean, sd = 0.0, math.hypot(sd, other.sd)
            found[round(x, 5)] = (mean - CHANCE * sd, mean + CHANCE * sd)
        return found


def is_shortcut(layer: str) -> bool:
    """Whether the name of a layer says that it is a shortcut around a block."""
    return bool(_SHORTCUT.search(layer))


def token(color: str) -> str:
    """The name of a colour of the light palette."""
    return next(name for name, value in LIGHT.items() if value == color)


def _difference(value: Any, other: Any) -> float:
    return float(value) - float(other) if finite(value) and finite(other) else math.nan


def _joint_error(error: Any, other: Any) -> float:
    return math.hypot(error, other) if finite(error) and finite(other) else math.nan


@dataclass(frozen=True)
class Chart:
    """Lines over depth, and the words around them.

    Args:
        key: unique within a group; letters, digits and dashes.
        family: the family, which determines the color.
        words: title, and how to read it.
        traces: the lines, the most important first.
        finding: one sentence computed from the numbers at a step.
        legend: the meaning of colours and dashes.
        log: whether the vertical axis is logarithmic.
        blocks: parts of the network, shaded in turn.
        height: in pixels.
    """

    key: str
    family: str
    words: Words
    traces: tuple[Trace, ...]
    finding: Callable[[int | None], str] = lambda _: ""
    legend: tuple[Key, ...] = ()
    log: bool = False
    blocks: tuple[Block, ...] = ()
    height: float = 120.0
    _states: dict[int | None, dict[str, Any]] = field(default_factory=dict, repr=False)
    _limits: dict[tuple[int | None, ...], tuple[float, float]] = field(
        default_factory=dict, repr=False
    )

    def at(self, step: int | None) -> dict[str, Any]:
        """The drawing data of a step: traces, and the chance level as [x, low, high]."""
        if step not in self._states:
            traces = [trace.at(self.family, step) for trace in self.traces]
            band: dict[float, tuple[float, float]] = {}
            for trace in (trace for trace in self.traces if trace.line.with_chance):
                for x, (low, high) in trace.chance(self.family, step).items():
                    known = band.get(x, (low, high))
                    band[x] = (min(low, known[0]), max(high, known[1]))
            drawn = [[x, *page_numbers(ends)] for x, ends in sorted(band.items())]
            self._states[step] = {"traces": traces, "band": drawn}
        return self._states[step]

    def limits(self, steps: Sequence[int | None]) -> tuple[float, float]:
        """Bottom and top that hold every number of every step; a wide chance level is cut off."""
        key = tuple(steps)
        if key not in self._limits:
            self._limits[key] = self._limits_of(steps)
        return self._limits[key]

    def _limits_of(self, steps: Sequence[int | None]) -> tuple[float, float]:
        values: list[float] = []
        for state in map(self.at, steps):
            for trace in state["traces"]:
                errors = trace.get("error") or [0.0] * len(trace["y"])
                for value, error in zip(trace["y"], errors, strict=True):
                    if finite(value):
                        values += [value - (error or 0.0), value + (error or 0.0)]
            values += [(low + high) / 2 for _, low, high in state["band"] if finite(low)]
        if self.log:
            values = [value for value in values if value > 0]
        else:
            values.append(0.0)
        low, high = min(values, default=0.1), max(values, default=1.0)
        if -_ABOUT_ZERO * high < low < 0 and not self.log:
            low = 0.0
        return (low, high) if high > low else (low, low + (abs(low) or 1.0))

    def payload(self, group: str, steps: Sequence[int]) -> dict[str, Any]:
        """The data for the script of a page; equal states are kept once."""
        states, frames = distinct(map(self.at, steps))
        return {
            "group": group,
            "traces": [trace.static() for trace in self.traces],
            "limits": page_numbers(self.limits(steps)),
            "log": self.log,
            "height": self.height,
            "radius": self.radius,
            "states": states,
            "frames": frames,
        }

    @property
    def radius(self) -> float:
        """Radius of a dot in pixels; networks with more layers get smaller dots."""
        most = max((len(trace.places) for trace in self.traces), default=0)
        return next((size for count, size in _DOTS.items() if most <= count), _SMALLEST_DOT)

    def svg(self, steps: Sequence[int], *, titles: bool = True) -> str:
        """The drawing at the last of these steps; a title names each point where no script does."""
        state, limits = self.at(steps[-1]), self.limits(steps)
        count = max((len(trace.places) for trace in self.traces), default=1)
        shaded = "".join(
            f'<rect class="block" x="{100 * b.start / count:.3f}%" y="0" '
            f'width="{100 * (b.stop - b.start) / count:.3f}%" height="100%"/>'
            for b in self.blocks[::2]
            if len(self.blocks) < count
        )
        drawn = "".join(
            self._trace(i, trace, limits, titles) for i, trace in enumerate(state["traces"])
        )
        text = self.finding(steps[-1]) or self._ends(steps[-1])
        label = html.escape(chart_sentence(self.words.title, text))
        frame = html.escape(json.dumps(page_numbers(limits)))
        return (
            f'<svg class="depth" role="img" aria-label="{label}" height="{self.height:g}" '
            f'data-limits="{frame}">{shaded}'
            f'<svg viewBox="0 0 {_ACROSS:g} {self.height:g}" preserveAspectRatio="none" '
            f'width="100%" height="100%">{self._band(state["band"], limits)}</svg>'
            f'<g class="traces">{drawn}</g></svg>'
        )

    def _ends(self, step: int | None) -> str:
        """First and last number of every line, for screen readers."""
        lines = []
        for trace, state in zip(self.traces, self.at(step)["traces"], strict=True):
            points = zip(trace.places, state["text"], state["y"], strict=True)
            lines.append((trace.name, [(layer, text) for layer, text, y in points if finite(y)]))
        return ends_sentence(lines)

    def _height(self, value: float, limits: tuple[float, float]) -> float:
        low, high, at = *limits, value
        if self.log:
            low, high, at = (math.log(max(v, 1e-300)) for v in (low, high, value))
        share = (at - low) / (high - low)
        return _PAD + (1 - min(max(share, -1.0), 2.0)) * (self.height - 2 * _PAD)

    def _band(self, band: Sequence[Sequence[float]], limits: tuple[float, float]) -> str:
        """Neighbouring layers share a shape; a layer without a chance level leaves a gap."""
        half = 0.5 / max((len(trace.places) for trace in self.traces), default=1)
        shapes: list[list[Sequence[float]]] = []
        for entry in band:
            if shapes and entry[0] - shapes[-1][-1][0] < 2.5 * half:
                shapes[-1].append(entry)
            else:
                shapes.append([entry])
        paths = []
        for shape in shapes:
            first, last = shape[0], shape[-1]
            ends = [[first[0] - half, *first[1:]], *shape, [last[0] + half, *last[1:]]]
            # A level without spread is still a line that can be seen.
            upper = [(x, self._height(high, limits) - 0.5) for x, _, high in ends]
            lower = [(x, self._height(low, limits) + 0.5) for x, low, _ in reversed(ends)]
            points = " ".join(f"{_ACROSS * x:.1f},{y:.2f}" for x, y in upper + lower)
            paths.append(f"M{points}Z")
        return f'<path class="band" d="{"".join(paths)}"/>'

    def _trace(
        self, number: int, state: Mapping[str, Any], limits: tuple[float, float], titles: bool
    ) -> str:
        trace = self.traces[number]
        layers = list(trace.places)
        at = [
            (x, self._height(y, limits), y, i)
            for i, (x, y) in enumerate(zip(trace.places.values(), state["y"], strict=True))
            if finite(y) and (y > 0 or not self.log)
        ]
        line = [(x, y) for x, y, _, i in at if not is_shortcut(layers[i])]
        parts = []
        if not trace.line.marks_only and len(line) > 1:
            points = " ".join(f"{_ACROSS * x:.1f},{y:.2f}" for x, y in line)
            parts.append(
                f'<svg viewBox="0 0 {_ACROSS:g} {self.height:g}" preserveAspectRatio="none" '
                f'width="100%" height="100%"><path class="line {trace.dash}" d="M{points}"/></svg>'
            )
        for x, y, value, i in at:
            error = (state.get("error") or [None] * len(state["y"]))[i]
            if error and len(at) <= max(_DOTS):
                top, low = (self._height(value + s * error, limits) for s in (1, -1))
                parts.append(
                    f'<line class="error" x1="{100 * x:.2f}%" x2="{100 * x:.2f}%" '
                    f'y1="{top:.2f}" y2="{low:.2f}"/>'
                )
            is_open = is_shortcut(layers[i]) or trace.line.marks_only
            kind = ' class="open"' if is_open else ""
            size = max(self.radius, _OPEN) if is_open else self.radius
            text = html.escape(f"{plain(layers[i])}: {state['text'][i]}") if titles else ""
            parts.append(
                f'<circle{kind} cx="{100 * x:.2f}%" cy="{y:.2f}" r="{size:g}">'
                f"{f'<title>{text}</title>' if titles else ''}</circle>"
            )
        where = html.escape(json.dumps(state["where"], separators=(",", ":")))
        return (
            f'<g class="trace" style="--tone:var(--{token(trace.color)})" data-where="{where}">'
            f"{''.join(parts)}</g>"
        )

    def last(self, step: int | None, most: int) -> list[dict[str, Any]]:
        """The last value of each line along the network; of too many, of the first measure."""
        own = [i for i, trace in enumerate(self.traces) if trace.step is None]
        first = self.traces[0].line.measure
        if len(own) > most:
            own = [i for i in own if self.traces[i].line.measure == first]
        states, found = self.at(step)["traces"], []
        for i in own:
            trace, state = self.traces[i], states[i]
            entries = zip(trace.places, state["text"], state["y"], strict=True)
            known = [text for name, text, y in entries if finite(y) and not is_shortcut(name)]
            if known:
                found.append({"text": known[-1], "color": token(trace.color), "trace": i})
        return found[:most]

    def ends(self, steps: Sequence[int]) -> tuple[str, str]:
        """Top and bottom of the axis, as text."""
        low, high = self.limits(steps)
        first = self.traces[0]
        signed = first.base is not None  # differences of accuracies are in points
        top, bottom = (
            short_count(round(end))  # a long number does not fit beside the axis
            if end >= _LONG and not signed
            else shown_as(first.line.measure, end, signed=signed)
            for end in (high, low)
        )
        return top, bottom

    def figure(self) -> Figure:
        """The same for Plotly, whose figures users take elsewhere."""
        from plotly import graph_objects as go

        layers = list(self.traces[0].places)
        series = []
        for number, trace in enumerate(self.traces):
            hover = "%{customdata}: %{y:.3g}<extra>%{fullData.name}</extra>"
            look = go.Scatter(
                mode="markers" if trace.line.marks_only else "lines+markers",
                name=plotly_text(trace.name),
                hovertemplate=hover,
                line={"color": trace.color, "dash": trace.dash, "width": 2, "simplify": False},
                marker={"color": trace.color, "size": 7},
                error_y={"type": "data", "color": trace.color, "thickness": 1, "width": 3},
            )
            series.append(Series(look, self._numbers(number)))
        chance = go.Scatter(
            mode="markers",
            name="chance",
            marker={"color": LIGHT["muted"], "size": 9, "symbol": "line-ew-open"},
            error_y={"type": "data", "color": LIGHT["null"], "thickness": 9, "width": 0},
        )
        series.insert(0, Series(chance, self._chance_numbers))
        named = spaced(len(layers), 14)
        across = {
            "range": [-0.02, 1.02],
            "tickvals": [self.traces[0].places[layers[i]] for i in named],
            "ticktext": [plotly_text(short(layers[i], 16)) for i in named],
        }
        y = self.traces[0].line.words
        layout = axes("input → output", y, log="y" if self.log else "", xaxis=across)
        panel = Panel("", tuple(series), layout)
        return Figure(self.key, self.words, (panel,), finding=self.finding, legend=self.legend)

    def _numbers(self, number: int) -> Callable[[int | None], dict[str, Any]]:
        places = self.traces[number].places

        def numbers(step: int | None) -> dict[str, Any]:
            state = self.at(step)["traces"][number]
            run, position, rows = state["where"]
            kept = [i for i, row in enumerate(rows) if row is not None]
            source = {"run": run, "step": position, "path": ["rows", [rows[i] for i in kept],
                                                             "value"]}  # fmt: skip
            found = {key: [state[key][i] for i in kept] for key in ("y", "error") if key in state}
            found["x"] = [list(places.values())[i] for i in kept]
            found["customdata"] = [plotly_text(list(places)[i]) for i in kept]
            return found | {"meta": {"source": {"y": source}}}

        return numbers

    def _chance_numbers(self, step: int | None) -> dict[str, Any]:
        band = self.at(step)["band"]
        return {
            "x": [x for x, _, _ in band],
            "y": page_numbers((low + high) / 2 for _, low, high in band),
            "error": page_numbers((high - low) / 2 for _, low, high in band),
            "meta": {"chance": True},
        }


def _places(layers: Sequence[str]) -> dict[str, float]:
    return {layer: (i + 0.5) / len(layers) for i, layer in enumerate(layers)}


def layer_chart(
    group: Group, family: str, lines: Sequence[Line], words: Words, *, log: bool = False,
    height: float = 120.0,
) -> Chart | None:  # fmt: skip
    """Measures over all layers of a group, a colour for each run; None without any number."""
    lines = [line for line in lines if group.measured(family, line.measure)]
    if not lines:
        return None
    places = _places(group.layers)
    several = len(group.runs) > 1
    traces = []
    for order, run in enumerate(group.runs):
        for number, line in enumerate(lines):
            if run.measured(family, line.measure):
                name = f"{line.words}, {plain(run.name)}" if several else line.words
                color = tone(group, family, order)
                traces.append(Trace(run, line, color, name, places, group.index, dash_of(number)))
    first = lines[0].measure
    of = lines[0].words if len(lines) > 1 else ""
    start = group.steps[0]
    if len(group.steps) > 1 and len(traces) == 1:
        begin = replace(
            traces[0],
            name=f"step {start}",
            step=start,
            dash="dot",
            color=LIGHT["muted"],
            line=replace(lines[0], with_chance=False),
        )
        traces.append(begin)
    return Chart(
        f"{family}-{first}".replace("_", "-"),
        family,
        words,
        tuple(traces),
        finding=lambda step: profile_sentence(group, family, first, step, of),
        legend=_legend(group, family, lines, traces),
        log=log,
        blocks=tuple(blocks_of(group.layers)),
        height=height,
    )


def difference_charts(group: Group, height: float) -> list[Chart]:
    """Headlines of every run minus those of the first, with the spread at chance level."""
    base, *others = group.runs
    charts = []
    for family, measure, heading in headlines(group):
        line = Line(measure, heading)
        traces = tuple(
            Trace(run, line, tone(group, family, order), plain(run.name), _places(group.layers),
                  group.index, base=base)
            for order, run in enumerate(others, start=1)
            if run.measured(family, measure) and base.measured(family, measure)
        )  # fmt: skip
        if traces and len(group.measured(family, measure)) > 1:
            words = Words(_title(heading), "")
            blocks = tuple(blocks_of(group.layers))
            key = f"difference-{measure}".replace("_", "-")
            charts.append(Chart(key, family, words, traces, blocks=blocks, height=height))
    return charts


def depth_chart(groups: Sequence[Group], family: str, measure: str, heading: str, height: float
                ) -> Chart | None:  # fmt: skip
    """One measure of networks of different depth, layers spread between input and output."""
    pairs = [(g, run) for g in groups for run in g.runs if run.measured(family, measure)]
    if len(pairs) < 2:
        return None
    everyone = Group(0, tuple(run for _, run in pairs))
    line = Line(measure, heading, with_chance=False)
    traces = tuple(
        Trace(
            run,
            line,
            tone(everyone, family, order),
            plain(run.name),
            _places(group.layers),
            group.index,
        )
        for order, (group, run) in enumerate(pairs)
    )
    key = f"depth-{measure}".replace("_", "-")
    return Chart(key, family, Words(_title(heading), ""), traces, height=height)


def _title(heading: str) -> str:
    return heading[0].upper() + heading[1:]


def headlines(group: Group) -> list[tuple[str, str, str]]:
    """Family, measure and heading of the first charts of a page, if the group has them."""
    # Low values are good in one of them. It comes last, so that all others have one direction.
    known = sorted((*PROBES.values(), *FAMILIES.values()), key=lambda f: f.lower_is_aligned)
    return [(f.key, f.headline, f.heading) for f in known if group.measured(f.key, f.headline)]


def _legend(
    group: Group, family: str, lines: Sequence[Line], traces: Sequence[Trace]
) -> tuple[Key, ...]:
    """Colors of runs, dashes of measures, and chance where it was drawn."""
    keys = list(legend_of(group, family, lines))
    keys += [Key(t.name, t.color, "line", t.dash) for t in traces if t.step is not None]
    if any(t.line.with_chance and t.chance(family, None) for t in traces):
        words = chance_band(lines[0].chance or FAMILIES[family].chance)
        keys.append(Key(words, LIGHT["null"], "band"))
    return tuple(keys)


def legend_of(group: Group, family: str, lines: Sequence[Line]) -> tuple[Key, ...]:
    """Colors of runs with numbers, and dashes of measures, if there are several."""
    several = len(group.runs) > 1
    keys = [
        Key(plain(run.name), tone(group, family, order))
        for order, run in enumerate(group.runs)
        if several and any(run.measured(family, line.measure) for line in lines)
    ]
    if len(lines) > 1:
        color = LIGHT["muted"] if several else tone(group, family, 0)
        keys += [
            Key(line.words, color, "dots" if line.marks_only else "line", dash_of(place))
            for place, line in enumerate(lines)
        ]
    return tuple(keys)
