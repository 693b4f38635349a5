"""Patches of images: the pixels that a convolution multiplies, copied.

Entries of a patch have one of two orders. *Channel-major* is the order of ``conv.weight``, for
covariances (:meth:`PatchGeometry.patch_rows`). *Offset-major* has the kernel offset before the
channel, for products (:meth:`PatchGeometry.columns`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from operator import index
from typing import SupportsIndex

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from theodolite.errors import DomainError, DtypeError, ShapeError

_PART_COLUMNS = 192  # columns of patches that exist at one time where gradients are kept

PerAxis = SupportsIndex | Sequence[SupportsIndex]
Place = tuple[int, ...]  # indices on the first axes of the kernel window; () is the whole window


def per_axis(value: PerAxis, count: int) -> tuple[int, ...]:
    """An option of a convolution as one number per axis, for any kind of integer."""
    numbers = tuple(map(index, value)) if isinstance(value, Sequence) else (index(value),)
    return numbers * count if len(numbers) == 1 else numbers


@dataclass(frozen=True)
class PatchGeometry:
    """How a convolution cuts patches out of images: one number per spatial axis in each field."""

    window: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    @classmethod
    def of(
        cls,
        axes: int,
        kernel: PerAxis,
        stride: PerAxis = 1,
        padding: PerAxis = 0,
        dilation: PerAxis = 1,
    ) -> "PatchGeometry":
        """The geometry over ``axes`` spatial axes, from options as in ``nn.Conv2d``.

        Raises:
            ShapeError: If an option has another number of entries.
            DomainError: If an entry is too small.
        """
        return cls(
            _option_per_axis("kernel_size", kernel, axes),
            _option_per_axis("stride", stride, axes),
            _option_per_axis("padding", padding, axes, minimum=0),
            _option_per_axis("dilation", dilation, axes),
        )

    @property
    def offset_count(self) -> int:
        """Number of kernel offsets: pixels in one channel of a patch."""
        return prod(self.window)

    @property
    def reach(self) -> tuple[int, ...]:
        """Pixels from the first to the last entry of the kernel, per axis."""
        return tuple((k - 1) * d + 1 for k, d in zip(self.window, self.dilation, strict=True))

    def output_size(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """Size of the output map for images of these sizes.

        Raises:
            ShapeError: If the kernel does not fit into the padded image.
        """
        padded = tuple(size + 2 * p for size, p in zip(sizes, self.padding, strict=True))
        if any(reach > size for reach, size in zip(self.reach, padded, strict=True)):
            raise ShapeError(
                f"kernel_size: expected at most the padded image {padded}, got a kernel "
                f"that spans {self.reach}; use a smaller kernel or more padding"
            )
        steps = zip(padded, self.reach, self.stride, strict=True)
        return tuple((size - reach) // stride + 1 for size, reach, stride in steps)

    def positions(self, sizes: Sequence[int]) -> int:
        """Number of patches in an image of these sizes."""
        return prod(self.output_size(sizes))

    def pad(self, images: Tensor, border: Float[Tensor, " channels"] | None = None) -> Tensor:
        """Images with their border of zeros, or of the numbers ``border`` for each channel."""
        widths = [width for p in reversed(self.padding) for width in (p, p)]
        if not any(widths):
            return images
        padded = functional.pad(images, widths)
        if border is None:
            return padded
        inside = functional.pad(torch.ones_like(images[:1, :1]), widths)
        return padded + (1 - inside) * border.view(1, -1, *[1] * len(self.window))

    def patch_rows(self, padded: Float[Tensor, "n channels *sizes"]) -> Tensor:
        """Channel-major patches ``(n, T, channels * offsets)`` of images with their border."""
        axes = len(self.window)
        windows = self._windows(padded).movedim(axes + 1, 1)  # (n, channels, *window, *positions)
        return windows.flatten(axes + 2).flatten(1, axes + 1).mT

    def columns(self, images: Tensor, place: Place = ()) -> Tensor:
        """Offset-major patches, (n, columns, T), or those entries at a place of the window."""
        at_place: tuple[slice | int, ...] = (slice(None), *place)
        windows = self._windows(self.pad(images))[at_place]
        n, *columns = windows.shape[: -len(self.window)]
        return windows.reshape(n, prod(columns), prod(windows.shape[-len(self.window) :]))

    def _windows(self, padded: Float[Tensor, "n channels *sizes"]) -> Tensor:
        """All patches as a view, (n, *window, channels, *positions)."""
        n, channels, *sizes = padded.shape
        example, channel, *pixels = padded.stride()
        inside = [step * d for step, d in zip(pixels, self.dilation, strict=True)]
        between = [step * stride for step, stride in zip(pixels, self.stride, strict=True)]
        axes = zip(sizes, self.reach, self.stride, strict=True)
        positions = [(size - reach) // stride + 1 for size, reach, stride in axes]
        shape = n, *self.window, channels, *positions
        return padded.as_strided(shape, (example, *inside, channel, *between))

    def places(self, channels: int, columns: int) -> list[Place]:
        """Places that divide the window into parts of at most this many columns, if possible."""
        sizes = [channels * prod(self.window[axes:]) for axes in range(len(self.window))]
        axes = sum(size > columns for size in sizes)  # sizes fall
        return [*product(*map(range, self.window[:axes]))]

    def column_parts(self, images: Tensor) -> Iterator[Tensor]:
        """Offset-major patches, some kernel offsets at a time, (n, columns, T) each."""
        for place in self.places(images.shape[1], _PART_COLUMNS):
            yield self.columns(images, place)


def _option_per_axis(name: str, value: PerAxis, axes: int, minimum: int = 1) -> tuple[int, ...]:
    try:
        values = per_axis(value, axes)
    except TypeError as error:
        raise DtypeError(
            f"{name}: expected one whole number or {axes}, one per axis, got {value!r}"
        ) from error
    if len(values) != axes:
        raise ShapeError(f"{name}: expected one number or {axes}, one per axis, got {values}")
    if any(item < minimum for item in values):
        raise DomainError(f"{name}: expected numbers of at least {minimum}, got {values}")
    return values
