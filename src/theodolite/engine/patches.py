"""Patches of images: the pixels that a convolution multiplies, as copies or strided views.

Entries of a patch have one of two orders. *Channel-major* is the order of ``conv.weight`` (for
covariances). *Offset-major* has the kernel offset before the channel (products then need fewer
copies).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import SupportsIndex

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from theodolite.errors import DomainError, ShapeError

_EFFICIENT_COLUMNS = 192  # number of columns from which on a product is efficient

PerAxis = SupportsIndex | Sequence[SupportsIndex]


def per_axis(value: PerAxis, count: int) -> tuple[int, ...]:
    """An option of a convolution as one number per axis, for any kind of integer."""
    numbers = tuple(map(int, value)) if isinstance(value, Sequence) else (int(value),)
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

    @property
    def keeps_size(self) -> bool:
        """Stride 1 and the same number of positions before and after."""
        return all(step == 1 for step in self.stride) and all(
            2 * p == reach - 1 for p, reach in zip(self.padding, self.reach, strict=True)
        )

    def offsets(self) -> list[tuple[int, ...]]:
        """Kernel offsets in the padded image, in the order of the window's entries."""
        axes = [range(0, k * d, d) for k, d in zip(self.window, self.dilation, strict=True)]
        return list(product(*axes))

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

    def _windows(self, padded: Tensor, axis: int) -> Tensor:
        """A view with the kernel offsets along one spatial axis as a new last axis."""
        windows = padded.unfold(2 + axis, self.reach[axis], self.stride[axis])
        return windows[..., :: self.dilation[axis]]

    def _all_windows(self, padded: Tensor) -> Tensor:
        """A view of shape (n, channels, *positions, *offsets)."""
        for axis in range(len(self.window)):
            padded = self._windows(padded, axis)
        return padded

    def patch_rows(self, padded: Float[Tensor, "n channels *sizes"]) -> Tensor:
        """Channel-major patches ``(n, T, channels * offsets)`` of images with their border."""
        axes = len(self.window)
        order = (0, *range(2, 2 + axes), 1, *range(2 + axes, 2 + 2 * axes))
        patches = self._all_windows(padded).permute(order)
        return patches.reshape(len(padded), prod(patches.shape[1 : 1 + axes]), -1)

    def columns(self, images: Tensor, offsets: slice = slice(None)) -> Tensor:
        """Entries of the patches at these kernel offsets, (n, offsets, channels, T), a copy."""
        sizes = self.output_size(images.shape[2:])
        padded = self.pad(images)
        chosen = self.offsets()[offsets]
        result = images.new_empty(len(images), len(chosen), images.shape[1], *sizes)
        for index, offset in enumerate(chosen):
            spans = zip(offset, sizes, self.stride, strict=True)
            window = tuple(slice(o, o + (s - 1) * t + 1, t) for o, s, t in spans)
            result[:, index].copy_(padded[(slice(None), slice(None), *window)])
        return result.flatten(3)

    def patch_views(self, images: Tensor, *, examples_inside: bool) -> Tensor:
        """Offset-major patches ``(n, T, D)`` as a view of ``(D, n, T)`` or of ``(n, D, T)``.

        With examples on the inner axis, the rows of all examples form one matrix without a copy.
        With examples on the outer axis, each example's matrix is contiguous.
        """
        axes = len(self.window)
        windows = self._all_windows(self.pad(images))
        positions, offsets = range(2, 2 + axes), range(2 + axes, 2 + 2 * axes)
        if examples_inside:
            patches = windows.permute(*offsets, 1, 0, *positions).contiguous()
            return patches.flatten(axes + 2).flatten(0, axes).permute(1, 2, 0)
        patches = windows.permute(0, *offsets, 1, *positions).contiguous()
        return patches.flatten(axes + 2).flatten(1, axes + 1).transpose(1, 2)

    @property
    def has_strips(self) -> bool:
        """Whether :meth:`strips` applies: two axes, no stride along the first."""
        return len(self.window) == 2 and self.stride[0] == 1

    def strips(self, images: Tensor) -> list[Tensor]:
        """For each row of the kernel its patch entries, ``(n, columns * channels, T)``, a view.

        Shifts along the second axis are copied, once per column of the kernel. A shift along the
        first axis moves by whole lines, so it is an offset into the same buffer. For a 3x3 kernel
        this takes a third of the copies.
        """
        sizes = self.output_size(images.shape[2:])
        windows = self._windows(self.pad(images), 1)  # (n, channels, height, T_1, columns)
        strips = windows.permute(0, 4, 1, 2, 3).contiguous()
        flat = strips.flatten(1, 2).flatten(2)
        step, length = self.dilation[0] * sizes[1], sizes[0] * sizes[1]
        return [flat[:, :, row * step : row * step + length] for row in range(self.window[0])]

    def offset_groups(self, channels: int, columns: int) -> list[slice]:
        """Kernel offsets in equal groups of at most this many columns, and at least one offset."""
        count = self.offset_count
        size = max(
            k for k in range(1, count + 1) if count % k == 0 and (k == 1 or k * channels <= columns)
        )
        return [slice(start, start + size) for start in range(0, count, size)]

    def column_parts(self, images: Tensor) -> Iterator[Tensor]:
        """Offset-major patches in parts that make products efficient, (n, columns, T) each."""
        if self.has_strips:
            yield from self.strips(images)
            return
        for offsets in self.offset_groups(images.shape[1], _EFFICIENT_COLUMNS):
            yield self.columns(images, offsets).flatten(1, 2)


def _option_per_axis(name: str, value: PerAxis, axes: int, minimum: int = 1) -> tuple[int, ...]:
    values = per_axis(value, axes)
    if len(values) != axes:
        raise ShapeError(f"{name}: expected one number or {axes}, one per axis, got {values}")
    if any(item < minimum for item in values):
        raise DomainError(f"{name}: expected numbers of at least {minimum}, got {values}")
    return values
