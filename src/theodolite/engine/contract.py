"""From factors of two blocks of examples to a block of the tangent kernel.

Every route fills the same target: a matrix with one row for each (example, output) pair of the
first block and one column for each pair of the second. If both blocks are the same, only stripes
down to the diagonal are computed, and :meth:`KernelBlock.mirror` completes them.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from theodolite.engine.batches import spans
from theodolite.engine.factors import (
    DenseFactors,
    Factors,
    LookupFactors,
    MixedFactors,
    OuterFactors,
    PositionFactors,
    joined,
)
from theodolite.engine.patches import Place


@dataclass(frozen=True)
class KernelBlock:
    """A block of a kernel, which may be a view into a larger kernel."""

    values: Tensor  # (nx, r, ny, r): r is the number of outputs, or one for a trace over them

    def part(self, left: slice, right: slice) -> "KernelBlock":
        """The block between two ranges of examples, a view."""
        return KernelBlock(self.values[left, :, right])

    @property
    def rows_per_example(self) -> int:
        """Rows r of the matrix that belong to one example."""
        return self.values.shape[1]

    @property
    def matrix(self) -> Float[Tensor, "nxr nyr"]:
        """The block as a matrix, a view."""
        nx, r, ny, _ = self.values.shape
        strides = self.values.stride()
        # Rows (x, i) and columns (y, j) merge without a copy, even inside a larger kernel.
        shape, steps = (nx * r, ny * r), (strides[1], strides[3])
        return self.values.as_strided(shape, steps, self.values.storage_offset())

    def rows_of(self, gradients: Tensor) -> Float[Tensor, "n r ..."]:
        """Gradients or output gradients (n, c, C, ...); for a trace (n, 1, c C, ...)."""
        whole = gradients.shape[1] == self.rows_per_example
        return gradients if whole else gradients.flatten(1, 2).unsqueeze(1)

    def add_full(self, kernel: Float[Tensor, "nx c ny c"]) -> None:
        """Add a full kernel, or its trace over outputs."""
        if kernel.shape[1] != self.rows_per_example:
            kernel = kernel.diagonal(dim1=1, dim2=3).sum(2)[:, None, :, None]
        self.values.add_(kernel)

    def mirror(self, stripe_size: int) -> None:
        """Complete a symmetric block from the part on and above its diagonal stripes.

        Rounding may have made the diagonal squares slightly asymmetric.
        """
        matrix = self.matrix
        for rows in spans(len(matrix), stripe_size * self.rows_per_example):
            if rows.start:
                matrix[rows, : rows.start] = matrix[: rows.start, rows].T
            square = matrix[rows, rows]
            square.copy_((square + square.T).mul_(0.5))

    def mirror_block(self, rows: slice, columns: slice) -> None:
        """Copy the part between two ranges of examples to its place on the other side."""
        self.part(columns, rows).matrix.copy_(self.part(rows, columns).matrix.T)


class PositionGram:
    """Gram matrices of blocks of examples, (nx, T, ny, T)."""

    def __init__(self, left: PositionFactors, right: PositionFactors, symmetric: bool) -> None:
        self._dtype = left.output_grads.dtype
        self._bias = len(left.names) > 1
        self._left = _position_rows(left)
        self._right = self._left if symmetric else _position_rows(right)

    def block(self, left: slice, right: slice) -> Tensor:
        """Inner products between two ranges of examples, plus one if a bias is included."""
        a, b = self._left[left], self._right[right]
        if not a.is_floating_point():
            return _same_tokens(a, b).to(self._dtype)
        flat = a.flatten(0, 1) @ b.flatten(0, 1).T
        gram = flat.view(*a.shape[:2], *b.shape[:2])
        return gram.add_(1.0) if self._bias else gram


def _position_rows(factors: PositionFactors) -> Tensor:
    """One row per position: tokens (n, T), or inputs (n, T, D)."""
    if isinstance(factors, LookupFactors):
        return factors.tokens
    assert isinstance(factors, OuterFactors)
    if factors.geometry is None:
        return factors.inputs
    return factors.geometry.patch_rows(factors.geometry.pad(factors.inputs)).contiguous()


def _same_tokens(a: Tensor, b: Tensor) -> Tensor:
    same = a[:, :, None, None] == b[None, None]
    return same.logical_and_((a >= 0)[:, :, None, None])


_MOST_STRIPES = 8  # they compute 9/16 of a large symmetric block
_LEAST_ROWS = 128  # of the kernel in one stripe: narrower products are slower


def stripe_size(examples: int, rows: int) -> int:
    """Examples per stripe of a symmetric block.

    A stripe of columns ends at the diagonal: more stripes save more work, fewer are larger
    products.

    Args:
        examples: Number of examples.
        rows: Rows of the kernel that belong to one example.
    """
    stripes = max(1, min(_MOST_STRIPES, examples * rows // _LEAST_ROWS))
    return -(-examples // stripes)


@dataclass(frozen=True)
class Contraction:
    """Adds kernels of groups to blocks."""

    tile_bytes: int  # size of intermediate results
    stripe_size: int  # examples per stripe of a symmetric block
    # Whether both sides are the same factors. Only the part on and above the diagonal stripes is
    # then filled; KernelBlock.mirror completes it.
    symmetric: bool

    def add(
        self, left: Factors | None, right: Factors | None, block: KernelBlock, overwrite: bool
    ) -> None:
        """Add the kernel of one group, or overwrite the block with it; None has zero gradients."""
        if left is None or right is None:
            if overwrite:
                block.values.zero_()
            return
        sides = left, right
        contract: Callable[[Any, Any, KernelBlock, bool], None] = self._positions
        if any(isinstance(side, MixedFactors) for side in sides):
            contract = self._mixed
        elif isinstance(left, DenseFactors):
            contract = self._stored_gradients
        elif left.route == "gradients":
            contract = self._formed_gradients
        elif all(isinstance(side, PositionFactors) and side.positions == 1 for side in sides):
            contract = self._hadamard  # not for sequences longer than the planned example
        contract(left, right, block, overwrite)

    def _mixed(self, left: Factors, right: Factors, block: KernelBlock, overwrite: bool) -> None:
        """Products with products, lookups with lookups, and each with the other."""
        outer, lookup = _both_uses(left)
        other_outer, other_lookup = _both_uses(right)
        self.add(outer, other_outer, block, overwrite)
        self.add(lookup, other_lookup, block, False)
        cross = other_cross = None
        if outer is not None and other_lookup is not None:
            cross = _cross_gram(outer, other_lookup)
            block.add_full(cross)
        if self.symmetric:
            other_cross = cross
        elif other_outer is not None and lookup is not None:
            other_cross = _cross_gram(other_outer, lookup)
        if other_cross is not None:
            block.add_full(other_cross.permute(2, 3, 0, 1))

    def _ranges(self, left: int, right: int) -> Iterator[tuple[slice, slice]]:
        """Ranges that cover a block, or the part on and above its diagonal stripes."""
        if not self.symmetric:
            yield slice(0, left), slice(0, right)
            return
        for columns in spans(right, self.stripe_size):
            yield slice(0, columns.stop), columns

    def _stored_gradients(
        self, left: DenseFactors, right: DenseFactors, block: KernelBlock, overwrite: bool
    ) -> None:
        """Inner products of stored gradients, (n, c, ...) in pieces whose products add."""
        for a, b in zip(left.pieces(), right.pieces(), strict=True):
            self._gram(a, b, block, overwrite)
            overwrite = False

    def _gram(self, left: Tensor, right: Tensor, block: KernelBlock, overwrite: bool) -> None:
        """Inner products of one piece of the gradients."""
        x, y = (block.rows_of(side.flatten(2)) for side in (left, right))
        for rows, columns in self._ranges(len(left), len(right)):
            target = block.part(rows, columns).matrix
            _multiply(target, x[rows].flatten(0, 1), y[columns].flatten(0, 1), overwrite)

    def _formed_gradients(
        self, left: OuterFactors, right: OuterFactors, block: KernelBlock, overwrite: bool
    ) -> None:
        """Form gradients of all examples, some of their entries at a time."""
        sides = (left,) if self.symmetric else (left, right)
        for J in _gradient_parts(sides, self.tile_bytes):
            self._gram(J[0], J[-1], block, overwrite)
            overwrite = False

    def _hadamard(
        self, left: PositionFactors, right: PositionFactors, block: KernelBlock, overwrite: bool
    ) -> None:
        """One position: the elementwise product of a forward and a backward kernel."""
        gram = PositionGram(left, right, self.symmetric)
        x, y = (block.rows_of(side.output_grads.squeeze(3)) for side in (left, right))
        for rows, columns in self._ranges(len(x), len(y)):
            forward = gram.block(rows, columns)  # (nx, 1, ny, 1)
            part = block.part(rows, columns)
            factors = x[rows].flatten(0, 1), y[columns].flatten(0, 1)
            if overwrite:
                _multiply(part.matrix, *factors, overwrite)
                part.values.mul_(forward)
            else:
                backward = factors[0] @ factors[1].T
                part.values.addcmul_(backward.view(part.values.shape), forward)

    def _positions(
        self, left: PositionFactors, right: PositionFactors, block: KernelBlock, overwrite: bool
    ) -> None:
        """G = A A'^T of a tile of examples, then its products with output gradients."""
        gram = PositionGram(left, right, self.symmetric)
        B, B2 = (block.rows_of(side.output_grads) for side in (left, right))
        _, r, C, T = B.shape
        first = _by_position(B) if r == 1 else B
        second = first if r == 1 and self.symmetric else _by_position(B2)
        # For one pair and one position of the second side: products at all pairs of positions, or
        # B^i G; then G and a copy of it.
        numbers = (T if r == 1 else r * C) + 2 * T
        size = B2.shape[3] * numbers * B.element_size()
        contract = _weighted_by_gram if r == 1 else _through_gram
        for rows, columns in self._tiles((len(B), len(B2)), size):
            total = contract(first[rows], gram.block(rows, columns), second[columns])
            target = block.part(rows, columns).values
            target.copy_(total) if overwrite else target.add_(total)

    def _tiles(self, sizes: tuple[int, int], size: int) -> Iterator[tuple[slice, slice]]:
        """Ranges of examples whose intermediate results fit, from the bytes per pair."""
        pairs = max(1, self.tile_bytes // max(1, size))
        for rows, columns in self._ranges(*sizes):
            height = min(rows.stop, pairs)
            length = columns.stop - columns.start
            parts = -(-length // max(1, pairs // height))
            for x in spans(rows.stop, height):
                for y in spans(length, -(-length // parts)):
                    yield x, slice(columns.start + y.start, columns.start + y.stop)


def _weighted_by_gram(
    B: Float[Tensor, "nx T 1 C"], G: Float[Tensor, "nx T ny S"], B2: Float[Tensor, "ny S 1 C"]
) -> Float[Tensor, "nx 1 ny 1"]:
    """For one row per example: <B(t), B'(s)> in one product, then the sum with weights G."""
    pairs = (B.flatten(0, 2) @ B2.flatten(0, 2).T).view_as(G)
    return pairs.mul_(G).sum((1, 3))[:, None, :, None]


def _through_gram(
    B: Float[Tensor, "nx r C T"], G: Float[Tensor, "nx T ny S"], B2: Float[Tensor, "ny S r C"]
) -> Float[Tensor, "nx r ny r"]:
    """For r rows per example: B^i G, then <B^i G, B'^j>, each in one launch and without a copy.

    The products of all examples are written side by side: each position of the second side has one
    contiguous matrix of all examples and outputs.
    """
    nx, r, C, _ = B.shape
    ny, S, _, _ = B2.shape
    inner = G.flatten(2).transpose(1, 2)  # (nx, ny S, T)
    products = B.new_empty(ny * S, nx, r * C)
    torch.bmm(inner, B.flatten(1, 2).mT, out=products.transpose(0, 1))
    rows, others = products.view(ny * S, nx * r, C), B2.flatten(0, 1)
    values = torch.bmm(rows, others.mT).view(ny, S, nx, r, r)
    return values.sum(1).permute(1, 2, 0, 3)


def _multiply(target: Tensor, left: Tensor, right: Tensor, overwrite: bool) -> None:
    """``target = left @ right.T``, or added to ``target``."""
    torch.addmm(target, left, right.T, beta=0 if overwrite else 1, out=target)


def _both_uses(factors: Factors) -> tuple[OuterFactors | None, LookupFactors | None]:
    """Factors of the products with a table, and factors of the lookups in it."""
    if isinstance(factors, MixedFactors):
        return factors.outer, factors.lookup
    if isinstance(factors, OuterFactors):
        return factors, None
    assert isinstance(factors, LookupFactors)
    return None, factors


def _cross_gram(outer: OuterFactors, lookup: LookupFactors) -> Float[Tensor, "nx c ny c"]:
    r"""Inner products between gradients of products and of lookups.

    .. math:: \sum_{t, s} b^i_t[\mathrm{token}_s]\; (a_t \cdot \beta^j_s)

    Here products have inputs a and output gradients b, and lookups of tokens have beta.
    """
    columns = []
    for tokens, output_grads in zip(lookup.tokens, lookup.b, strict=True):
        c, D, S = output_grads.shape
        selected = outer.b[:, :, tokens.clamp(min=0)].flatten(2)  # (nx, c, S T)
        products = outer.a @ output_grads.transpose(0, 1).reshape(D, c * S)
        products = products.view(*products.shape[:2], c, S).permute(0, 3, 1, 2)  # (nx, S, T, c)
        columns.append(selected @ products.flatten(1, 2))
    return torch.stack(columns, 2)


def _by_position(output_grads: Tensor) -> Tensor:
    """Output gradients (n, r, C, T) as (n, T, r, C), in one copy."""
    return output_grads.permute(0, 3, 1, 2).contiguous()


def _gradient_parts(sides: Sequence[OuterFactors], tile_bytes: int) -> Iterator[list[Tensor]]:
    """Entries of the gradients of every side, (n, c, ...), as many at a time as fit a tile."""
    first, usable = sides[0], tile_bytes // 2
    C, size = first.width, len(first) * first.output_count * first.output_grads.element_size()
    places: list[Place] = [()]
    if first.geometry is not None:
        places = first.geometry.places(first.inputs.shape[1], usable // (size * C))
    width = first.columns // len(places)
    most = max(1, usable // (size * width))
    for place in places:
        for rows in spans(C, -(-C // -(-C // most))):  # equal heights
            formed = [_formed_entries(side, place, rows, usable // width) for side in sides]
            yield [part.view(len(part), first.output_count, -1) for part in formed]
    if first.has_bias:
        yield [side.output_grads.sum(3) for side in sides]


def _formed_entries(side: OuterFactors, place: Place, rows: slice, column_bytes: int) -> Tensor:
    """Entries of the gradients, (n, c rows, columns); patches of some examples at a time."""
    column = side.positions * side.output_grads.element_size()
    parts = [
        side.output_grads[span, :, rows].flatten(1, 2) @ _input_columns(side[span], place).mT
        for span in spans(len(side), max(1, column_bytes // column))
    ]
    return joined(parts, 0)


def _input_columns(side: OuterFactors, place: Place) -> Tensor:
    """The inputs at a place of the window, (n, columns, T); all of them without a convolution."""
    if side.geometry is None:
        return side.inputs.mT
    return side.geometry.columns(side.inputs, place)
