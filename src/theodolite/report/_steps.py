"""Figures over training steps: a line for each run and measure, a panel for each layer."""

from collections.abc import Sequence
from dataclasses import replace

from plotly import graph_objects as go

from theodolite.advice.captions import loss_sentence
from theodolite.records import FAMILIES, Group, Moment, RunView, spaced
from theodolite.report._depth import Line, legend_of
from theodolite.report._figures import (
    MOST_PANELS,
    Figure,
    Panel,
    Series,
    Words,
    axes,
    dash_of,
    step_axis,
    tone,
)
from theodolite.report.pages import page_numbers, plotly_text, short

TRUTH = "cka_truth"  # CKA to the true labels, if the targets are other labels
_SYMBOLS = ("circle", "circle-open")


def loss_figure(group: Group) -> Figure | None:
    """Loss on the examples over steps, one line a run."""
    words = Words(
        "Loss on these examples",
        "The mean loss of each run on the examples of the probe set.",
    )
    figure = whole_figure(group, "gradient", "loss", words)
    return figure and replace(figure, key="steps-loss", finding=lambda _: loss_sentence(group))


def whole_figure(group: Group, family: str, measure: str, words: Words) -> Figure | None:
    """A measure of the whole model over steps, one line a run; None without two steps."""
    panel = over_steps(group, family, [Line(measure)], None)
    legend = legend_of(group, family, [Line(measure)])
    return None if panel is None else Figure(f"whole-{family}", words, (panel,), legend=legend)


def kernel_steps(group: Group) -> Figure | None:
    """CKA to labels over steps, a panel for each layer, a colour for each run."""
    family, words = "kernel", FAMILIES["kernel"]
    layers = group.measured(family, words.headline)
    lines = [Line(words.headline, words.heading)]
    reading = f"{words.question} A panel is a layer; steps are spread evenly."
    if group.measured(family, TRUTH):
        lines.append(Line(TRUTH, "CKA to the true labels"))
        reading += " If a run was trained on other labels, CKA to the true labels is drawn too."
    y = "CKA" if len(lines) > 1 else ""
    made = {layer: over_steps(group, family, lines, layer, y=y) for layer in layers}
    panels = {layer: panel for layer, panel in made.items() if panel is not None}
    names = list(panels)
    first = [names[i] for i in spaced(len(names), MOST_PANELS)]
    if not panels:
        return None
    return Figure(
        f"lines-{family}",
        Words(f"{words.heading[0].upper()}{words.heading[1:]}, layer by layer", reading),
        tuple(panels[layer] for layer in first),
        tuple(panel for layer, panel in panels.items() if layer not in first),
        legend=legend_of(group, family, lines),
        columns=min(4, len(first)),
        shared=True,
    )


def over_steps(
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
        "y": page_numbers(m.value(family, line.measure, layer) for m in moments),
        "customdata": [m.step for m in moments],
        "meta": {"source": {"y": source}},
    }
    return Series(look, lambda _: numbers)


def _name(group: Group, run: RunView, line: Line) -> str:
    return plotly_text(f"{line.words}, {run.name}" if len(group.runs) > 1 else line.words)
