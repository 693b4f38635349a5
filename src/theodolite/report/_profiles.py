"""Figures of numbers over layers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from theodolite.report._escape import plotly_text
from theodolite.report._families import FAMILIES
from theodolite.report._figure import Figure, Panel, axis
from theodolite.report._reading import Group, RunView
from theodolite.report._sentences import profile_sentence
from theodolite.report._traces import Trace, layer_ticks, null_trace, profile_trace

__all__ = ["Line", "profile_figure", "profile_panel"]

_DODGE = 0.14


@dataclass(frozen=True)
class Line:
    """One measure within a profile.

    Args:
        measure: its name in the record.
        label: its words where several share a panel.
        color: a name of the palette; None for the family's.
        marks_only: dashes at each layer instead of a line.
    """

    measure: str
    label: str = ""
    color: str | None = None
    marks_only: bool = False


def profile_panel(
    group: Group, family: str, lines: Sequence[Line], *, title: str, log: bool = False,
    extra: Callable[[RunView, int | None, list[str]], list[Trace]] | None = None,
) -> Panel | None:  # fmt: skip
    """Measures over the layers that have them, every run in its own dash; None without any."""
    measured = {layer for line in lines for layer in group.measured(family, line.measure)}
    layers = [layer for layer in group.layers if layer in measured]
    if not layers:
        return None

    def draw(step: int | None) -> list[Trace]:
        nulls: list[Trace | None] = []
        traces: list[Trace | None] = []
        for order, run in enumerate(group.runs):
            offset = _DODGE * (order - (len(group.runs) - 1) / 2)
            for line in lines:
                where = (run, run.at(step), family, line.measure)
                nulls.append(null_trace(*where, layers=layers, offset=offset))
                traces.append(
                    profile_trace(
                        *where,
                        layers=layers,
                        order=order,
                        color=line.color,
                        label=line.label,
                        marks_only=line.marks_only,
                    )  # fmt: skip
                )
            traces += extra(run, step, layers) if extra else []
        return [trace for trace in nulls + traces if trace is not None]

    spread = [-0.4, len(layers) - 0.6]
    layout = {
        "xaxis": axis(title="input → output", range=spread, **layer_ticks(layers)),
        "yaxis": axis(plotly_text(title), log=log),
    }
    return Panel("", draw, layout)


def profile_figure(
    group: Group, family: str, lines: Sequence[Line], *, title: str, reading: str,
    log: bool = False, key: str | None = None,
    extra: Callable[[RunView, int | None, list[str]], list[Trace]] | None = None,
) -> Figure | None:  # fmt: skip
    """A profile as a figure of its own; its sentence is about the first measure."""
    short = FAMILIES[family].short if lines[0].measure == FAMILIES[family].headline else title
    panel = profile_panel(group, family, lines, title=short, log=log, extra=extra)
    if panel is None:
        return None
    return Figure(
        key or f"{family}-{lines[0].measure}".replace("_", "-"),
        title,
        reading,
        (panel,),
        finding=lambda step: profile_sentence(group, family, lines[0].measure, step),
    )
