"""The kernels of :mod:`theodolite.engine._tensor_cores`, in Triton; imported on first use."""

# ruff: noqa: ANN001, ANN202, SIM102
# mypy: disable-error-code="no-untyped-def,untyped-decorator,import-not-found,import-untyped"
# Triton reads the text of its kernels: annotations mean constants, one condition stands in an if.

import triton
import triton.language as tl

__all__ = ["rows_by_rows", "sums_over_positions"]


@triton.jit
def _rounded(x):
    # To the nearest TF32 number: the ten leading bits of the fraction.
    bits = x.to(tl.int32, bitcast=True)
    return ((bits + 0x1000) & -8192).to(tl.float32, bitcast=True)


@triton.jit(
    do_not_specialize=["M", "N", "parts", "symmetric", "multiplies", "width", "adds", "f_row"]
)
def rows_by_rows(
    A, B, OUT, F, TILES, M, N, K, LENGTH,
    a_stack, a_row, b_stack, b_row, out_stack, out_row, f_row,
    parts, symmetric, multiplies, width, adds,
    WHOLE: tl.constexpr, TILE: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    # A tile of A B^T, of one product of a stack or of one part of its sums; see _launch.
    tile = tl.program_id(0)
    place = tl.program_id(1).to(tl.int64)
    stack = place // parts
    begin = (place % parts).to(tl.int32) * LENGTH
    end = tl.minimum(K, begin + LENGTH)
    i = tl.load(TILES + 2 * tile)
    j = tl.load(TILES + 2 * tile + 1)
    rows = i * TILE + tl.arange(0, TILE)
    columns = j * TILE + tl.arange(0, TILE)
    step = tl.arange(0, STEP)
    left = A + stack * a_stack + (rows % M).to(tl.int64)[:, None] * a_row + (begin + step)[None, :]
    right = B + stack * b_stack + (columns % N).to(tl.int64)[None, :] * b_row
    right += (begin + step)[:, None]
    total = tl.zeros((TILE, TILE), dtype=tl.float32)
    for k in range(begin, end, STEP):
        if WHOLE:
            a = tl.load(left)
            b = tl.load(right)
        else:
            a = tl.load(left, mask=step[None, :] < K - k, other=0.0)
            b = tl.load(right, mask=step[:, None] < K - k, other=0.0)
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
    out = OUT + place * out_stack
    target = out + rows.to(tl.int64)[:, None] * out_row + columns[None, :]
    if adds != 0:
        total += tl.load(target, mask=inside, other=0.0)
    tl.store(target, total, mask=inside)
    if symmetric != 0:
        if i != j:
            below = out + columns.to(tl.int64)[:, None] * out_row + rows[None, :]
            turned = (columns < N)[:, None] & (rows < M)[None, :]
            tl.store(below, tl.trans(total), mask=turned)


@triton.jit(do_not_specialize=["R", "S", "width"])
def sums_over_positions(
    A, B, OUT, R, S, C, out_row, width,
    TILE: tl.constexpr, NARROW: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    # out[r, y, j] = sum over s and c of A[y, s, r, c] B[y, s, j, c], for a tile of rows and one y.
    rows = tl.program_id(0) * TILE + tl.arange(0, TILE)
    y = tl.program_id(1).to(tl.int64)
    columns = tl.arange(0, NARROW)
    step = tl.arange(0, STEP)
    left = A + y * S * R * C + (rows % R).to(tl.int64)[:, None] * C + step[None, :]
    right = B + y * S * width * C + (columns % width)[None, :] * C + step[:, None]
    total = tl.zeros((TILE, NARROW), dtype=tl.float32)
    for k in range(0, S * C, STEP):
        position = (k // C).to(tl.int64)
        place = k % C
        a = tl.load(left + (position * R * C + place))
        b = tl.load(right + (position * width * C + place))
        a_high = _rounded(a)
        b_high = _rounded(b)
        a_low = _rounded(a - a_high)
        b_low = _rounded(b - b_high)
        part = tl.dot(a_low, b_high, input_precision="tf32")
        part = tl.dot(a_high, b_low, part, input_precision="tf32")
        part = tl.dot(a_high, b_high, part, input_precision="tf32")
        total += part
    inside = (rows < R)[:, None] & (columns < width)[None, :]
    target = OUT + rows.to(tl.int64)[:, None] * out_row + y * width + columns[None, :]
    tl.store(target, total, mask=inside)
