"""Inner products of rows on tensor cores, with the accuracy of float32.

Every number is written as the sum of two TF32 numbers, rounded to nearest; of the four products
that of the two small parts is left out. Tensor cores cut off what they add up instead of rounding
it, so no more than 32 terms are added there: those sums are then added in float32. The result is
closer to the exact one than that of plain float32 products, and comes in less time (figures in
benchmarks/README.md).

The kernel is written in Triton, which comes with PyTorch for CUDA and compiles it on first use.
Where that fails, on other devices and for other dtypes, :func:`gains` says no.
"""

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from theodolite.engine.batches import spans

__all__ = ["SHORT", "gains", "gram", "may_be_there", "multiply", "sums_over_positions"]

SHORT = 32  # terms that tensor cores add up
_LEAST = 2**31  # multiply-adds of a product that is worth the launch
_NARROW = 64  # rows below which tiles would be mostly empty
_TILE = 128
_FEW = 16  # columns of a narrow product
_WAVES = 4  # tiles for every processor of the chip: where there are fewer, sums are cut in parts
_LONG = 1024  # terms of such a part, at least
_CLOSE = 1e-6  # relative to the largest entry; plain TF32 is a thousand times further off


def may_be_there(device: torch.device) -> bool:
    """Whether a device has tensor cores; nothing is compiled to find out whether they answer."""
    return device.type == "cuda" and _capability(device) >= (8, 0)


@lru_cache
def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)


def gains(left: Tensor, right: Tensor, *, least: int = SHORT) -> bool:
    """Whether the product of two matrices, or two stacks, by their rows, is faster here.

    Args:
        left: (m, k) or (b, m, k).
        right: (n, k) or (b, n, k).
        least: Terms of a sum, at least.
    """
    if left.dtype != torch.float32 or not may_be_there(left.device):
        return False
    rows, columns, terms = left.shape[-2], right.shape[-2], left.shape[-1]
    size = left.shape[:-2].numel() * rows * columns * max(terms, SHORT)
    if size < _LEAST or min(rows, columns) < _NARROW or terms < least:
        return False
    return left.stride(-1) == right.stride(-1) == 1 and _kernel(left.device) is not None


@lru_cache
def _kernel(device: torch.device) -> Any:
    """The kernel of products, tried on a small one; None where it cannot be had or is wrong."""
    try:
        from theodolite.engine._tensor_core_kernels import rows_by_rows

        rows = torch.randn(256, 64, generator=torch.Generator().manual_seed(0)).to(device)
        found = rows.new_empty(1, 256, 256)
        _launch(rows_by_rows, found, rows[None], rows[None], True, 1, (None, 1))
        return rows_by_rows if _close(found[0], rows.double() @ rows.double().T) else None
    except Exception:  # no Triton, no compiler, an unknown chip: plain products are there
        return None


@lru_cache
def _narrow_kernel(device: torch.device) -> Any:
    """The same for sums over positions."""
    try:
        from theodolite.engine._tensor_core_kernels import sums_over_positions as kernel

        values = torch.randn(2, 2, 80, 64, generator=torch.Generator().manual_seed(0)).to(device)
        rows, others = (part.contiguous() for part in values.split([70, 10], 2))
        wanted = torch.einsum("ysrc,ysjc->ryj", rows.double(), others.double())
        return kernel if _close(_narrow(kernel, rows, others), wanted) else None
    except Exception:
        return None


def _close(found: Tensor, wanted: Tensor) -> bool:
    return float((found - wanted).abs().max() / wanted.abs().max()) < _CLOSE


def multiply(target: Tensor, left: Tensor, right: Tensor, *, overwrite: bool) -> None:
    """``target = left @ right.T`` of matrices or stacks of matrices, or added to what it holds.

    Args:
        target: (m, n) or (b, m, n), numbers of a row side by side.
        left: (m, k) or (b, m, k), likewise.
        right: (n, k) or (b, n, k), likewise.
        overwrite: Whether nothing is added.
    """
    if target.dim() == 2:
        target, left, right = target[None], left[None], right[None]
    _launch(_kernel(left.device), target, left, right, overwrite, 1)


def gram(
    target: Tensor, rows: Tensor, *, overwrite: bool, factor: Tensor | None = None, width: int = 1
) -> None:
    """``target = rows @ rows.T``, both halves from one, times a matrix of pairs of examples.

    Args:
        target: (m, m), numbers of a row side by side. Of what it holds the upper half is read.
        rows: (m, k), likewise.
        overwrite: Whether nothing is added.
        factor: (m / width, m / width), symmetric; None for ones.
        width: Consecutive rows that belong to one example.
    """
    (size, terms), tiles = rows.shape, -(-len(rows) // _TILE)
    parts = -(-_WAVES * _processors(rows.device) // (tiles * (tiles + 1) // 2))
    parts = max(1, min(parts, terms // _LONG))
    kernel, stack = _kernel(rows.device), rows[None]
    if parts == 1:
        _launch(kernel, target[None], stack, stack, overwrite, 1, (factor, width))
        return
    sums = rows.new_empty(parts, size, size)
    _launch(kernel, sums, stack, stack, True, parts, (factor, width))
    if overwrite:
        torch.sum(sums, 0, out=target)
    else:
        target.add_(sums.sum(0))


def sums_over_positions(rows: Tensor, others: Tensor) -> Tensor | None:
    """``sum_sc rows[y, s, r, c] others[y, s, j, c]``, (r, y, j), read once from memory.

    Args:
        rows: (y, s, r, c), one after the other.
        others: (y, s, j, c), likewise; few of them, as outputs are.

    Returns:
        None where tensor cores are not there or gain nothing.
    """
    size, channels, width = *rows.shape[2:], others.shape[2]
    if channels % SHORT or width > _FEW or not rows.is_contiguous() or not others.is_contiguous():
        return None
    flat = rows.view(-1, channels)
    if size < _NARROW or not gains(flat, flat[:_NARROW]):
        return None
    kernel = _narrow_kernel(rows.device)
    return None if kernel is None else _narrow(kernel, rows, others)


def _narrow(kernel: Any, rows: Tensor, others: Tensor) -> Tensor:
    (count, positions, size, channels), width = rows.shape, others.shape[2]
    target = rows.new_empty(size, count, width)
    with torch.cuda.device_of(rows):
        kernel[(-(-size // _TILE), count)](
            rows, others, target, size, positions, channels, target.stride(0), width,
            TILE=_TILE, NARROW=_FEW, STEP=SHORT, num_warps=4, num_stages=4,
        )  # fmt: skip
    return target


@lru_cache
def _processors(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def _launch(
    kernel: Any,
    target: Tensor,
    left: Tensor,
    right: Tensor,
    overwrite: bool,
    parts: int,
    symmetric: tuple[Tensor | None, int] | None = None,
) -> None:
    """One launch for a stack of products, or for one whose sums are cut in parts."""
    _, rows, terms = left.shape
    columns = right.shape[1]
    factor, width = symmetric or (None, 1)
    factors = left[0] if factor is None else factor
    pairs = _tiles(-(-rows // _TILE), -(-columns // _TILE), symmetric is not None, left.device)
    length = -(-terms // (parts * SHORT)) * SHORT
    flags = (symmetric is not None, factor is not None, width, not overwrite)
    with torch.cuda.device_of(left):
        kernel[(len(pairs), len(target))](
            left, right, target, factors, pairs, rows, columns, terms, length,
            *left.stride()[:2], *right.stride()[:2], *target.stride()[:2], factors.stride(0),
            parts, *map(int, flags),
            WHOLE=terms % SHORT == 0, TILE=_TILE, STEP=SHORT, num_warps=8, num_stages=3,
        )  # fmt: skip


@lru_cache(maxsize=256)
def _tiles(rows: int, columns: int, symmetric: bool, device: torch.device) -> Tensor:
    """Tiles of a matrix, or of its upper half, in an order in which neighbours share rows."""
    pairs = [
        (i, j)
        for group in spans(rows, 8)
        for j in range(columns)
        for i in range(group.start, group.stop)
        if not symmetric or i <= j
    ]
    return torch.tensor(pairs, dtype=torch.int32).to(device)
