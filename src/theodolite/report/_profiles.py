"""Figures of numbers of rows: over layers, over steps, and over depth for networks that differ."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from plotly import graph_objects as go

from theodolite.records import FAMILIES
from theodolite.report._figures import (
    Figure,
    Key,
    Numbers,
    Panel,
    Series,
    Words,
    axes,
    by_moment,
    dash_of,
    layer_ticks,
    rows_at,
    step_axis,
    tone,
)
from theodolite.report._reading import Group, Moment, RunView
from theodolite.report._sentences import loss_sentence, numbers_sentence, profile_sentence
from theodolite.report.pages import LIGHT, carried, finite, plain, plotly_text, short, shown, spaced

__all__ = [
    "TRUTH",
    "Line",
    "balance_mark",
    "depth_figures",
    "loss_figure",
    "profile_figure",
    "step_figure",
    "whole_figure",
]

TRUTH = "cka_truth"  # CKA to the true labels, where the target has others
_DODGE = 0.14
_MOST_PANELS = 8
_SYMBOLS = ("circle", "circle-open", "square", "diamond-open", "triangle-up", "x-thin-open")
_CHANCE_WIDTH = 2  # standard deviations: about 95 % of what chance gives
_HOVER = "%{customdata}: %{y:.3g}<extra>%{fullData.name}</extra>"

Extra = Callable[[RunView], Series]


@dataclass(frozen=True)
class Line:
    """One measure within a profile.

    Args:
        measure: its name in the record.
        label: its words.
        marks_only: short bars at each layer instead of a line.
        with_chance: whether what chance gives is drawn with it.
        chance: what chance is, where it is not that of the family's headline.
    """

    measure: str
    label: str = ""
    marks_only: bool = False
    with_chance: bool = True
    chance: str = ""

    @property
    def words(self) -> str:
        """What a legend calls it."""
        return self.label or self.measure.replace("_", " ")


def profile_figure(
    group: Group, family: str, lines: Sequence[Line], words: Words, *, y: str = "",
    log: bool = False, extra: Extra | None = None, extra_key: Key | None = None,
) -> Figure | None:  # fmt: skip
    """Measures over the layers that have them, a color for each run; None without any.

    One layer makes no profile: its numbers are drawn over steps, or written out. The sentence of
    the figure is about the first measure; ``y`` names what several have in common, and ``extra``
    may add a series to each run.
    """
    lines = [line for line in lines if group.measured(family, line.measure)]
    measured = {layer for line in lines for layer in group.measured(family, line.measure)}
    layers = [layer for layer in group.layers if layer in measured]
    if not layers:
        return None
    first = lines[0].measure
    figure = Figure(
        f"{family}-{first}".replace("_", "-"),
        words,
        (),
        finding=lambda step: profile_sentence(group, family, first, step),
        legend=_legend(group, family, lines),
    )
    if len(layers) == 1:
        panel = _over_steps(group, family, lines, layers[0], y=y, log=log)
        names = {line.measure: line.words for line in lines}
        told = replace(
            figure, finding=lambda step: numbers_sentence(group, family, names, layers[0], step)
        )
        return told if panel is None else replace(told, panels=(panel,))
    chance, series = [], []
    for order, run in enumerate(group.runs):
        # Chance levels of several runs stand beside each other: each belongs to its own run.
        offset = _DODGE * (order - (len(group.runs) - 1) / 2)
        for place, line in enumerate(lines):
            if not run.measured(family, line.measure):
                continue
            if line.with_chance:
                chance.append(_chance_series(run, family, line.measure, layers, offset))
            series.append(_profile_series(group, order, family, (place, line), layers))
        if extra is not None:
            series.append(extra(run))
    across = {"range": [-0.4, len(layers) - 0.6], **layer_ticks(layers)}
    layout = axes("input → output", y or lines[0].words, log="y" if log else "", xaxis=across)
    legend = figure.legend + ((extra_key,) if extra_key is not None else ())
    return replace(figure, panels=(Panel("", (*chance, *series), layout),), legend=legend)


def _legend(group: Group, family: str, lines: Sequence[Line]) -> tuple[Key, ...]:
    """Colors of runs, dashes of measures, and chance where it was drawn."""
    keys = []
    several = len(group.runs) > 1
    if several:
        keys += [
            Key(plain(run.name), tone(group, family, order))
            for order, run in enumerate(group.runs)
            if any(run.measured(family, line.measure) for line in lines)
        ]
    if len(lines) > 1:
        color = LIGHT["muted"] if several else tone(group, family, 0)
        keys += [
            Key(line.words, color, "dash" if line.marks_only else "line", dash_of(place))
            for place, line in enumerate(lines)
        ]
    if any(
        run.chance(None, family, line.measure, layer) is not None
        for run in group.runs for line in lines if line.with_chance for layer in group.layers
    ):  # fmt: skip
        chance = lines[0].chance or FAMILIES[family].chance
        words = f"chance: {chance}, mean ± 2 standard deviations"
        keys.append(Key(words, LIGHT["null"], "band"))
    return tuple(keys)


def _name(group: Group, run: RunView, line: Line) -> str:
    return plotly_text(f"{line.words}, {run.name}" if len(group.runs) > 1 else line.words)


def _profile_series(
    group: Group, order: int, family: str, placed: tuple[int, Line], layers: Sequence[str]
) -> Series:
    run, (place, line) = group.runs[order], placed
    color = tone(group, family, order)
    marker: dict[str, Any] = {"color": color, "size": 7, "symbol": _SYMBOLS[order % 6]}
    if line.marks_only:
        marker |= {"symbol": "line-ew-open", "size": 14, "line": {"width": 2}}
    look = go.Scatter(
        mode="markers" if line.marks_only else "lines+markers",
        name=_name(group, run, line),
        hovertemplate=_HOVER,
        line={"color": color, "dash": dash_of(place), "width": 2, "simplify": False},
        marker=marker,
        error_y={"type": "data", "color": color, "thickness": 1, "width": 3},
    )

    def numbers(moment: Moment) -> Numbers:
        at = _found(moment, family, line.measure, layers)
        indices = [i for _, i in at]
        rows = [moment.record.contents["rows"][i] for i in indices]
        source = {"y": rows_at(moment, indices, "value")}
        found: Numbers = {
            "x": [x for x, _ in at],
            "y": carried(row["value"] for row in rows),
            "customdata": [plotly_text(layers[x]) for x, _ in at],
            "meta": {"source": source},
        }
        if any(finite(row.get("error")) for row in rows):
            found["error"] = carried(row.get("error") for row in rows)
            source["error_y"] = rows_at(moment, indices, "error")
        return found

    return Series(look, by_moment(lambda step: run.holding(step, family, line.measure), numbers))


def _chance_series(
    run: RunView, family: str, measure: str, layers: Sequence[str], offset: float
) -> Series:
    """What chance gives this run: mean and two standard deviations."""
    look = go.Scatter(
        mode="markers",
        name=plotly_text(f"chance, {run.name}"),
        hovertemplate=_HOVER,
        marker={
            "color": LIGHT["muted"], "size": 9, "symbol": "line-ew-open", "line": {"width": 1}
        },
        error_y={"type": "data", "color": LIGHT["null"], "thickness": 9, "width": 0},
    )  # fmt: skip

    def numbers(moment: Moment) -> Numbers:
        rows = moment.record.contents["rows"]
        found = _found(moment, family, measure, layers)
        at = [(x, i) for x, i in found if finite(rows[i].get("null_mean"))]
        indices = [i for _, i in at]
        deviations = [rows[i].get("null_sd") for i in indices]
        source = {
            "y": rows_at(moment, indices, "null_mean"),
            "error_y": rows_at(moment, indices, "null_sd") | {"scale": _CHANCE_WIDTH},
        }
        return {
            "x": [x + offset for x, _ in at],
            "y": carried(rows[i]["null_mean"] for i in indices),
            "error": carried(_CHANCE_WIDTH * sd if finite(sd) else None for sd in deviations),
            "customdata": [plotly_text(layers[x]) for x, _ in at],
            "meta": {"source": source, "chance": True},
        }

    return Series(look, by_moment(lambda step: run.with_chance(step, family, measure), numbers))


def _found(
    moment: Moment, family: str, measure: str, layers: Sequence[str]
) -> list[tuple[int, int]]:
    """Position among the layers and in the rows, for the layers that have the measure."""
    found = [(x, moment.index(family, measure, layer)) for x, layer in enumerate(layers)]
    return [(x, i) for x, i in found if i is not None]


def balance_mark(run: RunView) -> Series:
    """Where theory puts the balance of forward and backward information; plain stacks only."""
    look = go.Scatter(
        mode="markers",
        name=plotly_text(f"exact balance, {run.name}"),
        hovertemplate="layer %{customdata}<extra>%{fullData.name}</extra>",
        marker={"color": LIGHT["ink"], "size": 11, "symbol": "triangle-up-open"},
    )

    def numbers(step: int | None) -> Numbers:
        moment = run.holding(step, "tangent", "equilibrium_layer")
        index = moment.index("tangent", "equilibrium_layer", None)
        value = moment.value("tangent", "equilibrium_layer", None)
        if index is None or not finite(value):
            return {"x": [], "y": [], "meta": {}}
        source = rows_at(moment, [index], "value") | {"offset": -1}
        return {
            "x": carried([value - 1]),
            "y": [0.0],
            "customdata": [shown(value)],
            "meta": {"source": {"x": source}},
        }

    return Series(look, numbers)


def loss_figure(group: Group) -> Figure | None:
    """Loss on the examples over steps, one line a run."""
    words = Words(
        "Loss on these examples",
        "The mean loss of each run on the examples of the probe.",
    )
    figure = whole_figure(group, "gradient", "loss", words)
    return figure and replace(figure, key="steps-loss", finding=lambda _: loss_sentence(group))


def whole_figure(group: Group, family: str, measure: str, words: Words) -> Figure | None:
    """A measure of the whole model over steps, one line a run; None without two steps."""
    panel = _over_steps(group, family, [Line(measure)], None)
    legend = _legend(group, family, [Line(measure, with_chance=False)])
    return None if panel is None else Figure(f"whole-{family}", words, (panel,), legend=legend)


def step_figure(group: Group, family: str) -> Figure | None:
    """The headline of a family over steps, a panel for each layer, a color for each run."""
    words = FAMILIES[family]
    layers = group.measured(family, words.headline)
    lines = [Line(words.headline, words.heading, with_chance=False)]
    reading = f"{words.question} A panel is a layer; steps are spread evenly."
    if family == "kernel" and group.measured(family, TRUTH):
        lines.append(Line(TRUTH, "CKA to the true labels", with_chance=False))
        reading += " Where a run was trained on other labels, CKA to the true ones is drawn too."
    y = "CKA" if len(lines) > 1 else ""
    made = {layer: _over_steps(group, family, lines, layer, y=y) for layer in layers}
    panels = {layer: panel for layer, panel in made.items() if panel is not None}
    names = list(panels)
    first = [names[i] for i in spaced(len(names), _MOST_PANELS)]
    if not panels:
        return None
    return Figure(
        f"lines-{family}",
        Words(f"{words.heading[0].upper()}{words.heading[1:]}, layer by layer", reading),
        tuple(panels[layer] for layer in first),
        tuple(panel for layer, panel in panels.items() if layer not in first),
        legend=_legend(group, family, lines),
        columns=min(4, len(first)),
        shared=True,
    )


def _over_steps(
    group: Group, family: str, lines: Sequence[Line], layer: str | None, *, y: str = "",
    log: bool = False,
) -> Panel | None:  # fmt: skip
    """Measures of one layer (or of the model) over steps; None where no run has two of them."""
    series = []
    longest = 0
    for order, run in enumerate(group.runs):
        for place, line in enumerate(lines):
            moments = [
                m for m in run.moments if m.index(family, line.measure, layer) is not None
            ]  # fmt: skip
            if not moments:
                continue
            longest = max(longest, len(moments))
            series.append(_step_series(group, order, family, (place, line), layer, moments))
    if longest < 2:
        return None
    across = step_axis(group.steps, spaced(len(group.steps), 5))
    layout = axes(
        "training step", y or lines[0].words, log="y" if log else "", xaxis=across
    )  # fmt: skip
    places = list(range(len(group.steps)))
    name = "" if layer is None else short(layer, 32)
    return Panel(name, tuple(series), layout, cursor=places, height=220)


def _step_series(
    group: Group, order: int, family: str, placed: tuple[int, Line], layer: str | None,
    moments: Sequence[Moment],
) -> Series:  # fmt: skip
    run, (place, line) = group.runs[order], placed
    color = tone(group, family, order)
    look = go.Scatter(
        mode="lines+markers",
        name=_name(group, run, line),
        hovertemplate="step %{customdata}: %{y:.3g}<extra>%{fullData.name}</extra>",
        line={"color": color, "dash": dash_of(place), "width": 2, "simplify": False},
        marker={"color": color, "size": 5, "symbol": _SYMBOLS[order % 2]},
    )
    indices = [m.index(family, line.measure, layer) for m in moments]
    source = {
        "run": run.index, "step": [m.position for m in moments], "path": ["rows", indices, "value"]
    }  # fmt: skip
    numbers = {
        "x": [group.steps.index(m.step) for m in moments],
        "y": carried(m.value(family, line.measure, layer) for m in moments),
        "customdata": [m.step for m in moments],
        "meta": {"source": {"y": source}},
    }
    return Series(look, lambda _: numbers)


def depth_figures(groups: Sequence[Group]) -> list[Figure]:
    """The headline of each family over relative depth, all runs in one panel."""
    figures = [_depth_figure(groups, family) for family in FAMILIES]
    return [figure for figure in figures if figure is not None]


def _depth_figure(groups: Sequence[Group], family: str) -> Figure | None:
    words = FAMILIES[family]
    found = [
        (run, group.measured(family, words.headline)) for group in groups for run in group.runs
    ]
    present = [(run, layers) for run, layers in found if run.measured(family, words.headline)]
    if not any(len(layers) > 1 for _, layers in present):
        return None
    everyone = Group(0, tuple(run for run, _ in present))
    line = Line(words.headline, with_chance=False)
    series = []
    for order, (run, layers) in enumerate(present):
        whole = _profile_series(everyone, order, family, (0, line), layers)
        look = whole.look.update(name=plotly_text(short(run.name)))
        series.append(Series(look, _at_depth(whole, run, layers)))
    across: dict[str, Any] = {"range": [-0.05, 1.05], "tickvals": [0, 0.5, 1]}
    across |= {"ticktext": ["input", "middle", "output"]}
    reading = (
        f"{words.question} Layers are spread evenly between input and output, so that networks of"
        " different depth can be laid over each other. Numbers of the latest step."
    )
    layout = axes("relative depth", words.heading, xaxis=across)
    return Figure(
        f"depth-{family}",
        Words(words.title, reading),
        (Panel("", tuple(series), layout, height=320),),
        finding=lambda _: " ".join(_peak_sentence(run, family, ls) for run, ls in present),
        legend=_legend(everyone, family, [line]),
    )


def _at_depth(
    whole: Series, run: RunView, layers: Sequence[str]
) -> Callable[[int | None], Numbers]:
    """Numbers over layers moved to their depth among all layers: a family may know only some."""

    def numbers(_: int | None) -> Numbers:
        found = whole.at(None)
        places = [run.layers.index(layers[x]) for x in found["x"]]
        depths = carried(place / max(1, len(run.layers) - 1) for place in places)
        meta = {"source": {"y": found["meta"]["source"]["y"]}}
        return {"x": depths, "y": found["y"], "customdata": found["customdata"], "meta": meta}

    return numbers


def _peak_sentence(run: RunView, family: str, layers: Sequence[str]) -> str:
    words = FAMILIES[family]
    moment = run.holding(None, family, words.headline)
    values = [(layer, moment.value(family, words.headline, layer)) for layer in layers]
    known = [(layer, value) for layer, value in values if finite(value)]
    if not known:
        return ""
    layer, value = max(known, key=lambda item: item[1])
    return f"{plain(run.name)}: highest in {plain(layer)} ({shown(value)})."
