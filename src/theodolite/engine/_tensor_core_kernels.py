"""The kernel of :mod:`theodolite.engine._tensor_cores`, in Triton; imported on first use."""

# ruff: noqa: ANN001, ANN202, SIM102
# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Triton reads the text of its kernels: annotations mean constants, one condition stands in an if.

import triton
import triton.language as tl

__all__ = ["rows_by_rows"]

_SIZES = [
    "M", "N", "steps", "length", "a_stack", "a_row", "b_stack", "b_row", "out_stack", "out_row",
    "f_row", "parts", "symmetric", "multiplies", "width", "adds",
]  # fmt: skip


@triton.jit
def _rounded(x):
    # To the nearest TF32 number: the ten leading bits of the fraction.
    bits = x.to(tl.int32, bitcast=True)
    return ((bits + 0x1000) & -8192).to(tl.float32, bitcast=True)


# One compilation for all sizes: what must be known of them, that rows begin at multiples of four
# numbers, is told by counting in fours.
@triton.jit(do_not_specialize=_SIZES)
def rows_by_rows(
    A, B, OUT, F, TILES, M, N, steps, length,
    a_stack, a_row, b_stack, b_row, out_stack, out_row, f_row,
    parts, symmetric, multiplies, width, adds,
    TILE: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    # A tile of A B^T, of one product of a stack or of one part of its sums; see _launch.
    M = M * 4
    N = N * 4
    tile = tl.program_id(0)
    place = tl.program_id(1).to(tl.int64)
    stack = place // parts
    begin = (place % parts).to(tl.int32) * length
    end = tl.minimum(steps, begin + length)
    i = tl.load(TILES + 2 * tile)
    j = tl.load(TILES + 2 * tile + 1)
    rows = i * TILE + tl.arange(0, TILE)
    columns = j * TILE + tl.arange(0, TILE)
    terms = begin * STEP + tl.arange(0, STEP)
    left = A + stack * (a_stack * 4) + (rows % M).to(tl.int64)[:, None] * (a_row * 4)
    left += terms[None, :]
    right = B + stack * (b_stack * 4) + (columns % N).to(tl.int64)[None, :] * (b_row * 4)
    right += terms[:, None]
    total = tl.zeros((TILE, TILE), dtype=tl.float32)
    for _ in range(begin, end):
        a = tl.load(left)
        b = tl.load(right)
        a_high = _rounded(a)
        b_high = _rounded(b)
        a_low = _rounded(a - a_high)
        b_low = _rounded(b - b_high)
        part = tl.dot(a_low, b_high, input_precision="tf32")
        part = tl.dot(a_high, b_low, part, input_precision="tf32")
        part = tl.dot(a_high, b_high, part, input_precision="tf32")
        total += part
        left += STEP
        right += STEP
    inside = (rows < M)[:, None] & (columns < N)[None, :]
    if multiplies != 0:
        pairs = F + (rows // width).to(tl.int64)[:, None] * f_row + (columns // width)[None, :]
        total *= tl.load(pairs, mask=inside, other=0.0)
    if symmetric != 0:
        if i == j:
            total = 0.5 * (total + tl.trans(total))
    out = OUT + place * (out_stack * 4)
    target = out + rows.to(tl.int64)[:, None] * (out_row * 4) + columns[None, :]
    if adds != 0:
        total += tl.load(target, mask=inside, other=0.0)
    tl.store(target, total, mask=inside)
    if symmetric != 0:
        if i != j:
            below = out + columns.to(tl.int64)[:, None] * (out_row * 4) + rows[None, :]
            turned = (columns < N)[:, None] & (rows < M)[None, :]
            tl.store(below, tl.trans(total), mask=turned)
