"""Figures about whole runs: loss over steps, and networks of different depth side by side."""

from collections.abc import Sequence
from typing import Any

from theodolite.records import FAMILIES
from theodolite.report._figure import Figure, Panel, Words, axis
from theodolite.report._numbers import carried, finite, shown, spaced
from theodolite.report._reading import Group, Moment, RunView
from theodolite.report._sentences import joined
from theodolite.report._traces import Line, Trace, dash_of, profile_trace
from theodolite.report.pages import plain, plotly_text, short

__all__ = [
    "TRUTH",
    "balance_mark",
    "depth_figures",
    "loss_figure",
    "step_figure",
    "whole_figure",
]

_MOST_PANELS = 8
TRUTH = "cka_truth"  # CKA to the true labels, where the target has others


def loss_figure(group: Group) -> Figure | None:
    """Loss on the probe over steps, one line a run."""
    if not any(run.measured("gradient", "loss") for run in group.runs):
        return None
    return Figure(
        "steps-loss",
        "Loss on the probe",
        "The loss of each run on the examples that the other numbers are measured on.",
        (_whole_panel(group, "gradient", "loss", color="ink"),),
        finding=lambda _: joined([_loss_sentence(run) for run in group.runs]),
    )


def whole_figure(group: Group, family: str, measure: str, words: Words) -> Figure:
    """A measure of the whole model over steps, one line a run."""
    return Figure(
        f"whole-{family}", words.title, words.reading, (_whole_panel(group, family, measure),)
    )


def _whole_panel(group: Group, family: str, measure: str, color: str = "") -> Panel:
    def draw(_: int | None) -> list[Trace]:
        runs = enumerate(group.runs)
        return [_over_steps(run, family, measure, None, order, color) for order, run in runs]

    title = plotly_text(measure.replace("_", " "))
    return Panel("", draw, {"xaxis": axis("training step"), "yaxis": axis(title)}, fixed=True)


def step_figure(group: Group, family: str) -> Figure | None:
    """The headline of a family over steps, a panel for each layer, every run in its own dash."""
    words = FAMILIES[family]
    layers = group.measured(family, words.headline)
    if not layers or not group.is_history:
        return None
    panels = {layer: _step_panel(group, family, layer) for layer in layers}
    first = [layers[i] for i in spaced(len(layers), _MOST_PANELS)]
    reading = f"{words.question} A panel is a layer, a line is a run; steps are spread evenly."
    if family == "kernel" and group.measured(family, TRUTH):
        reading += " Dark: the same run with the true labels, where its target has others."
    return Figure(
        f"lines-{family}",
        f"{words.title}: {words.heading}, layer by layer",
        reading,
        tuple(panels[layer] for layer in first),
        tuple(panel for layer, panel in panels.items() if layer not in first),
        columns=min(4, len(first)),
        shared=True,
    )


def _step_panel(group: Group, family: str, layer: str) -> Panel:
    # Places among all steps: training steps are often spread over decades.
    places = {step: place for place, step in enumerate(group.steps)}
    named = spaced(len(group.steps), 5)
    texts = [str(group.steps[i]) for i in named]
    ticks: dict[str, Any] = {"tickvals": named, "ticktext": texts}
    across = [-0.5, len(places) - 0.5]

    def draw(_: int | None) -> list[Trace]:
        headline = FAMILIES[family].headline
        lines = [(run, order, headline, "") for order, run in enumerate(group.runs)]
        lines += [
            (run, order, TRUTH, "ink")
            for order, run in enumerate(group.runs)
            if run.measured(family, TRUTH)
        ]
        return [
            _over_steps(run, family, measure, layer, order, color)
            | {"x": [places[m.step] for m in _measured(run, family, layer, measure)]}
            for run, order, measure, color in lines
        ]

    layout = {
        "xaxis": axis("training step", range=across, tickangle=0, **ticks),
        "yaxis": axis(plotly_text(FAMILIES[family].heading)),
    }
    return Panel(short(layer, 32), draw, layout, fixed=True, height=220)


def _measured(run: RunView, family: str, layer: str | None, measure: str = "") -> list[Moment]:
    name = measure or FAMILIES[family].headline
    return [m for m in run.moments if m.index(family, name, layer) is not None]


def _over_steps(
    run: RunView, family: str, measure: str, layer: str | None, order: int, color: str = ""
) -> Trace:
    moments = _measured(run, family, layer, measure)
    indices = [m.index(family, measure, layer) for m in moments]
    steps = [m.position for m in moments]
    source = {"run": run.index, "step": steps, "path": ["rows", indices, "value"]}
    ink = color or family
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "x": [m.step for m in moments],
        "y": carried(m.value(family, measure, layer) for m in moments),
        "customdata": [m.step for m in moments],
        "name": plotly_text(f"true labels, {run.name}" if measure == TRUTH else run.name),
        "hovertemplate": "step %{customdata}: %{y:.3g}<extra>%{fullData.name}</extra>",
        "line": {"color": ink, "dash": dash_of(order), "width": 2, "simplify": False},
        "marker": {"color": ink, "size": 5, "symbol": ("circle", "circle-open")[order % 2]},
        "meta": {"source": {"y": source}},
    }


def _loss_sentence(run: RunView) -> str:
    moments = (run.moments[0], run.holding(None, "gradient", "loss"))
    first, last = (moment.value("gradient", "loss", None) for moment in moments)
    if not (finite(first) and finite(last)):
        return ""
    return f"{plain(run.name)}: {shown(first)} → {shown(last)}."


def balance_mark(run: RunView, step: int | None, layers: list[str]) -> list[Trace]:
    """Where theory puts the balance of forward and backward information; plain stacks only."""
    moment = run.holding(step, "tangent", "equilibrium_layer")
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
        "yaxis": axis(plotly_text(words.heading)),
        "showlegend": True,
        "legend": {"orientation": "h", "y": -0.28, "font": {"size": 11, "color": "muted"}},
    }  # fmt: skip
    return Figure(
        f"depth-{family}",
        words.title,
        f"{words.question} Layers are spread evenly between input and output, so that networks of"
        " different depth can be laid over each other. Numbers of the latest step.",
        (Panel("", draw, layout, fixed=True, height=320),),
        finding=lambda _: joined(
            [
                _mean_sentence(run.holding(None, family, words.headline), run.name, family, ls)
                for run, ls in present
            ]
        ),
    )


def _depth_line(run: RunView, layers: list[str], family: str, order: int) -> Trace:
    line = Line(FAMILIES[family].headline)
    moment = run.holding(None, family, line.measure)
    trace = profile_trace(run, moment, family, line, layers, order)
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
