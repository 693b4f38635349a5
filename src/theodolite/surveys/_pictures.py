"""Eigenvectors of the first layer's data and weights as pictures."""

import math

import torch
from torch import Tensor, nn

from theodolite.errors import ShapeError
from theodolite.linalg import top_eigen
from theodolite.surveys._bench import Bench
from theodolite.surveys._layers import Layer
from theodolite.surveys._sheet import Sheet

__all__ = ["eigenvector_pictures", "require_image_shape"]

Shape = tuple[int, int, int]

_COUNT = 8
_COLORS = 3
_SMALLEST = 8  # pixels across: fewer inputs are hardly an image that was flattened
_CONV = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def eigenvector_pictures(
    bench: Bench, sheet: Sheet, layer: Layer, data: Tensor, weights: Tensor
) -> None:
    """Leading eigenvectors of patches and of filters, in the shape of the input."""
    shape, why = _picture_shape(bench, layer, len(data))
    count = min(_COUNT, len(data))
    for title, matrix in (("patch_eigenvectors", data), ("filter_eigenvectors", weights)):
        values, vectors = top_eigen(matrix, count)
        images = vectors.mT.reshape(count, *shape)
        arrays = {"images": images, "values": values}
        sheet.curve(layer, ("covariance", title), arrays, shape=why)


def _picture_shape(bench: Bench, layer: Layer, size: int) -> tuple[Shape, str]:
    """Channels, height and width of what the layer sees, and how they are known."""
    module = bench.model.get_submodule(layer.name)
    if isinstance(module, _CONV):
        taps = (1, 1, *module.kernel_size)[-2:]
        return (size // (taps[0] * taps[1]), taps[0], taps[1]), "kernel"
    asked = bench.settings.image_shape
    if asked is not None:
        return require_image_shape(asked, size), "given"
    first = bench.probe.batch.args[0] if bench.probe.batch.args else None
    given = tuple(first.shape[1:]) if isinstance(first, Tensor) else ()
    if len(given) in (2, 3) and torch.Size(given).numel() == size:
        return (*(1,) * (3 - len(given)), *given), "input"  # type: ignore[return-value]
    guessed = _guessed(size) if given == (size,) else None
    return ((1, 1, size), "none") if guessed is None else (guessed, "guessed")


def require_image_shape(asked: tuple[int, ...], size: int) -> Shape:
    """Height and width, or channels before them, that hold all the inputs.

    Raises:
        ShapeError: If they do not.
    """
    if len(asked) not in (2, 3) or math.prod(asked) != size or min(asked) < 1:
        raise ShapeError(
            f"image_shape: expected (height, width) or (channels, height, width) of {size} numbers "
            f"in all, the inputs of the first layer, got {tuple(asked)}"
        )
    return (*(1,) * (3 - len(asked)), *asked)  # type: ignore[return-value]


def _guessed(size: int) -> Shape | None:
    """A square, grey or in color, where the number of inputs allows one."""
    for channels in (1, _COLORS):
        side = math.isqrt(size // channels)
        if channels * side * side == size and side >= _SMALLEST:
            return channels, side, side
    return None
