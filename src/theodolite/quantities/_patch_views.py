"""Patches of images as strided views, with as few copies as the products on them allow."""

from torch import Tensor
from torch.nn import functional

from theodolite.capture.forms import Geometry

__all__ = ["has_strips", "patch_views", "strip_windows"]


def patch_views(images: Tensor, geometry: Geometry, *, examples_inside: bool) -> Tensor:
    """Patches ``(n, T, taps * channels)`` as a view of ``(D, n, T)`` or of ``(n, D, T)``.

    With examples inside, the rows of all examples form one matrix without a further copy; with
    examples outside, each example's matrix is contiguous.
    """
    count, channels = images.shape[:2]
    sizes = geometry.output_size(tuple(images.shape[2:]))
    padded = _padded(images, geometry)
    lead = (channels, count) if examples_inside else (count, channels)
    axis = 0 if examples_inside else 1
    source = padded.transpose(0, 1) if examples_inside else padded
    shape = (geometry.taps, *lead) if examples_inside else (count, geometry.taps, channels)
    result = images.new_empty(*shape, *sizes)
    for index, offset in enumerate(geometry.offsets()):
        spans = zip(offset, sizes, geometry.stride, strict=True)
        window = tuple(slice(o, o + (s - 1) * t + 1, t) for o, s, t in spans)
        result.select(axis, index).copy_(source[(slice(None), slice(None), *window)])
    if examples_inside:
        return result.flatten(0, 1).flatten(2).permute(1, 2, 0)
    return result.flatten(1, 2).flatten(2).transpose(1, 2)


def has_strips(geometry: Geometry) -> bool:
    """Whether taps of one column are windows of one buffer: two axes, no stride along the first."""
    return len(geometry.kernel) == 2 and geometry.stride[0] == 1


def strip_windows(images: Tensor, geometry: Geometry) -> list[Tensor]:
    """For each row of the kernel its taps' entries, ``(n, columns * channels, T)``, as a view.

    Shifts along the second axis are copied, once per column of the kernel. A shift along the first
    moves by whole lines, which is an offset into the same buffer: a third of the copies for 3x3.
    """
    sizes = geometry.output_size(tuple(images.shape[2:]))
    padded = _padded(images, geometry)
    count, channels, height = padded.shape[:3]
    rows, columns = geometry.kernel
    strips = images.new_empty(count, columns, channels, height, sizes[1])
    for column in range(columns):
        start = column * geometry.dilation[1]
        stop = start + (sizes[1] - 1) * geometry.stride[1] + 1
        strips[:, column].copy_(padded[:, :, :, start : stop : geometry.stride[1]])
    flat = strips.view(count, columns * channels, height * sizes[1])
    step, length = geometry.dilation[0] * sizes[1], sizes[0] * sizes[1]
    return [flat[:, :, row * step : row * step + length] for row in range(rows)]


def _padded(images: Tensor, geometry: Geometry) -> Tensor:
    edges = [edge for width in reversed(geometry.padding) for edge in (width, width)]
    return functional.pad(images, edges) if any(edges) else images
