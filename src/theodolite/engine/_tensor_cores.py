"""Inner products of rows on tensor cores, with the accuracy of float32.

Every number is written as the sum of two TF32 numbers, rounded to nearest; of the four products
that of the two small parts is left out. Tensor cores cut off what they add up instead of rounding
it, so no more than 32 terms are added there: those sums are then added in float32. The result is
closer to the exact one than that of plain float32 products, and comes in less time (figures in
benchmarks/README.md).

The kernel is written in Triton, which comes with PyTorch for CUDA and compiles it on first use, in
a second or two; it is kept on disk then. Where that fails, on other devices and for other dtypes,
:func:`gains` says no.
"""

from contextlib import nullcontext
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from theodolite.engine.batches import spans

__all__ = ["SHORT", "gains", "gram", "is_compiled", "may_be_there", "multiply"]

SHORT = 32  # terms that tensor cores add up
_LEAST = 2**31  # multiply-adds of a product that is worth the launch
_NARROW = 64  # rows below which tiles would be mostly empty
_TILE = 128
_WAVES = 4  # tiles for every processor of the chip: where there are fewer, sums are cut in parts
_LONG = 1024  # terms of such a part, at least
_CLOSE = 1e-6  # relative to the largest entry; plain TF32 is a thousand times further off


def may_be_there(device: torch.device) -> bool:
    """Whether a device has tensor cores; nothing is compiled to find out whether they answer."""
    return device.type == "cuda" and _capability(device) >= (8, 0)


@lru_cache
def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device) if torch.cuda.is_available() else (0, 0)


def gains(target: Tensor, left: Tensor, right: Tensor, *, least: int = SHORT) -> bool:
    """Whether the product of two matrices, or two stacks, by their rows, is faster here.

    Rows of the target must begin at multiples of four numbers, as those of most kernels do.

    Args:
        target: (m, n) or (b, m, n).
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
    if not target.stride(-1) == left.stride(-1) == right.stride(-1) == 1:
        return False
    places = (rows, columns, *target.stride()[:-1], target.data_ptr() // 4)
    return all(place % 4 == 0 for place in places) and _kernel(left.device) is not None


_COMPILED: set[torch.device] = set()


def is_compiled(device: torch.device) -> bool:
    """Whether the kernel was compiled in this process and gave the right product."""
    return device in _COMPILED


@lru_cache
def _kernel(device: torch.device) -> Any:
    """The kernel of products, tried on a small one; None where it cannot be had or is wrong."""
    try:
        from theodolite.engine._tensor_core_kernels import rows_by_rows

        rows = torch.randn(256, 64, generator=torch.Generator().manual_seed(0)).to(device)
        found = rows.new_empty(1, 256, 256)
        _launch(rows_by_rows, found, rows[None], rows[None], True, 1, (None, 1))
        if not _close(found[0], rows.double() @ rows.double().T):
            return None
        _COMPILED.add(device)
        return rows_by_rows
    except Exception:  # no Triton, no compiler, an unknown chip: plain products are there
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
    same, left = left is right, _whole_steps(left)
    right = left if same else _whole_steps(right)
    (_, rows, terms), columns = left.shape, right.shape[1]
    factor, width = symmetric or (None, 1)
    factors = left[0] if factor is None else factor
    pairs = _tiles(-(-rows // _TILE), -(-columns // _TILE), symmetric is not None, left.device)
    steps = terms // SHORT
    strides = (*left.stride()[:2], *right.stride()[:2], *target.stride()[:2])
    flags = (symmetric is not None, factor is not None, width, not overwrite)
    with torch.cuda.device(left.device) if left.is_cuda else nullcontext():
        kernel[(len(pairs), len(target))](
            left, right, target, factors, pairs, rows // 4, columns // 4, steps, -(-steps // parts),
            *(stride // 4 for stride in strides), factors.stride(0), parts, *map(int, flags),
            TILE=_TILE, STEP=SHORT, num_warps=8, num_stages=3,
        )  # fmt: skip


def _whole_steps(rows: Tensor) -> Tensor:
    """Rows that begin at multiples of four numbers and end with a step; copies where they do not.

    Zeros are appended to them, and add nothing.
    """
    missing = -rows.shape[-1] % SHORT
    begins = (*rows.stride()[:-1], rows.data_ptr() // 4)
    if missing == 0 and all(begin % 4 == 0 for begin in begins):
        return rows
    return functional.pad(rows, (0, missing or SHORT))


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
