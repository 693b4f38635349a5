"""Figures that are maps: layers by steps, layers by classes, kernels of examples."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from theodolite.records import FAMILIES
from theodolite.report._figure import Draw, Figure, Panel, Words, axis
from theodolite.report._numbers import finite, shown, spaced
from theodolite.report._reading import Group, Moment, RunView
from theodolite.report._sentences import overview_sentence
from theodolite.report._traces import Table, Trace, heatmap_trace, layer_ticks
from theodolite.report.pages import plain, plotly_text, short

__all__ = ["class_map", "kernel_maps", "step_maps"]

_MOST_COLUMNS = 24
_TEXT_COLUMNS = 13
_FEW_TICKS = 7
_MOST_CLASSES = 12  # whose names fit beside a map
_MOST_EXAMPLES = 40
_MOST_KERNELS = 4
_ROW_HEIGHT, _MARGINS = 24, 64
_READING = (
    "Input at the top, output at the bottom, training from left to right. Blank is 0, the full"
    " color is the largest number of the maps in this figure; grey is below 0."
)

Limits = tuple[float, float]


def step_maps(group: Group, family: str, measure: str | None = None) -> Figure | None:
    """A measure over layers and steps, a map for each run, all on one scale."""
    words = FAMILIES[family]
    measure = measure or words.headline
    layers = group.measured(family, measure)
    if not layers or not group.is_history:
        return None
    runs = [run for run in group.runs if run.measured(family, measure)]
    tables = [_step_table(run, family, measure, layers) for run in runs]
    limits = _limits([v for table in tables for row in table.values for v in row])
    panels = [
        _fixed_map(_run_title(group, run), table, family, limits)
        for run, table in zip(runs, tables, strict=True)
    ]
    headline = measure == words.headline
    name = words.heading if headline else measure.replace("_", " ")
    return Figure(
        f"steps-{family}-{measure}".replace("_", "-"),
        f"{words.title}: {name}",
        _READING + _sketched(runs, family, measure),
        tuple(panels),
        columns=min(2, len(panels)),
        roomy=True,
        finding=lambda _: overview_sentence(group, family) if headline else "",
    )


def _sketched(runs: Sequence[RunView], family: str, measure: str) -> str:
    """Of estimates, the error for each number of random probes: a monitor ends with more."""
    errors: dict[int, float] = {}
    for moment in (moment for run in runs for moment in run.moments):
        contents = moment.record.contents
        probes = contents.get("config", {}).get("sketch_vectors")
        for row in contents["rows"]:
            of_this = (row["family"], row["measure"], row["method"]) == (family, measure, "sketch")
            if of_this and probes is not None and finite(row["error"]):
                errors[probes] = max(errors.get(probes, 0.0), float(row["error"]))
    if not errors:
        return ""
    told = " and ".join(f"{n} (errors up to {shown(errors[n])})" for n in sorted(errors))
    last = " The last step has the most: a jump there may be the estimate's." * (len(errors) > 1)
    return f" Estimated with random probes, {told}.{last}"


def class_map(group: Group, name: str, words: Words) -> Figure | None:
    """A number for each layer and class, a map for each run."""
    layers = group.curved("gradient", name)
    if not layers:
        return None
    runs = [run for run in group.runs if run.drawn("gradient", name)]
    kept = [moment for run in runs for moment in run.curved]
    tables = [_class_table(moment, name, layers) for moment in kept]
    limits = _limits([v for table in tables for row in table.values for v in row])
    panels = []
    for run in runs:
        columns = _class_table(run.with_curves_at(None), name, layers).columns
        layout = _map_layout(layers, columns, "class")
        draw = _class_drawer(run, name, layers, limits)
        panels.append(Panel(_run_title(group, run), draw, layout, height=_height(layers)))
    key = f"gradient-{name}".replace("_", "-")
    across = min(2, len(panels))
    return Figure(key, words.title, words.reading, tuple(panels), columns=across, roomy=True)


def kernel_maps(group: Group, name: str, words: Words) -> Figure | None:
    """Kernels between examples in class order, for the layers that have them, at the end."""
    found = group.curved("tangent", name)
    layers = [found[i] for i in spaced(len(found), _MOST_KERNELS)]
    panels = [_kernel_panel(group, run, layer, name) for run in group.runs for layer in layers]
    present = tuple(panel for panel in panels if panel is not None)
    if not present:
        return None
    key = f"tangent-{name}".replace("_", "-")
    columns = min(len(layers), len(present))
    return Figure(key, words.title, words.reading, present, columns=columns, roomy=True)


def _step_table(run: RunView, family: str, measure: str, layers: Sequence[str]) -> Table:
    known = [m for m in run.moments if any(m.row(family, measure, la) for la in layers)]
    moments = [known[i] for i in spaced(len(known), _MOST_COLUMNS)]
    positions = [moment.position for moment in moments]
    values = [[m.value(family, measure, layer) for m in moments] for layer in layers]
    # A step without this layer leaves a gap, and no path.
    found = [[m.index(family, measure, layer) for m in moments] for layer in layers]
    sources = [
        {"run": run.index, "step": positions, "path": ["rows", indices, "value"]}
        for indices in found
    ]
    return Table(values, sources, layers, [str(moment.step) for moment in moments])


def _class_table(moment: Moment, name: str, layers: Sequence[str]) -> Table:
    values, sources = [], []
    for layer in layers:
        key, numbers = moment.array("gradient", name, layer, "y") or ("", np.array([]))
        values.append([float(number) for number in numbers])
        path = ["arrays", key, list(range(len(numbers)))]
        sources.append({"run": moment.run, "step": moment.position, "path": path})
    return Table(values, sources, layers, _class_names(moment, max(map(len, values))))


def _class_drawer(run: RunView, name: str, layers: Sequence[str], limits: Limits) -> Draw:
    def draw(step: int | None) -> list[Trace]:
        table = _class_table(run.with_curves_at(step), name, layers)
        texts = len(table.columns) <= _TEXT_COLUMNS
        return [heatmap_trace(table, "gradient", show_text=texts, limits=limits, name=name)]

    return draw


def _kernel_panel(group: Group, run: RunView, layer: str, name: str) -> Panel | None:
    moment = run.with_curves_at(None)
    found = moment.array("tangent", name, layer, "matrix")
    if found is None:
        return None
    key, matrix = found
    kept = spaced(len(matrix), _MOST_EXAMPLES)
    # A map has a few dozen shades: three digits are more than it shows.
    values = [[float(f"{matrix[i, j]:.3g}") for j in kept] for i in kept]
    where = {"run": moment.run, "step": moment.position}
    sources = [where | {"path": ["arrays", key, i, kept]} for i in kept]
    limits = _limits([v for row in values for v in row])
    table = Table(values, sources)
    trace = heatmap_trace(table, "tangent", show_text=False, limits=limits, name=layer)
    classes = moment.array("tangent", name, layer, "classes")
    ticks = _class_ticks(moment, classes[1][kept]) if classes is not None else {}
    layout = {
        "xaxis": axis("example, by class", range=[-0.5, len(kept) - 0.5], showgrid=False, **ticks),
        "yaxis": axis("", range=[len(kept) - 0.5, -0.5], showgrid=False, **ticks),
    }
    title = short(layer, 24) + (f", {short(run.name, 20)}" if len(group.runs) > 1 else "")
    return Panel(title, lambda _: [trace], layout, fixed=True, height=250)


def _fixed_map(title: str, table: Table, family: str, limits: Limits) -> Panel:
    texts = len(table.columns) <= _TEXT_COLUMNS
    trace = heatmap_trace(table, family, show_text=texts, limits=limits, name=title)
    layout = _map_layout(table.rows, table.columns, "training step")
    return Panel(title, lambda _: [trace], layout, fixed=True, height=_height(table.rows))


def _map_layout(layers: Sequence[str], columns: Sequence[str], across: str) -> dict[str, Any]:
    # Numbered positions with texts: "0" and "10" as categories would become numbers.
    many = len(columns) > _TEXT_COLUMNS  # then no two labels may stand side by side
    named = spaced(len(columns), _FEW_TICKS if many else len(columns))
    texts = [plotly_text(short(columns[i], 10)) for i in named]
    ticks: dict[str, Any] = {"tickvals": named, "ticktext": texts}
    rows = layer_ticks(layers, most=40)
    return {
        "xaxis": axis(across, range=[-0.5, len(columns) - 0.5], showgrid=False, **ticks),
        "yaxis": axis("", range=[len(layers) - 0.5, -0.5], showgrid=False, **rows),
    }


def _height(layers: Sequence[str]) -> int:
    return _MARGINS + _ROW_HEIGHT * max(2, len(layers))


def _run_title(group: Group, run: RunView) -> str:
    return plain(run.name) if len(group.runs) > 1 else ""


def _class_names(moment: Moment, count: int) -> list[str]:
    names = [str(name) for name in moment.record.contents.get("data", {}).get("classes") or []]
    return names if len(names) == count else [str(i) for i in range(count)]


def _class_ticks(moment: Moment, classes: np.ndarray) -> dict[str, Any]:
    numbers = np.asarray(classes).astype(int)
    known = moment.record.contents.get("data", {}).get("classes") or []
    names = dict(enumerate(str(name) for name in known))
    groups = [(int(c), np.flatnonzero(numbers == c)) for c in np.unique(numbers)]
    groups = [groups[i] for i in spaced(len(groups), _MOST_CLASSES)]
    return {
        "tickvals": [float(members.mean()) for _, members in groups],
        "ticktext": [plotly_text(short(names.get(c, str(c)), 8)) for c, _ in groups],
    }


def _limits(values: Sequence[float | None]) -> Limits:
    known = [float(v) for v in values if v is not None and finite(v)]
    largest = float(f"{max((abs(v) for v in known), default=0.0):.6g}") or 1.0
    # Both signs on one scale: a small negative number must not look like a large positive one.
    return (-largest if min(known, default=0.0) < 0 else 0.0, largest)
