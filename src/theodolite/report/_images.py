"""Eigenvectors of patches and filters as pictures, a few to a row, one row above the other."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from plotly import graph_objects as go

from theodolite.report._figures import Figure, Numbers, Panel, Series, Words, axes
from theodolite.report._numbers import carried
from theodolite.report._reading import Group, Moment, RunView
from theodolite.report.pages import LIGHT, plain

__all__ = ["eigenvector_figure"]

_NAMES = ("patch_eigenvectors", "filter_eigenvectors")
_MOST_TILES = 8
_ACROSS = 4  # pictures in a row: more are too small to read on a phone
_COLORS = 3
_PHONE = 340  # pixels across a panel, for which its shape is chosen
_LABELS = 56  # of them for what stands beside the pictures
_EDGE = 4
_SMALLEST = 2  # inputs that are no images have one line of pixels


@dataclass(frozen=True)
class _Grid:
    """Where the pictures stand, in pixels: a few of each kind above each other, then the next.

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
        """The pictures that stand side by side."""
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
    layers = [layer for layer in group.curved("covariance", _NAMES[0])
              if layer in group.curved("covariance", _NAMES[1])]  # fmt: skip
    if not layers:
        return None
    layer = layers[0]
    panels = [_panel(group, run, layer) for run in group.runs]
    present = tuple(panel for panel in panels if panel is not None)
    if not present:
        return None
    data, weights = _subjects(group, layer)
    return Figure(
        "covariance-eigenvectors",
        Words(
            f"Eigenvectors of {data} and of {weights}, {plain(layer)}",
            "Upper row of each pair: directions of the data that this layer sees, strongest first."
            f" Lower row: the same of its {weights}. Equal pictures above each other (up to sign)"
            " mean aligned." + _guess(group, layer),
        ),
        present,
        columns=min(2, len(panels)),
        roomy=True,
    )


def _known(group: Group, layer: str) -> str:
    """How the shape of the pictures is known: "kernel", "input", "given" or "guessed"."""
    found = [_label(run.with_curves_at(None), layer) for run in group.runs]
    return next((text for text in found if text), "kernel")


def _label(moment: Moment, layer: str) -> str:
    for curve in moment.record.contents.get("curves", []):
        if (curve["name"], curve.get("layer")) == (_NAMES[0], layer):
            return str(curve.get("labels", {}).get("shape", ""))
    return ""


def _subjects(group: Group, layer: str) -> tuple[str, str]:
    return ("patches", "filters") if _known(group, layer) == "kernel" else ("inputs", "weights")


def _guess(group: Group, layer: str) -> str:
    if _known(group, layer) != "guessed":
        return ""
    return " The inputs come as vectors; that they are square images is a guess (image_shape)."


def _panel(group: Group, run: RunView, layer: str) -> Panel | None:
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

    def numbers(step: int | None) -> Numbers:
        return _mosaic(run.with_curves_at(step), layer)

    look = go.Image(colormodel="rgba256", hoverinfo="skip")
    if channels != _COLORS:
        scale = [[0, LIGHT["covariance"]], [0.5, LIGHT["middle"]], [1, LIGHT["ink"]]]
        look = go.Heatmap(
            zmin=-1, zmax=1, colorscale=scale, showscale=False, hoverongaps=False, hoverinfo="skip"
        )
    high = (_PHONE - _LABELS - _EDGE) * grid.down / grid.across + 2 * _EDGE
    layout = _layout(grid, _subjects(group, layer))
    series = (Series(look, numbers),)
    return Panel(title, series, layout, height=round(1.5 * high), aspect=_PHONE / high)


def _layout(grid: _Grid, subjects: tuple[str, str]) -> dict[str, Any]:
    """Axes of pixels; beside each row stands what it shows."""
    rows = [(block, kind) for block in grid.blocks for kind in (0, 1)]
    tops = [grid.place(kind, block[0])[0] for block, kind in rows]
    bare: dict[str, Any] = {"showgrid": False, "showline": False, "ticks": ""}
    names: dict[str, Any] = {
        "tickvals": [top + (grid.height - 1) / 2 for top in tops],
        "ticktext": [f"{subjects[kind]}<br>{_numbers(block)}" for block, kind in rows],
    }
    square = {"scaleanchor": "x", "constrain": "domain"}
    return axes(
        "", "",
        xaxis={"range": [-0.5, grid.across - 0.5], "showticklabels": False} | bare,
        yaxis={"range": [grid.down - 0.5, -0.5]} | bare | names | square,
        margin={"l": _LABELS, "r": _EDGE, "t": _EDGE, "b": _EDGE},
    )  # fmt: skip


def _numbers(block: range) -> str:
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
    return {"z": [carried(line, 3) for line in tiles[..., 0]]} | meta


def _normalized(images: np.ndarray) -> np.ndarray:
    """Each picture to [-1, 1] by its own largest number: eigenvectors have no size."""
    kept = images if images.shape[1] == _COLORS else images[:, :1]
    largest = np.abs(kept).max(axis=(1, 2, 3), keepdims=True)
    return kept / np.where(largest > 0, largest, 1)
