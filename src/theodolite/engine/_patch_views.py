"""Patches of images as strided views, with as few copies as the products on them allow."""

from collections.abc import Iterator

from torch import Tensor
from torch.nn import functional

from theodolite.engine.forms import Geometry

__all__ = ["TapColumns", "has_strips", "patch_views", "strip_windows", "tap_groups"]

_WIDE = 192  # columns that make a product efficient


def patch_views(images: Tensor, geometry: Geometry, *, examples_inside: bool) -> Tensor:
    """Patches ``(n, T, taps * channels)`` as a view of ``(D, n, T)`` or of ``(n, D, T)``.

    With examples inside, the rows of all examples form one matrix without a further copy; with
    examples outside, each example's matrix is contiguous.
    """
    axes = len(geometry.kernel)
    windows = _padded(images, geometry)
    for axis in range(axes):
        windows = _windows(windows, geometry, axis)
    positions, taps = range(2, 2 + axes), range(2 + axes, 2 + 2 * axes)
    if examples_inside:
        patches = windows.permute(*taps, 1, 0, *positions).contiguous()
        return patches.flatten(axes + 2).flatten(0, axes).permute(1, 2, 0)
    patches = windows.permute(0, *taps, 1, *positions).contiguous()
    return patches.flatten(axes + 2).flatten(1, axes + 1).transpose(1, 2)


def _windows(images: Tensor, geometry: Geometry, axis: int) -> Tensor:
    """A view with the taps along one spatial axis as a new last axis."""
    step = geometry.dilation[axis]
    reach = (geometry.kernel[axis] - 1) * step + 1
    return images.unfold(2 + axis, reach, geometry.stride[axis])[..., ::step]


def has_strips(geometry: Geometry) -> bool:
    """Whether taps of one column are windows of one buffer: two axes, no stride along the first."""
    return len(geometry.kernel) == 2 and geometry.stride[0] == 1


def strip_windows(images: Tensor, geometry: Geometry) -> list[Tensor]:
    """For each row of the kernel its taps' entries, ``(n, columns * channels, T)``, as a view.

    Shifts along the second axis are copied, once per column of the kernel. A shift along the first
    moves by whole lines, which is an offset into the same buffer: a third of the copies for 3x3.
    """
    sizes = geometry.output_size(tuple(images.shape[2:]))
    taps = _windows(_padded(images, geometry), geometry, 1)  # (n, channels, height, T_1, columns)
    strips = taps.permute(0, 4, 1, 2, 3).contiguous()
    flat = strips.flatten(1, 2).flatten(2)
    step, length = geometry.dilation[0] * sizes[1], sizes[0] * sizes[1]
    return [flat[:, :, row * step : row * step + length] for row in range(geometry.kernel[0])]


def _padded(images: Tensor, geometry: Geometry) -> Tensor:
    edges = [edge for width in reversed(geometry.padding) for edge in (width, width)]
    return functional.pad(images, edges) if any(edges) else images


def tap_groups(geometry: Geometry, channels: int, columns: int) -> list[slice]:
    """Taps of a kernel in equal groups of at most this many columns, and at least one tap."""
    taps = geometry.taps
    size = max(
        k for k in range(1, taps + 1) if taps % k == 0 and (k == 1 or k * channels <= columns)
    )
    return [slice(start, start + size) for start in range(0, taps, size)]


class TapColumns:
    """Patches of images, a group of taps at a time: (n, taps * channels, T)."""

    def __init__(self, geometry: Geometry, images: Tensor) -> None:
        self._geometry, self._images = geometry, images

    def __iter__(self) -> Iterator[Tensor]:
        for taps in tap_groups(self._geometry, self._images.shape[1], _WIDE):
            yield self._geometry.columns(self._images, taps).flatten(1, 2)
