"""Patches of images and their moments, for convolutions of any kernel, stride, padding, dilation.

Two routes give the same sums. Unfolding writes every patch and multiplies the matrix of patches
with itself. For stride 1 the product of two entries of a patch depends on their displacement only,
up to the borders: products of the images with shifted copies of themselves give all entries, at
``(2k-1)^2 / 2`` instead of ``k^4`` multiply-adds per position and pair of channels.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from theodolite.errors import DomainError, ShapeError
from theodolite.linalg import Moments

__all__ = ["PatchGrid", "PositionSums", "patch_moments", "patch_rows"]

_CHUNK_BYTES = 64 * 2**20
# Below this many channels the shifted products are too narrow for the matrix units.
_FEWEST_CHANNELS = 16


@dataclass(frozen=True)
class PatchGrid:
    """Which patches a convolution sees: one entry per spatial axis in each field."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]

    @classmethod
    def of(
        cls,
        axes: int,
        kernel: int | Sequence[int],
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
    ) -> "PatchGrid":
        """The grid over ``axes`` spatial axes; numbers stand for all axes, as in ``nn.Conv2d``."""
        both = tuple((size, size) for size in _per_axis("padding", padding, axes, minimum=0))
        return cls(
            _per_axis("kernel_size", kernel, axes),
            _per_axis("stride", stride, axes),
            both,
            _per_axis("dilation", dilation, axes),
        )

    def reach(self) -> tuple[int, ...]:
        """Pixels from the first to the last tap of the kernel, per axis."""
        return tuple((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilation, strict=True))

    def positions(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """Size of the output map for images of these sizes.

        Raises:
            ShapeError: If the kernel does not fit into the padded image.
        """
        padded = [size + sum(pad) for size, pad in zip(sizes, self.padding, strict=True)]
        if any(reach > size for reach, size in zip(self.reach(), padded, strict=True)):
            raise ShapeError(
                f"kernel_size: expected at most the padded image {tuple(padded)}, got a kernel "
                f"that spans {self.reach()}; use a smaller kernel or more padding"
            )
        steps = zip(padded, self.reach(), self.stride, strict=True)
        return tuple((size - reach) // stride + 1 for size, reach, stride in steps)

    def pad(self, images: Tensor, value: Float[Tensor, " channels"] | None = None) -> Tensor:
        """Images with their border; ``value`` is what the border holds in each channel."""
        if not any(map(any, self.padding)):
            return images
        widths = [width for pair in reversed(self.padding) for width in pair]
        padded = functional.pad(images, widths)
        if value is None:
            return padded
        inside = functional.pad(torch.ones_like(images[:1, :1]), widths)
        return padded + (1 - inside) * value.view(1, -1, *[1] * len(self.kernel))


def _per_axis(
    name: str, value: int | Sequence[int], axes: int, minimum: int = 1
) -> tuple[int, ...]:
    values = (value,) * axes if isinstance(value, int) else tuple(value)
    if len(values) != axes:
        raise ShapeError(f"{name}: expected one number or {axes}, one per axis, got {values}")
    if any(item < minimum for item in values):
        raise DomainError(f"{name}: expected numbers of at least {minimum}, got {values}")
    return values


def patch_rows(padded: Float[Tensor, "n channels *sizes"], grid: PatchGrid) -> Tensor:
    """All patches, ``(n, positions, channels * taps)``, channel-major like ``conv.weight``."""
    axes = len(grid.kernel)
    windows = padded
    for axis, (reach, stride) in enumerate(zip(grid.reach(), grid.stride, strict=True)):
        windows = windows.unfold(2 + axis, reach, stride)
    for axis, step in enumerate(grid.dilation):
        windows = windows[(slice(None),) * (2 + axes + axis) + (slice(None, None, step),)]
    # windows: (n, channels, *positions, *taps)
    order = (0, *range(2, 2 + axes), 1, *range(2 + axes, 2 + 2 * axes))
    ordered = windows.permute(order)
    count = prod(ordered.shape[1 : 1 + axes])
    return ordered.reshape(len(padded), count, -1)


def patch_moments(
    images: Float[Tensor, "n channels *sizes"],
    grid: PatchGrid,
    shift: Float[Tensor, " channels"],
) -> Moments:
    """Moments of all patches of one batch, pooled over positions, about a shift per channel."""
    taps = prod(grid.kernel)
    whole_shift = shift.double().repeat_interleave(taps)
    scatter = torch.zeros(len(whole_shift), len(whole_shift)).to(whole_shift)
    total = torch.zeros_like(whole_shift)
    shifted_products = _prefers_shifts(images, grid)
    for chunk in _chunks(images, grid, unfolds=not shifted_products):
        offset = _about(chunk, shift, grid)
        summed = offset.sum(0, keepdim=True, dtype=torch.float64)
        total += patch_rows(summed, grid).sum((0, 1))
        scatter += _shifted_scatter(offset, grid) if shifted_products else _scatter(offset, grid)
    count = float(len(images) * prod(grid.positions(images.shape[2:])))
    # Float32 products are symmetric to float32 only; eigen-solvers and checks expect more.
    scatter = (scatter + scatter.mT) / 2
    return Moments(whole_shift.new_tensor(count), whole_shift, total, scatter)


@dataclass(frozen=True)
class PositionSums:
    """Per position: sum and scatter of its patch about a shift, over images."""

    count: int
    shift: Float[Tensor, " d"]
    totals: Float[Tensor, "positions d"]
    scatters: Float[Tensor, "positions d d"]

    @classmethod
    def of(
        cls,
        images: Float[Tensor, "n channels *sizes"],
        grid: PatchGrid,
        shift: Float[Tensor, " channels"],
    ) -> "PositionSums":
        """Sums of one batch, about a shift per channel."""
        positions, d = prod(grid.positions(images.shape[2:])), len(shift) * prod(grid.kernel)
        totals = images.new_zeros((positions, d), dtype=torch.float64)
        scatters = images.new_zeros((positions, d, d), dtype=torch.float64)
        for chunk in _chunks(images, grid, unfolds=True):
            rows = patch_rows(_about(chunk, shift, grid), grid).transpose(0, 1)
            totals += rows.sum(1, dtype=torch.float64)
            scatters += rows.mT @ rows
        return cls(len(images), shift.repeat_interleave(prod(grid.kernel)), totals, scatters)

    def __add__(self, other: "PositionSums") -> "PositionSums":
        """Sums of both groups of images, which must share the shift."""
        return PositionSums(
            self.count + other.count,
            self.shift,
            self.totals + other.totals,
            self.scatters + other.scatters,
        )

    @property
    def mean(self) -> Float[Tensor, "positions d"]:
        """Mean patch of each position."""
        return self.shift + self.totals / self.count

    def covariance(self, *, centered: bool, ddof: int) -> Float[Tensor, "positions d d"]:
        """Covariance of each position about its mean, or second moment about zero."""
        center = self.mean - self.shift if centered else -self.shift.expand_as(self.totals)
        cross = self.totals.unsqueeze(-1) * center.unsqueeze(-2)
        outer = center.unsqueeze(-1) * center.unsqueeze(-2)
        return (self.scatters - cross - cross.mT + self.count * outer) / (self.count - ddof)


def _about(images: Tensor, shift: Tensor, grid: PatchGrid) -> Tensor:
    """Padded images minus the shift: the border, which holds zeros, holds minus the shift then."""
    center = shift.to(images)
    offset = images - center.view(1, -1, *[1] * len(grid.kernel))
    return grid.pad(offset, -center)


def _chunks(images: Tensor, grid: PatchGrid, *, unfolds: bool) -> Iterator[Tensor]:
    per_image = images[0].numel() * images.element_size()
    if unfolds:
        positions = prod(grid.positions(images.shape[2:]))
        per_image = positions * images.shape[1] * prod(grid.kernel) * images.element_size()
    yield from torch.split(images, max(1, _CHUNK_BYTES // max(per_image, 1)))


def _scatter(offset: Tensor, grid: PatchGrid) -> Tensor:
    rows = patch_rows(offset, grid).flatten(0, 1)
    return (rows.mT @ rows).double()


def _prefers_shifts(images: Tensor, grid: PatchGrid) -> bool:
    """Whether shifted products apply (two axes, stride 1, maps wider than the border) and pay."""
    if len(grid.kernel) != 2 or set(grid.stride) != {1} or images.shape[1] < _FEWEST_CHANNELS:
        return False
    positions = grid.positions(images.shape[2:])
    borders = [reach - 1 for reach in grid.reach()]
    if any(size <= border for size, border in zip(positions, borders, strict=True)):
        return False
    pixels = prod(size + border for size, border in zip(positions, borders, strict=True))
    lags = (prod(2 * size - 1 for size in grid.kernel) + 1) // 2
    return 2 * pixels * lags < prod(positions) * prod(grid.kernel) ** 2


def _shifted_scatter(offset: Tensor, grid: PatchGrid) -> Tensor:
    """The scatter of all patches from products of the images with shifted copies."""
    channels = offset.shape[1]
    height, width = grid.kernel
    pixels = offset.permute(2, 3, 0, 1).contiguous()  # (rows, columns, n, channels)
    blocks = pixels.new_zeros(
        (channels, height, width, channels, height, width), dtype=torch.float64
    )
    for down, right in product(range(height), range(1 - width, width)):
        if (down, right) < (0, 0):
            continue
        for row, column, block in _lag_blocks(pixels, grid, down, right):
            blocks[:, row, column, :, row + down, column + right] = block
            blocks[:, row + down, column + right, :, row, column] = block.mT
    size = channels * height * width
    return blocks.view(size, size)


def _lag_blocks(
    pixels: Tensor, grid: PatchGrid, down: int, right: int
) -> Iterator[tuple[int, int, Tensor]]:
    """For one displacement, the channel block of each tap: sums over that tap's rectangle."""
    step_row, step_column = grid.dilation
    rows, columns = (
        size - reach + 1 for size, reach in zip(pixels.shape[:2], grid.reach(), strict=True)
    )
    taps_down, taps_right = grid.kernel[0] - down, grid.kernel[1] - abs(right)
    first = max(0, -right)
    edge = (taps_right - 1) * step_column
    lines = slice(0, rows + (taps_down - 1) * step_row)
    moved = slice(down * step_row, down * step_row + lines.stop)
    start = first * step_column
    lag = right * step_column

    def products(begin: int, end: int, *, merge: bool) -> Tensor:
        left = pixels[lines, begin:end]
        other = pixels[moved, begin + lag : end + lag]
        if merge:
            return (left.flatten(1, 2).mT @ other.flatten(1, 2)).unsqueeze(1)
        return left.mT @ other

    segments = torch.cat(
        [
            products(start, start + edge, merge=False),
            products(start + edge, start + columns, merge=True),
            products(start + columns, start + columns + edge, merge=False),
        ],
        dim=1,
    )
    sums = functional.pad(segments.double().cumsum(0).cumsum(1), (0, 0, 0, 0, 1, 0, 1, 0))
    for row, column in product(range(taps_down), range(taps_right)):
        top, left = row * step_row, column * step_column
        bottom, end = top + rows, left + edge + 1
        block = sums[bottom, end] - sums[top, end] - sums[bottom, left] + sums[top, left]
        yield row, first + column, block
