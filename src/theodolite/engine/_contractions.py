"""From factors of two blocks of examples to a block of the tangent kernel.

Every route fills the same target: a matrix whose rows are (example, output) pairs of the first
block and whose columns are those of the second. Where both blocks are the same, only blocks on and
above the diagonal are computed, and :meth:`KernelBlock.mirror` completes them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from theodolite.engine._blocks import KernelBlock, spans
from theodolite.engine._dense_factors import DenseFactors
from theodolite.engine._factors import Factors, LookupFactors, OuterFactors
from theodolite.engine._mixed_factors import MixedFactors, crossed
from theodolite.engine._patch_views import tap_groups
from theodolite.engine._position_grams import PositionGram
from theodolite.engine._products import Products
from theodolite.engine._routes import pairs_at_once

__all__ = ["Contraction"]

Positions = OuterFactors | LookupFactors


@dataclass(frozen=True)
class Contraction:
    """Adds kernels of atoms to blocks.

    Args:
        products: How to multiply.
        tile_bytes: Size of intermediate results.
        span: Examples per block of a symmetric kernel.
        whole: Whether the only block of a symmetric kernel is a product of symmetric matrices.
    """

    products: Products
    tile_bytes: int
    span: int
    whole: bool = False

    def add(self, left: Factors, right: Factors, block: KernelBlock, fresh: bool) -> None:
        """Add the kernel of one atom; where the block is fresh, overwrite it."""
        if isinstance(left, DenseFactors) and isinstance(right, DenseFactors):
            self._gram(left.gradients, right.gradients, block, fresh)
            return
        if isinstance(left, MixedFactors) and isinstance(right, MixedFactors):
            self._mixed(left, right, block, fresh)
            return
        assert isinstance(left, OuterFactors | LookupFactors)
        assert isinstance(right, OuterFactors | LookupFactors)
        if isinstance(left, OuterFactors) and isinstance(right, OuterFactors) and left.eager:
            self._gram(left.gradients, right.gradients, block, fresh)
        elif left.signals is None or right.signals is None:
            _clear(block, fresh)
        elif isinstance(left, OuterFactors) and left.route == "gradients":
            assert isinstance(right, OuterFactors)
            self._formed_gradients(left, right, block, fresh)
        elif left.signals.shape[3] == 1 and right.signals.shape[3] == 1:
            self._hadamard(left, right, block, fresh)
        else:
            self._positions(left, right, block, fresh)

    def symmetric(self, factors: Factors) -> bool:
        """Whether rounding has left a kernel of factors with themselves symmetric on a CPU."""
        signals = factors.signals if isinstance(factors, OuterFactors) else None
        return self.whole and (signals is None or signals.shape[3] == 1)

    def _mixed(
        self, left: MixedFactors, right: MixedFactors, block: KernelBlock, fresh: bool
    ) -> None:
        """Products with products, lookups with lookups, and each with the other."""
        self.add(left.outer, right.outer, block, fresh)
        self.add(left.lookup, right.lookup, block, False)
        first = crossed(left.outer, right.lookup)
        second = first if left is right else crossed(right.outer, left.lookup)
        if first is not None and second is not None:
            block.add_full(first + second.permute(2, 3, 0, 1))

    def _ranges(self, left: int, right: int, same: bool) -> Iterator[tuple[slice, slice]]:
        """Ranges that cover a block, or the part on and above its diagonal blocks."""
        if not same:
            yield slice(0, left), slice(0, right)
            return
        for columns in spans(right, self.span):
            yield slice(0, columns.stop), columns

    def _gram(
        self, left: Sequence[Tensor], right: Sequence[Tensor], block: KernelBlock, fresh: bool
    ) -> None:
        """Inner products of gradients, (n, c, ...) in parts whose products add."""
        if not left or not right:
            _clear(block, fresh)
            return
        for a, b in zip(left, right, strict=True):
            same = a is b
            first = a.flatten(2)
            for pair in self.products.terms(first, first if same else b.flatten(2)):
                self._add_gram(pair, block, fresh, same)
                fresh = False

    def _add_gram(
        self, pair: tuple[Tensor, Tensor], block: KernelBlock, fresh: bool, same: bool
    ) -> None:
        J, H = block.signals(pair[0]), block.signals(pair[1])
        for rows, columns in self._ranges(len(pair[0]), len(pair[1]), same):
            targets = block.part(rows, columns).matrices()
            for target, x, y in zip(targets, J, H, strict=True):
                first, second = x[rows].flatten(0, 1), y[columns].flatten(0, 1)
                self.products.into(target, first, second, fresh)

    def _formed_gradients(
        self, left: OuterFactors, right: OuterFactors, block: KernelBlock, fresh: bool
    ) -> None:
        """Form gradients of all examples, some of their entries at a time."""
        same = left is right
        for J in _gradient_parts(left, right, self):
            self._gram([J[0]], [J[0] if same else J[1]], block, fresh)
            fresh = False

    def _hadamard(self, left: Positions, right: Positions, block: KernelBlock, fresh: bool) -> None:
        """One position: the product of a forward and a backward kernel, entry by entry."""
        assert left.signals is not None
        assert right.signals is not None
        gram = PositionGram(left, right, self.products)
        B = [self.products.wide(x) for x in block.signals(left.signals.squeeze(3))]
        H = B if left is right else block.signals(right.signals.squeeze(3))
        H = [self.products.right(self.products.wide(y)) for y in H]
        B = [self.products.left(x) for x in B]
        inner = gram.block(slice(None), slice(None)) if block.width > 1 else None  # much smaller
        for rows, columns in self._hadamard_ranges(B[0], H[0], block, left is right):
            part = gram.block(rows, columns) if inner is None else inner[rows, :, columns]
            forward = _repeated(part, block.width)  # (nx, 1, ny * width)
            targets = block.part(rows, columns).matrices()
            for target, x, y in zip(targets, B, H, strict=True):
                pairs = torch.unflatten(target, 0, (-1, block.width))
                factors = x[rows].flatten(0, 1), y[columns].flatten(0, 1)
                if fresh and x.dtype == target.dtype:
                    self.products.into(target, *factors, fresh)
                    pairs.mul_(forward)
                    continue
                backward = self.products.of(*factors).view(pairs.shape)
                if fresh:
                    torch.mul(backward, forward, out=pairs)
                else:
                    pairs.addcmul_(backward.to(pairs.dtype), forward)

    def _hadamard_ranges(
        self, left: Tensor, right: Tensor, block: KernelBlock, same: bool
    ) -> Iterator[tuple[slice, slice]]:
        """Ranges of examples; wide products, which are not formed in place, fit into a tile."""
        sizes = len(left), len(right)
        if left.dtype == block.values.dtype:
            return self._ranges(*sizes, same)
        return self._tiles(sizes, left.element_size() * block.width**2, same)

    def _positions(
        self, left: Positions, right: Positions, block: KernelBlock, fresh: bool
    ) -> None:
        """G = A A'^T, then B^i G for all examples of a tile, then <B^i G, B'^j>."""
        assert left.signals is not None
        assert right.signals is not None
        gram = PositionGram(left, right, self.products)
        B, H = block.signals(left.signals), block.signals(right.signals)
        _, width, C, T = B[0].shape
        at_once = pairs_at_once(width, T)
        first = [_by_position(x) for x in B] if at_once else B
        second = first if at_once and left is right else [_by_position(y) for y in H]
        numbers = H[0].shape[3] * (width * (width * T if at_once else C) + 2 * T)
        size = numbers * B[0].element_size()
        contract = self._weighted if at_once else self._carried
        for rows, columns in self._tiles((len(B[0]), len(H[0])), size, left is right):
            inner = gram.block(rows, columns)
            targets = block.part(rows, columns).pairs()
            for target, x, y in zip(targets, first, second, strict=True):
                total = contract(x[rows], inner, y[columns])
                target.copy_(total) if fresh else target.add_(total)

    def _weighted(self, B: Tensor, G: Tensor, H: Tensor) -> Tensor:
        """<B^i(t), B'^j(t')> of all positions in one product, then the sum with weights G."""
        (nx, T, width, C), (ny, S, _, _) = B.shape, H.shape
        first, second = self.products.left(B.reshape(-1, C)), self.products.right(H.reshape(-1, C))
        pairs = self.products.of(first, second).view(nx, T, width, ny, S, width)
        return pairs.mul_(G[:, :, None, :, :, None]).sum((1, 4))

    def _carried(self, B: Tensor, G: Tensor, H: Tensor) -> Tensor:
        """B^i G, then <B^i G, B'^j>, each in one launch and without a copy.

        The products of an example are written side by side with those of the others: at each
        position of the second side lies one contiguous matrix of all examples and outputs.
        """
        nx, width, C, _ = B.shape
        ny, S, _, _ = H.shape
        inner = self.products.left(G.flatten(2).transpose(1, 2))  # (nx, ny T', T)
        carried = B.new_empty(ny * S, nx, width * C)
        signals = self.products.right(B.flatten(1, 2))
        self.products.into(carried.transpose(0, 1), inner, signals, True)
        rows, others = carried.view(ny * S, nx * width, C), H.flatten(0, 1)
        values = torch.bmm(rows, others.mT).view(ny, S, nx, width, width)
        return values.sum(1).permute(1, 2, 0, 3)

    def _tiles(
        self, sizes: tuple[int, int], size: int, same: bool
    ) -> Iterator[tuple[slice, slice]]:
        """Ranges of examples whose intermediate results, so many bytes per pair, fit."""
        pairs = max(1, self.tile_bytes // size)
        for rows, columns in self._ranges(*sizes, same):
            height = min(rows.stop, pairs)
            length = columns.stop - columns.start
            parts = -(-length // max(1, pairs // height))
            for x in spans(rows.stop, height):
                for y in spans(length, -(-length // parts)):
                    yield x, slice(columns.start + y.start, columns.start + y.stop)


def _repeated(forward: Tensor, width: int) -> Tensor:
    """A kernel (nx, 1, ny, 1) with every column as often as an example has outputs.

    A factor that lies along the rows as its partner does is multiplied twice as fast.
    """
    columns = forward.flatten(2)
    return columns.repeat_interleave(width, 2) if width > 1 else columns


def _by_position(signals: Tensor) -> Tensor:
    """Signals (n, width, C, T) as (n, T, width, C), in one copy."""
    return signals.permute(0, 3, 1, 2).contiguous()


def _clear(block: KernelBlock, fresh: bool) -> None:
    if fresh:
        block.values.zero_()


def _gradient_parts(
    left: OuterFactors, right: OuterFactors, contraction: Contraction
) -> Iterator[tuple[Tensor, Tensor]]:
    """Entries of the gradients of both sides, (n, c, ...), as many at a time as a tile holds."""
    assert left.signals is not None
    sides = (left,) if left is right else (left, right)
    n, c, C, _ = left.signals.shape
    size = n * c * left.signals.element_size()
    room = contraction.products.room(left.signals, contraction.tile_bytes // 2)
    for taps in _tap_parts(left, room // (size * C)):
        columns = [_columns(side, taps) for side in sides]
        most = max(1, room // (size * columns[0].shape[1]))
        for rows in spans(C, -(-C // -(-C // most))):  # of equal height
            parts = [
                torch.bmm(_signal_rows(side, rows), values.transpose(1, 2))
                for side, values in zip(sides, columns, strict=True)
            ]
            formed = [part.view(len(part), c, -1) for part in parts]
            yield formed[0], formed[-1]
    if left.atom.shift is not None:
        sums = [side.signals.sum(3) for side in sides if side.signals is not None]
        yield sums[0], sums[-1]


def _signal_rows(side: OuterFactors, rows: slice) -> Tensor:
    assert side.signals is not None
    return side.signals[:, :, rows].flatten(1, 2)


def _tap_parts(side: OuterFactors, columns: int) -> list[slice]:
    """Taps of a kernel in groups of about this many columns; everything where there are none."""
    if side.geometry is None:
        return [slice(None)]
    assert side.inputs is not None
    return tap_groups(side.geometry, side.inputs.shape[1], columns)


def _columns(side: OuterFactors, taps: slice) -> Tensor:
    """A part of the inputs, (n, columns, T)."""
    assert side.inputs is not None
    if side.geometry is None:
        return side.inputs.transpose(1, 2)
    return side.geometry.columns(side.inputs, taps).flatten(1, 2)
