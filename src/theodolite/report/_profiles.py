"""Figures of numbers over layers."""

from collections.abc import Callable, Sequence

from theodolite.records import FAMILIES
from theodolite.report._figure import Figure, Panel, Words, axis
from theodolite.report._reading import Group, RunView
from theodolite.report._sentences import profile_sentence
from theodolite.report._traces import Line, Trace, layer_ticks, null_trace, profile_trace
from theodolite.report.pages import plotly_text

__all__ = ["profile_figure"]

_DODGE = 0.14
Extra = Callable[[RunView, int | None, list[str]], list[Trace]]


def profile_figure(
    group: Group, family: str, lines: Sequence[Line], words: Words, *, log: bool = False,
    extra: Extra | None = None,
) -> Figure | None:  # fmt: skip
    """Measures over the layers that have them, every run in its own dash; None without any.

    The sentence of the figure is about the first measure; ``extra`` may add traces to each run.
    """
    measured = {layer for line in lines for layer in group.measured(family, line.measure)}
    layers = [layer for layer in group.layers if layer in measured]
    if not layers:
        return None
    first = lines[0].measure
    short = FAMILIES[family].heading if first == FAMILIES[family].headline else first
    layout = {
        "xaxis": axis("input → output", range=[-0.4, len(layers) - 0.6], **layer_ticks(layers)),
        "yaxis": axis(plotly_text(short.replace("_", " ")), log=log),
    }

    def draw(step: int | None) -> list[Trace]:
        return _profiles(group, family, lines, layers, step) + [
            trace for run in group.runs for trace in (extra(run, step, layers) if extra else [])
        ]

    return Figure(
        f"{family}-{first}".replace("_", "-"),
        words.title,
        words.reading,
        (Panel("", draw, layout),),
        finding=lambda step: profile_sentence(group, family, first, step),
    )


def _profiles(
    group: Group, family: str, lines: Sequence[Line], layers: list[str], step: int | None
) -> list[Trace]:
    nulls: list[Trace | None] = []
    traces: list[Trace] = []
    for order, run in enumerate(group.runs):
        # Nulls of several runs stand beside each other: each belongs to its own run.
        offset = _DODGE * (order - (len(group.runs) - 1) / 2)
        for line in lines:
            if not run.measured(family, line.measure):
                continue
            moment = run.holding(step, family, line.measure)
            if line.with_null:
                nulls.append(null_trace(run, moment, family, line.measure, layers, offset))
            traces.append(profile_trace(run, moment, family, line, layers, order))
    return [trace for trace in nulls if trace is not None] + traces
