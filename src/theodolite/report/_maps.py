"""Figures that are maps or pictures: layers by steps or classes, kernels, eigenvectors."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from plotly import graph_objects as go

from theodolite.advice.captions import layer_words, sketch_sentence
from theodolite.advice.pairs import LayerPairs, LayerSimilarity
from theodolite.records import FAMILIES, Group, Moment, RunView, finite, plain, shown, spaced
from theodolite.report._figures import (
    Figure,
    Numbers,
    Panel,
    Series,
    Words,
    axes,
    by_moment,
    layer_ticks,
)
from theodolite.report.pages import LIGHT, page_numbers, plotly_text, short

_MOST_COLUMNS = 24
_TEXT_COLUMNS, _TEXT_ROWS = 13, 40
_FEW_TICKS = 7
_MOST_CLASSES = 12  # whose names fit beside a map
_MOST_EXAMPLES = 40
_MOST_KERNELS = 4
_BLANK = 0.01  # of the largest number: a kernel that varies by less is a solid square
_ROW_HEIGHT, _MARGINS = 24, 64
_PAIRS_HEIGHT = 320  # as the figures that stand beside it
_READING = (
    "Input at the top, output at the bottom, training from left to right. Full colour: the largest"
    " number of this figure. No colour: 0, or undefined. Grey: below 0."
)
_COLORBAR = {
    "thickness": 8,
    "outlinewidth": 0,
    "len": 1.0,
    "nticks": 4,
    "tickfont": {"size": 10, "color": LIGHT["muted"]},
}

_NAMES = ("patch_eigenvectors", "filter_eigenvectors")
_MOST_TILES = 8
_ACROSS = 4  # pictures in a row: more are too small to read on a phone
_COLORS = 3
_PHONE = 340  # pixels across a panel, for which its shape is chosen
_LABELS = 56  # of them for what stands beside the pictures
_EDGE = 4
_SMALLEST = 2  # inputs that are no images have one line of pixels

Limits = tuple[float, float]


@dataclass(frozen=True)
class _Table:
    """Numbers of a map: one path for each row, and the names of rows and columns."""

    values: Sequence[Sequence[float | None]]
    sources: Sequence[dict[str, Any]]
    rows: Sequence[str] = ()
    columns: Sequence[str] = ()

    def numbers(self) -> Numbers:
        """The data of a map; with texts if its columns are wide enough."""
        z = [page_numbers(row) for row in self.values]
        meta = {"source": {"z": list(self.sources)}, "rows": list(self.rows)}
        found: Numbers = {"z": z, "meta": meta | {"columns": list(self.columns)}}
        if self.has_texts:
            # Digits that a cell has space for; pointing at it shows more.
            found["text"] = [["" if v is None else _cell(v) for v in row] for row in z]
        return found

    @property
    def has_texts(self) -> bool:
        return 0 < len(self.columns) <= _TEXT_COLUMNS and len(self.rows) <= _TEXT_ROWS


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
    moments = [_mapped(run, family, measure, layers) for run in runs]
    tables = [_step_table(m, family, measure, layers) for m in moments]
    limits = _limits([v for table in tables for row in table.values for v in row])
    panels = [
        _step_panel(group, run, table, [moment.step for moment in shown], family, limits)
        for run, table, shown in zip(runs, tables, moments, strict=True)
        if len(shown) > 1
    ]
    headline = measure == words.headline
    name = words.heading if headline else name or measure.replace("_", " ")
    title = f"{name[0].upper()}{name[1:]} over training"
    return Figure(
        f"steps-{family}-{measure}".replace("_", "-"),
        Words(title, _READING + sketch_sentence(runs, family, measure)),
        tuple(panels),
        columns=min(2, len(panels)),
        roomy=True,
    )


def class_map(group: Group, name: str, words: Words) -> Figure | None:
    """A number for each layer and class, a map for each run."""
    layers = group.layers_with_curve("gradient", name)
    if not layers:
        return None
    runs = [run for run in group.runs if run.has_curve("gradient", name)]
    kept = [moment for run in runs for moment in run.moments_with_curves]
    tables = [_class_table(moment, name, layers) for moment in kept]
    limits = _limits([v for table in tables for row in table.values for v in row])
    panels = tuple(_class_panel(group, run, name, layers, limits) for run in runs)
    key = f"gradient-{name}".replace("_", "-")
    return Figure(key, words, panels, columns=min(2, len(panels)), roomy=True)


def kernel_maps(group: Group, name: str, words: Words) -> Figure | None:
    """Kernels between examples in class order, at the last step; equal kernels are left out."""
    telling = [
        layer for layer in group.layers_with_curve("tangent", name)
        if any(_varies(run.with_curves_at(None), name, layer) for run in group.runs)
    ]  # fmt: skip
    layers = [telling[i] for i in spaced(len(telling), _MOST_KERNELS)]
    panels = [
        _kernel_panel(group, run, layer, name)
        for run in group.runs
        for layer in layers
        if _varies(run.with_curves_at(None), name, layer)
    ]
    if not panels:
        return None
    key = f"tangent-{name}".replace("_", "-")
    columns = min(len(layers), len(panels))
    return Figure(key, words, tuple(panels), columns=columns, roomy=True)


def pair_maps(pairs: LayerPairs, names: tuple[str, str]) -> list[Figure]:
    """Two similarities of every pair of layers, layers of the first model from top to bottom."""
    kinds = {
        "cka": (pairs.cka, "CKA of every pair of layers",
                "1: the same examples are similar in both layers. 0: chance level (debiased)."
                " Wide layers have high values."),
        "neighbours": (pairs.neighbours, "Mutual nearest neighbours of every pair of layers",
                       pairs.neighbours_reading),
    }  # fmt: skip
    return [_pair_map(key, *parts, names) for key, parts in kinds.items()]


def _pair_map(
    key: str, found: LayerSimilarity, title: str, reading: str, names: tuple[str, str]
) -> Figure:
    axes_of = (found.values.index, found.values.columns)
    rows, columns = ([plain(str(name)) for name in axis] for axis in axes_of)
    table = _Table(found.values.to_numpy(dtype=float).tolist(), (), rows, columns)
    numbers = table.numbers()
    numbers["meta"].pop("source")  # of two models together: no record holds them
    series = Series(_heatmap(table, "kernel", (0.0, 1.0), title), lambda _: numbers)
    layout = _map_layout(table, f"layers of {plotly_text(short(names[1]))}")
    layout["yaxis"]["title"] = {"text": f"layers of {plotly_text(short(names[0]))}"}
    panel = Panel("", (series,), layout, height=max(_PAIRS_HEIGHT, _height(rows)))
    text = found.sentence(names)
    words = Words(title, reading)
    return Figure(f"pairs-{key}", words, (panel,), roomy=True, finding=lambda _: text)


def _varies(moment: Moment, name: str, layer: str) -> bool:
    """Whether the numbers of a kernel differ; otherwise its map is a solid square."""
    found = moment.array("tangent", name, layer, "matrix")
    if found is None:
        return False
    matrix = np.asarray(found[1], dtype=float)
    return bool(np.ptp(matrix) > _BLANK * np.abs(matrix).max(initial=0.0))


def _mapped(run: RunView, family: str, measure: str, layers: Sequence[str]) -> list[Moment]:
    known = [m for m in run.moments if any(m.row(family, measure, la) for la in layers)]
    return [known[i] for i in spaced(len(known), _MOST_COLUMNS)]


def _step_table(
    moments: Sequence[Moment], family: str, measure: str, layers: Sequence[str]
) -> _Table:
    positions = [moment.position for moment in moments]
    values = [[m.value(family, measure, layer) for m in moments] for layer in layers]
    # A step without this layer leaves a gap, and no path.
    found = [[m.index(family, measure, layer) for m in moments] for layer in layers]
    sources = [
        {"run": moments[0].run, "step": positions, "path": ["rows", indices, "value"]}
        for indices in found
    ]
    return _Table(values, sources, layers, [str(moment.step) for moment in moments])


def _step_panel(
    group: Group, run: RunView, table: _Table, columns: Sequence[int], family: str, limits: Limits
) -> Panel:
    title = plain(run.name) if len(group.runs) > 1 else ""
    numbers = table.numbers()
    cursor = [max(0, sum(column <= step for column in columns) - 1) for step in group.steps]
    series = Series(_heatmap(table, family, limits, title), lambda _: numbers)
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

    def numbers(moment: Moment) -> Numbers:
        return _class_table(moment, name, layers).numbers()

    title = plain(run.name) if len(group.runs) > 1 else ""
    look = _heatmap(table, "gradient", limits, name)
    series = Series(look, by_moment(run.with_curves_at, numbers))
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
    look = _heatmap(table, "tangent", _limits([v for row in values for v in row]), layer)
    classes = moment.array("tangent", name, layer, "classes")
    ticks = {"showgrid": False} | (_class_ticks(moment, classes[1][kept]) if classes else {})
    layout = axes(
        "example, by class", "",
        xaxis={"range": [-0.5, len(kept) - 0.5]} | ticks,
        yaxis={"range": [len(kept) - 0.5, -0.5]} | ticks,
    )  # fmt: skip
    title = short(layer, 24) + (f", {short(run.name, 20)}" if len(group.runs) > 1 else "")
    return Panel(title, (Series(look, lambda _: numbers),), layout, height=250)


def _heatmap(table: _Table, family: str, limits: Limits, name: str) -> Any:
    """A map of numbers; limits are (0 or -m, m)."""
    low, high = limits
    pale = LIGHT[f"{family}-pale"]
    # Blank at zero, the family's pale colour at the top; grey below zero, where there is any.
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
    return axes(across, "", xaxis=x, yaxis=y | layer_ticks(layers))


def _height(layers: Sequence[str]) -> int:
    return _MARGINS + _ROW_HEIGHT * min(max(2, len(layers)), _TEXT_ROWS)


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


@dataclass(frozen=True)
class _Grid:
    """The position of every picture in pixels: a few of each kind in a column, then the next ones.

    Args:
        count: pictures of each kind.
        height: of a picture.
        width: of a picture.
    """

    count: int
    height: int
    width: int

    @classmethod
    def of(cls, images: np.ndarray) -> "_Grid":
        count, _, height, width = images.shape
        return cls(min(count, _MOST_TILES), height, width)

    @property
    def blocks(self) -> list[range]:
        """The pictures of one row."""
        starts = range(0, self.count, _ACROSS)
        return [range(i, min(i + _ACROSS, self.count)) for i in starts]

    def place(self, kind: int, number: int) -> tuple[int, int]:
        """The upper left pixel of a picture."""
        block, column = divmod(number, _ACROSS)
        pair = 2 * (self.height + 1) + self.height // 3
        return block * pair + kind * (self.height + 1), column * (self.width + 1)

    @property
    def down(self) -> int:
        return self.place(1, self.count - 1)[0] + self.height

    @property
    def across(self) -> int:
        return min(self.count, _ACROSS) * (self.width + 1) - 1

    def filled(self, kinds: Sequence[np.ndarray]) -> np.ndarray:
        """Pictures (k, channels, h, w) of each kind as (down, across, channels); gaps are nan."""
        canvas = np.full((self.down, self.across, kinds[0].shape[1]), np.nan)
        for kind, images in enumerate(kinds):
            for number in range(min(self.count, len(images))):
                top, left = self.place(kind, number)
                tile = images[number].transpose(1, 2, 0)
                canvas[top : top + self.height, left : left + self.width] = tile
        return canvas


def eigenvector_figure(group: Group) -> Figure | None:
    """Leading eigenvectors of the data's patches above those of the filters."""
    layers = [layer for layer in group.layers_with_curve("covariance", _NAMES[0])
              if layer in group.layers_with_curve("covariance", _NAMES[1])]  # fmt: skip
    if not layers:
        return None
    layer = layers[0]
    source = _shape_source(group, layer)
    data, weights = ("patches", "filters") if source == "kernel" else ("inputs", "weights")
    panels = [_picture_panel(group, run, layer, (data, weights)) for run in group.runs]
    present = tuple(panel for panel in panels if panel is not None)
    if not present:
        return None
    guess = " The inputs are vectors, so that square images are a guess." * (source == "guessed")
    return Figure(
        "covariance-eigenvectors",
        Words(
            f"Eigenvectors of {data} and of {weights}, {layer_words(layer)}",
            "Upper row of each pair: principal directions of the layer's inputs, strongest first."
            f" Lower row: those of its {weights}. The layer is aligned if both pictures of a pair"
            f" are equal up to sign.{guess}",
        ),
        present,
        columns=min(2, len(panels)),
        roomy=True,
    )


def _shape_source(group: Group, layer: str) -> str:
    """The source of the shape of the pictures: "kernel", "input", "given" or "guessed"."""
    found = [_label(run.with_curves_at(None), layer) for run in group.runs]
    return next((text for text in found if text), "kernel")


def _label(moment: Moment, layer: str) -> str:
    for curve in moment.record.contents.get("curves", []):
        if (curve["name"], curve.get("layer")) == (_NAMES[0], layer):
            return str(curve.get("labels", {}).get("shape", ""))
    return ""


def _picture_panel(
    group: Group, run: RunView, layer: str, subjects: tuple[str, str]
) -> Panel | None:
    moment = run.with_curves_at(None)
    first = moment.array("covariance", _NAMES[0], layer, "images")
    if first is None:
        return None
    channels = first[1].shape[1]
    grid = _Grid.of(first[1])
    if min(grid.height, grid.width) < _SMALLEST:
        return None
    note = "" if channels in {1, _COLORS} else f" (channel 1 of {channels})"
    title = (plain(run.name) if len(group.runs) > 1 else "") + note

    numbers = by_moment(run.with_curves_at, lambda moment: _mosaic(moment, layer))
    look = go.Image(colormodel="rgba256", hoverinfo="skip")
    if channels != _COLORS:
        scale = [[0, LIGHT["covariance"]], [0.5, LIGHT["middle"]], [1, LIGHT["ink"]]]
        look = go.Heatmap(
            zmin=-1, zmax=1, colorscale=scale, showscale=False, hoverongaps=False, hoverinfo="skip"
        )
    high = (_PHONE - _LABELS - _EDGE) * grid.down / grid.across + 2 * _EDGE
    layout = _picture_layout(grid, subjects)
    series = (Series(look, numbers),)
    return Panel(title, series, layout, height=round(1.5 * high), aspect=_PHONE / high)


def _picture_layout(grid: _Grid, subjects: tuple[str, str]) -> dict[str, Any]:
    """Axes of pixels; a label beside each row says what it shows."""
    rows = [(block, kind) for block in grid.blocks for kind in (0, 1)]
    tops = [grid.place(kind, block[0])[0] for block, kind in rows]
    bare: dict[str, Any] = {"showgrid": False, "showline": False, "ticks": ""}
    names: dict[str, Any] = {
        "tickvals": [top + (grid.height - 1) / 2 for top in tops],
        "ticktext": [f"{subjects[kind]}<br>{_block_words(block)}" for block, kind in rows],
    }
    square = {"scaleanchor": "x", "constrain": "domain"}
    return axes(
        "", "",
        xaxis={"range": [-0.5, grid.across - 0.5], "showticklabels": False} | bare,
        yaxis={"range": [grid.down - 0.5, -0.5]} | bare | names | square,
        margin={"l": _LABELS, "r": _EDGE, "t": _EDGE, "b": _EDGE},
    )  # fmt: skip


def _block_words(block: range) -> str:
    return str(block[0] + 1) if len(block) == 1 else f"{block[0] + 1}–{block[-1] + 1}"


def _mosaic(moment: Moment, layer: str) -> Numbers:
    found = [moment.array("covariance", name, layer, "images") for name in _NAMES]
    known = [item for item in found if item is not None]
    keys = [key for key, _ in known]
    tiles = _Grid.of(known[0][1]).filled([_normalized(images) for _, images in known])
    where = {"run": moment.run, "step": moment.position}
    meta = {"meta": {"tiles": where | {"paths": [["arrays", key] for key in keys]}}}
    if tiles.shape[-1] == _COLORS:
        # nan marks the gaps between tiles; they show the page through a transparent pixel.
        alpha = np.where(np.isnan(tiles[..., :1]), 0, 255)
        colors = np.concatenate([np.nan_to_num(127.5 + 127.5 * tiles), alpha], axis=-1)
        return {"z": np.rint(colors).astype(int).tolist()} | meta
    return {"z": [page_numbers(line, 3) for line in tiles[..., 0]]} | meta


def _normalized(images: np.ndarray) -> np.ndarray:
    """Each picture scaled to [-1, 1] by its largest number, because eigenvectors have no size."""
    kept = images if images.shape[1] == _COLORS else images[:, :1]
    largest = np.abs(kept).max(axis=(1, 2, 3), keepdims=True)
    return kept / np.where(largest > 0, largest, 1)
