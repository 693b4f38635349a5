"""Figures that are maps: layers by steps, layers by classes, kernels of examples."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from theodolite.report._escape import plain, plotly_text, short
from theodolite.report._families import FAMILIES
from theodolite.report._figure import Figure, Panel, axis
from theodolite.report._numbers import carried, finite, spaced
from theodolite.report._reading import Group, Moment, RunView
from theodolite.report._sentences import headline_sentence
from theodolite.report._traces import Trace, heatmap_trace, layer_ticks

__all__ = ["class_map", "kernel_maps", "step_maps"]

_MOST_COLUMNS = 24
_TEXT_COLUMNS = 13
_MOST_EXAMPLES = 40
_ROW_HEIGHT, _MARGINS = 24, 64


def step_maps(group: Group, family: str, measure: str | None = None) -> Figure | None:
    """A measure over layers and steps, a map for each run, all on one scale."""
    measure = measure or FAMILIES[family].headline
    layers = group.measured(family, measure)
    if not layers or not group.is_history:
        return None
    tables = [_step_table(run, family, measure, layers) for run in group.runs]
    limits = _limits([value for values, _, _ in tables for row in values for value in row])
    panels = [
        _map_panel(
            plain(run.name) if len(group.runs) > 1 else "", values, sources, family, limits,
            layers, [str(step) for step in steps], "training step",
        )
        for run, (values, sources, steps) in zip(group.runs, tables, strict=True)
    ]  # fmt: skip
    short_name = FAMILIES[family].short if measure == FAMILIES[family].headline else measure
    return Figure(
        f"steps-{family}-{measure}".replace("_", "-"),
        f"{FAMILIES[family].title}: {short_name.replace('_', ' ')}",
        "Input at the top, output at the bottom, training from left to right. Blank is 0, the full"
        " color is the largest number of the maps in this figure; grey is below 0.",
        tuple(panels),
        columns=min(2, len(panels)),
        finding=lambda _: (
            headline_sentence(group, family) if measure == FAMILIES[family].headline else ""
        ),
    )


def _step_table(
    run: RunView, family: str, measure: str, layers: Sequence[str]
) -> tuple[list[list[float]], list[dict[str, Any]], list[int]]:
    moments = [run.moments[i] for i in spaced(len(run.moments), _MOST_COLUMNS)]
    # A step that lacks one of the layers leaves a gap: path None.
    found = [[m.index(family, measure, layer) for m in moments] for layer in layers]
    values = [[m.value(family, measure, layer) for m in moments] for layer in layers]
    positions = [m.position for m in moments]
    sources = [
        {"run": run.index, "step": positions, "path": ["rows", indices, "value"]}
        for indices in found
    ]
    return values, sources, [m.step for m in moments]


def class_map(group: Group, name: str, *, title: str, reading: str) -> Figure | None:
    """A number for each layer and class, a map for each run."""
    layers = group.curved("gradient", name)
    if not layers:
        return None

    def table(moment: Moment) -> tuple[list[list[float]], list[dict[str, Any]]]:
        values, sources = [], []
        for layer in layers:
            found = moment.array("gradient", name, layer, "y")
            key, numbers = found if found is not None else ("", np.array([]))
            values.append([float(v) for v in numbers])
            path = ["arrays", key, list(range(len(numbers)))]
            sources.append({"run": moment.run, "step": moment.position, "path": path})
        return values, sources

    everything = [
        v for run in group.runs for m in run.moments if m.has_curves for r in table(m)[0] for v in r
    ]
    limits = _limits(everything)
    panels = []
    for order, run in enumerate(group.runs):

        def draw(step: int | None, run_index: int = order) -> list[Trace]:
            values, sources = table(group.runs[run_index].with_curves_at(step))
            texts = len(values[0]) <= _TEXT_COLUMNS
            columns = _class_names(group.runs[run_index].last, len(values[0]))
            trace = heatmap_trace(
                values,
                sources,
                "gradient",
                show_text=texts,
                limits=limits,
                name=name,
                names=(layers, columns),
            )
            return [trace]

        classes = _class_names(
            run.last, max(len(row) for row in table(run.with_curves_at(None))[0])
        )
        title_of_run = plain(run.name) if len(group.runs) > 1 else ""
        panels.append(
            Panel(title_of_run, draw, _map_layout(layers, classes, "class"), height=_height(layers))
        )
    return Figure(
        f"gradient-{name}".replace("_", "-"),
        title,
        reading,
        tuple(panels),
        columns=min(2, len(panels)),
    )


def kernel_maps(group: Group, name: str, *, title: str, reading: str) -> Figure | None:
    """Kernels between examples in class order, for the layers that have them, at the end."""
    layers = group.curved("tangent", name)
    layers = [layers[i] for i in spaced(len(layers), 4)]
    panels = [
        panel for run in group.runs for layer in layers
        if (panel := _kernel_panel(group, run, layer, name)) is not None
    ]  # fmt: skip
    if not panels:
        return None
    return Figure(
        f"tangent-{name}".replace("_", "-"),
        title,
        reading,
        tuple(panels),
        columns=min(4, max(2, len(panels))),
    )


def _kernel_panel(group: Group, run: RunView, layer: str, name: str) -> Panel | None:
    moment = run.with_curves_at(None)
    found = moment.array("tangent", name, layer, "matrix")
    if found is None:
        return None
    key, matrix = found
    kept = spaced(len(matrix), _MOST_EXAMPLES)
    values = [carried((matrix[i, j] for j in kept), 3) for i in kept]
    # A map has a few dozen shades: three digits are more than it shows.
    paths = [["arrays", key, i, kept] for i in kept]
    sources = [{"run": moment.run, "step": moment.position, "path": path} for path in paths]
    limits = _limits([v for row in values for v in row])
    trace = heatmap_trace(values, sources, "tangent", show_text=False, limits=limits, name=layer)
    classes = moment.array("tangent", name, layer, "classes")
    ticks = _class_ticks(moment, classes[1][kept]) if classes is not None else {}
    layout = {
        "xaxis": axis("example, by class", range=[-0.5, len(kept) - 0.5], showgrid=False, **ticks),
        "yaxis": axis("", range=[len(kept) - 0.5, -0.5], showgrid=False, **ticks),
    }
    title = short(layer, 24) + (f", {short(run.name, 20)}" if len(group.runs) > 1 else "")
    return Panel(title, lambda _: [trace], layout, fixed=True, height=260)


def _map_panel(
    title: str, values: Sequence[Sequence[float]], sources: Sequence[dict[str, Any]], family: str,
    limits: tuple[float, float], layers: Sequence[str], columns: Sequence[str], across: str,
) -> Panel:  # fmt: skip
    texts = len(columns) <= _TEXT_COLUMNS
    trace = heatmap_trace(
        values, sources, family, show_text=texts, limits=limits, name=title, names=(layers, columns)
    )
    return Panel(
        title,
        lambda _: [trace],
        _map_layout(layers, columns, across),
        fixed=True,
        height=_height(layers),
    )


def _map_layout(layers: Sequence[str], columns: Sequence[str], across: str) -> dict[str, Any]:
    # Numbered positions with texts: "0" and "10" as categories would become numbers.
    shown_columns = spaced(len(columns), _TEXT_COLUMNS)
    ticks = {
        "tickvals": shown_columns,
        "ticktext": [plotly_text(short(columns[i], 10)) for i in shown_columns],
    }
    return {
        "xaxis": axis(across, range=[-0.5, len(columns) - 0.5], showgrid=False, **ticks),
        "yaxis": axis(
            "", range=[len(layers) - 0.5, -0.5], showgrid=False, **layer_ticks(layers, most=40)
        ),
    }


def _height(layers: Sequence[str]) -> int:
    return _MARGINS + _ROW_HEIGHT * max(2, len(layers))


def _class_names(moment: Moment, count: int) -> list[str]:
    names = [str(name) for name in moment.record.contents.get("data", {}).get("classes") or []]
    return names if len(names) == count else [str(i) for i in range(count)]


def _class_ticks(moment: Moment, classes: np.ndarray) -> dict[str, Any]:
    numbers = np.asarray(classes).astype(int)
    names = _class_names(moment, int(numbers.max(initial=0)) + 1)
    groups = [(c, np.flatnonzero(numbers == c)) for c in np.unique(numbers)]
    return {
        "tickvals": [float(members.mean()) for _, members in groups],
        "ticktext": [plotly_text(short(names[int(c)], 8)) for c, _ in groups],
    }


def _limits(values: Sequence[float | None]) -> tuple[float, float]:
    known = [float(v) for v in values if v is not None and finite(v)]
    low, high = min([0.0, *known]), max([0.0, *known])
    return (float(f"{low:.6g}"), float(f"{high:.6g}") if high > low else low + 1.0)
