"""Eigenvectors of patches and filters as pictures, one row above the other."""

from typing import Any

import numpy as np

from theodolite.report._escape import plain
from theodolite.report._figure import Figure, Panel, axis
from theodolite.report._numbers import carried
from theodolite.report._reading import Group, Moment, RunView
from theodolite.report._traces import Trace

__all__ = ["eigenvector_figure"]

_NAMES = ("patch_eigenvectors", "filter_eigenvectors")
_MOST_TILES = 10
_COLORS = 3
_SMALLEST = 2  # inputs that are no images have one line of pixels


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
        f"Eigenvectors of {data} and of {weights}, {plain(layer)}",
        "Upper row: directions of the data that this layer sees, strongest first. Lower row: the"
        f" same of its {weights}. Equal pictures in the same place (up to sign) mean aligned."
        + _guess(group, layer),
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
    count, channels, height, width = first[1].shape
    if min(height, width) < _SMALLEST:
        return None
    count = min(count, _MOST_TILES)
    down, across = 2 * height + 1, count * (width + 1) - 1
    middles = [(height - 1) / 2, height + 1 + (height - 1) / 2]
    layout = {
        "xaxis": axis(
            "eigenvector, strongest first", range=[-0.5, across - 0.5], showgrid=False,
            tickvals=[i * (width + 1) + (width - 1) / 2 for i in range(count)],
            ticktext=[str(i + 1) for i in range(count)],
        ),
        "yaxis": axis(
            "", range=[down - 0.5, -0.5], showgrid=False, tickvals=middles,
            ticktext=list(_subjects(group, layer)), scaleanchor="x", constrain="domain",
        ),
    }  # fmt: skip
    note = "" if channels in {1, _COLORS} else f" (channel 1 of {channels})"
    title = (plain(run.name) if len(group.runs) > 1 else "") + note

    def draw(step: int | None) -> list[Trace]:
        return [_mosaic(run.with_curves_at(step), layer)]

    return Panel(title, draw, layout, height=230)


def _mosaic(moment: Moment, layer: str) -> Trace:
    rows, keys = [], []
    for name in _NAMES:
        found = moment.array("covariance", name, layer, "images")
        if found is not None:
            keys.append(found[0])
            rows.append(_normalized(found[1][:_MOST_TILES]))
    tiles = np.concatenate([_side_by_side(row) for row in rows])[:-1]  # (down, across, channels)
    source = {
        "run": moment.run,
        "step": moment.position,
        "paths": [["arrays", key] for key in keys],
    }
    meta = {"meta": {"tiles": source}, "hoverinfo": "skip"}
    if tiles.shape[-1] == _COLORS:
        # nan marks the gaps between tiles; they show the page through a transparent pixel.
        alpha = np.where(np.isnan(tiles[..., :1]), 0, 255)
        colors = np.concatenate([np.nan_to_num(127.5 + 127.5 * tiles), alpha], axis=-1)
        return {
            "type": "image",
            "colormodel": "rgba256",
            "z": np.rint(colors).astype(int).tolist(),
        } | meta
    return {
        "type": "heatmap",
        "z": [carried(line, 3) for line in tiles[..., 0]],
        "zmin": -1,
        "zmax": 1,
        "colorscale": [[0, "covariance"], [0.5, "middle"], [1, "ink"]],
        "showscale": False,
        "hoverongaps": False,
    } | meta


def _normalized(images: np.ndarray) -> np.ndarray:
    """Each picture to [-1, 1] by its own largest number: eigenvectors have no size."""
    kept = images if images.shape[1] == _COLORS else images[:, :1]
    largest = np.abs(kept).max(axis=(1, 2, 3), keepdims=True)
    return kept / np.where(largest > 0, largest, 1)


def _side_by_side(images: np.ndarray) -> np.ndarray:
    """(k, channels, h, w) to (h + 1, k (w + 1) - 1, channels) with gaps of nan."""
    framed: Any = np.pad(
        images.astype(float), ((0, 0), (0, 0), (0, 1), (0, 1)), constant_values=np.nan
    )
    strip = np.concatenate(list(framed.transpose(0, 2, 3, 1)), axis=1)
    return strip[:, :-1]
