"""Figures about whole runs: loss over steps, and networks of different depth side by side."""

from collections.abc import Sequence
from typing import Any

from theodolite.report._escape import plain, plotly_text, short
from theodolite.report._families import FAMILIES
from theodolite.report._figure import Figure, Panel, axis
from theodolite.report._numbers import carried, finite, shown
from theodolite.report._reading import Group, Moment, RunView
from theodolite.report._sentences import joined
from theodolite.report._traces import Line, Trace, dash_of, profile_trace

__all__ = ["balance_mark", "depth_figures", "loss_figure"]


def loss_figure(group: Group) -> Figure | None:
    """Loss on the probe over steps, one line a run."""
    if not any(run.last.index("gradient", "loss", None) is not None for run in group.runs):
        return None

    def draw(_: int | None) -> list[Trace]:
        return [_loss_line(run, order) for order, run in enumerate(group.runs)]

    layout = {"xaxis": axis("training step"), "yaxis": axis("loss")}
    return Figure(
        "steps-loss",
        "Loss on the probe",
        "The loss of each run on the examples that the other numbers are measured on.",
        (Panel("", draw, layout, fixed=True),),
        finding=lambda _: joined([_loss_sentence(run) for run in group.runs]),
    )


def _loss_line(run: RunView, order: int) -> Trace:
    moments = [m for m in run.moments if m.index("gradient", "loss", None) is not None]
    indices = [m.index("gradient", "loss", None) for m in moments]
    source = {
        "run": run.index,
        "step": [m.position for m in moments],
        "path": ["rows", indices, "value"],
    }
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "x": [m.step for m in moments],
        "y": carried(m.value("gradient", "loss", None) for m in moments),
        "name": plotly_text(run.name),
        "hovertemplate": "step %{x}: %{y:.3g}<extra>%{fullData.name}</extra>",
        "line": {"color": "ink", "dash": dash_of(order), "width": 2, "simplify": False},
        "marker": {"color": "ink", "size": 5, "symbol": ("circle", "circle-open")[order % 2]},
        "meta": {"source": {"y": source}},
    }


def _loss_sentence(run: RunView) -> str:
    first, last = (m.value("gradient", "loss", None) for m in (run.moments[0], run.last))
    if not (finite(first) and finite(last)):
        return ""
    return f"{plain(run.name)}: {shown(first)} → {shown(last)}."


def balance_mark(run: RunView, step: int | None, layers: list[str]) -> list[Trace]:
    """Where theory puts the balance of forward and backward information; plain stacks only."""
    moment = run.at(step)
    index = moment.index("tangent", "equilibrium_layer", None)
    value = moment.value("tangent", "equilibrium_layer", None)
    if index is None or not finite(value) or not layers:
        return []
    source = {
        "run": moment.run,
        "step": moment.position,
        "path": ["rows", [index], "value"],
        "offset": -1,
    }
    return [
        {
            "type": "scatter",
            "mode": "markers",
            "x": carried([value - 1]),
            "y": [0.0],
            "name": plotly_text(f"exact balance, {run.name}"),
            "hovertemplate": f"layer {shown(value)}<extra>%{{fullData.name}}</extra>",
            "marker": {"color": "ink", "size": 11, "symbol": "triangle-up-open"},
            "meta": {"source": {"x": source}},
        }
    ]


def depth_figures(groups: Sequence[Group]) -> list[Figure]:
    """The headline of each family over relative depth, all runs in one panel."""
    figures = [_depth_figure(groups, family) for family in FAMILIES]
    return [figure for figure in figures if figure is not None]


def _depth_figure(groups: Sequence[Group], family: str) -> Figure | None:
    words = FAMILIES[family]
    runs = [(run, group.measured(family, words.headline)) for group in groups for run in group.runs]
    present = [(run, layers) for run, layers in runs if layers]
    if not present:
        return None

    def draw(_: int | None) -> list[Trace]:
        return [
            _depth_line(run, layers, family, order) for order, (run, layers) in enumerate(present)
        ]

    layout: dict[str, Any] = {
        "xaxis": axis("relative depth", range=[-0.05, 1.05], tickvals=[0, 0.5, 1],
                      ticktext=["input", "middle", "output"]),
        "yaxis": axis(plotly_text(words.short)),
        "showlegend": True,
        "legend": {"orientation": "h", "y": -0.28, "font": {"size": 11, "color": "muted"}},
    }  # fmt: skip
    return Figure(
        f"depth-{family}",
        words.title,
        f"{words.meaning} Layers are spread evenly between input and output, so that networks of"
        " different depth can be laid over each other. Numbers of the latest step.",
        (Panel("", draw, layout, fixed=True, height=320),),
        finding=lambda _: joined(
            [_mean_sentence(run.last, run.name, family, ls) for run, ls in present]
        ),
    )


def _depth_line(run: RunView, layers: list[str], family: str, order: int) -> Trace:
    line = Line(FAMILIES[family].headline)
    trace = profile_trace(run, run.last, family, line, layers, order)
    trace.pop("error_y", None)
    trace["meta"]["source"].pop("error_y", None)
    # Depth among all layers: a family may have measured only some of them.
    places = [run.layers.index(layers[x]) for x in trace["x"]]
    trace["x"] = carried(place / max(1, len(run.layers) - 1) for place in places)
    trace["name"] = plotly_text(short(run.name))
    return trace


def _mean_sentence(moment: Moment, name: str, family: str, layers: list[str]) -> str:
    values = [(layer, moment.value(family, FAMILIES[family].headline, layer)) for layer in layers]
    known = [(layer, value) for layer, value in values if finite(value)]
    if not known:
        return ""
    layer, value = max(known, key=lambda item: item[1])
    return f"{plain(name)}: highest in {plain(layer)} ({shown(value)})."
