"""Figures that are maps: layers by steps, layers by classes, kernels of examples."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from plotly import graph_objects as go

from theodolite.records import FAMILIES
from theodolite.report._figures import Figure, Numbers, Panel, Series, Words, axes, layer_ticks
from theodolite.report._numbers import carried, finite, shown, spaced
from theodolite.report._reading import Group, Moment, RunView
from theodolite.report._sentences import family_sentence
from theodolite.report.pages import LIGHT, plain, plotly_text, short

__all__ = ["class_map", "kernel_maps", "step_maps"]

_MOST_COLUMNS = 24
_TEXT_COLUMNS = 13
_FEW_TICKS = 7
_MOST_CLASSES = 12  # whose names fit beside a map
_MOST_EXAMPLES = 40
_MOST_KERNELS = 4
_BLANK = 0.01  # of the largest number: a kernel that varies by less is a solid square
_ROW_HEIGHT, _MARGINS = 24, 64
_READING = (
    "Input at the top, output at the bottom, training from left to right. Blank is 0, the full"
    " color is the largest number of the maps in this figure; grey is below 0."
)
_COLORBAR = {
    "thickness": 8,
    "outlinewidth": 0,
    "len": 1.0,
    "nticks": 4,
    "tickfont": {"size": 10, "color": LIGHT["muted"]},
}

Limits = tuple[float, float]


@dataclass(frozen=True)
class _Table:
    """Numbers of a map: one path for each row, and the names of rows and columns."""

    values: Sequence[Sequence[float | None]]
    sources: Sequence[dict[str, Any]]
    rows: Sequence[str] = ()
    columns: Sequence[str] = ()

    def numbers(self) -> Numbers:
        """What a map draws; texts where its columns leave space for them."""
        z = [carried(row) for row in self.values]
        meta = {"source": {"z": list(self.sources)}, "rows": list(self.rows)}
        found: Numbers = {"z": z, "meta": meta | {"columns": list(self.columns)}}
        if self.has_texts:
            # Digits that a cell has space for; pointing at it shows more.
            found["text"] = [["" if v is None else _cell(v) for v in row] for row in z]
        return found

    @property
    def has_texts(self) -> bool:
        return 0 < len(self.columns) <= _TEXT_COLUMNS


def step_maps(
    group: Group, family: str, measure: str | None = None, name: str = ""
) -> Figure | None:
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
        _step_panel(group, run, table, family, limits)
        for run, table in zip(runs, tables, strict=True)
        if len(table.columns) > 1
    ]
    headline = measure == words.headline
    name = words.heading if headline else name or measure.replace("_", " ")
    title = f"{name[0].upper()}{name[1:]} over training"
    return Figure(
        f"steps-{family}-{measure}".replace("_", "-"),
        Words(title, _READING + _sketched(runs, family, measure)),
        tuple(panels),
        columns=min(2, len(panels)),
        roomy=True,
        finding=lambda step: family_sentence(group, family, step) if headline else "",
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
    panels = tuple(_class_panel(group, run, name, layers, limits) for run in runs)
    key = f"gradient-{name}".replace("_", "-")
    return Figure(key, words, panels, columns=min(2, len(panels)), roomy=True)


def kernel_maps(group: Group, name: str, words: Words) -> Figure | None:
    """Kernels between examples in class order, for layers where they differ, at the end."""
    telling = [
        layer for layer in group.curved("tangent", name)
        if any(_tells(run.with_curves_at(None), name, layer) for run in group.runs)
    ]  # fmt: skip
    layers = [telling[i] for i in spaced(len(telling), _MOST_KERNELS)]
    panels = [
        _kernel_panel(group, run, layer, name)
        for run in group.runs
        for layer in layers
        if _tells(run.with_curves_at(None), name, layer)
    ]
    if not panels:
        return None
    key = f"tangent-{name}".replace("_", "-")
    columns = min(len(layers), len(panels))
    return Figure(key, words, tuple(panels), columns=columns, roomy=True)


def _tells(moment: Moment, name: str, layer: str) -> bool:
    """Whether two examples differ from two others: a kernel of equal numbers is a solid square."""
    found = moment.array("tangent", name, layer, "matrix")
    if found is None:
        return False
    matrix = np.asarray(found[1], dtype=float)
    return bool(np.ptp(matrix) > _BLANK * np.abs(matrix).max(initial=0.0))


def _step_table(run: RunView, family: str, measure: str, layers: Sequence[str]) -> _Table:
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
    return _Table(values, sources, layers, [str(moment.step) for moment in moments])


def _step_panel(group: Group, run: RunView, table: _Table, family: str, limits: Limits) -> Panel:
    title = plain(run.name) if len(group.runs) > 1 else ""
    numbers = table.numbers()
    columns = [int(text) for text in table.columns]
    cursor = [max(0, sum(column <= step for column in columns) - 1) for step in group.steps]
    series = Series(_look(table, family, limits, title), lambda _: numbers)
    layout = _map_layout(table, "training step")
    return Panel(title, (series,), layout, cursor=cursor, height=_height(table.rows))


def _class_table(moment: Moment, name: str, layers: Sequence[str]) -> _Table:
    values, sources = [], []
    for layer in layers:
        key, numbers = moment.array("gradient", name, layer, "y") or ("", np.array([]))
        values.append([float(number) for number in numbers])
        path = ["arrays", key, list(range(len(numbers)))]
        sources.append({"run": moment.run, "step": moment.position, "path": path})
    return _Table(values, sources, layers, _class_names(moment, max(map(len, values))))


def _class_panel(
    group: Group, run: RunView, name: str, layers: Sequence[str], limits: Limits
) -> Panel:
    table = _class_table(run.with_curves_at(None), name, layers)

    def numbers(step: int | None) -> Numbers:
        return _class_table(run.with_curves_at(step), name, layers).numbers()

    title = plain(run.name) if len(group.runs) > 1 else ""
    series = Series(_look(table, "gradient", limits, name), numbers)
    return Panel(title, (series,), _map_layout(table, "class"), height=_height(layers))


def _kernel_panel(group: Group, run: RunView, layer: str, name: str) -> Panel:
    moment = run.with_curves_at(None)
    key, matrix = moment.array("tangent", name, layer, "matrix") or ("", np.zeros((0, 0)))
    kept = spaced(len(matrix), _MOST_EXAMPLES)
    # A map has a few dozen shades: three digits are more than it shows.
    values = [[float(f"{matrix[i, j]:.3g}") for j in kept] for i in kept]
    where = {"run": moment.run, "step": moment.position}
    table = _Table(values, [where | {"path": ["arrays", key, i, kept]} for i in kept])
    numbers = table.numbers()
    look = _look(table, "tangent", _limits([v for row in values for v in row]), layer)
    classes = moment.array("tangent", name, layer, "classes")
    ticks = {"showgrid": False} | (_class_ticks(moment, classes[1][kept]) if classes else {})
    layout = axes(
        "example, by class", "",
        xaxis={"range": [-0.5, len(kept) - 0.5]} | ticks,
        yaxis={"range": [len(kept) - 0.5, -0.5]} | ticks,
    )  # fmt: skip
    title = short(layer, 24) + (f", {short(run.name, 20)}" if len(group.runs) > 1 else "")
    return Panel(title, (Series(look, lambda _: numbers),), layout, height=250)


def _look(table: _Table, family: str, limits: Limits, name: str) -> Any:
    """A map of numbers; limits are (0 or -m, m)."""
    low, high = limits
    pale = LIGHT[f"{family}-pale"]
    # Blank at zero, the family's pale color at the top; grey below zero, where there is any.
    scale = [[0, LIGHT["surface"]], [1, pale]]
    if low < 0:
        scale = [[0, LIGHT["null"]], [0.5, LIGHT["surface"]], [1, pale]]
    gap = 1 if table.has_texts else 0
    look = go.Heatmap(
        zmin=low, zmax=high, colorscale=scale, colorbar=_COLORBAR, showscale=not table.has_texts,
        xgap=gap, ygap=gap, hoverongaps=False, name=plotly_text(name),
        hovertemplate="%{z:.3g}<extra>%{fullData.name}</extra>",
    )  # fmt: skip
    if table.has_texts:
        look.update(texttemplate="%{text}", textfont={"color": LIGHT["ink"], "size": 11})
    return look


def _map_layout(table: _Table, across: str) -> dict[str, Any]:
    # Numbered positions with texts: "0" and "10" as categories would become numbers.
    columns, layers = table.columns, table.rows
    many = len(columns) > _TEXT_COLUMNS  # then no two labels may stand side by side
    named = spaced(len(columns), _FEW_TICKS if many else len(columns))
    texts = [plotly_text(short(columns[i], 10)) for i in named]
    x: dict[str, Any] = {"range": [-0.5, len(columns) - 0.5], "showgrid": False}
    y: dict[str, Any] = {"range": [len(layers) - 0.5, -0.5], "showgrid": False}
    x |= {"tickvals": named, "ticktext": texts}
    return axes(across, "", xaxis=x, yaxis=y | layer_ticks(layers, most=40))


def _height(layers: Sequence[str]) -> int:
    return _MARGINS + _ROW_HEIGHT * max(2, len(layers))


def _cell(value: float) -> str:
    magnitude = abs(value)
    if magnitude >= 9.995 or (value and magnitude < 0.0005):
        return shown(value) if magnitude >= 9.995 else "0.00"
    return f"{value:.2f}" if magnitude >= 0.0995 else f"{value:.3f}"


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
