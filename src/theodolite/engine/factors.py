r"""Gradients of single examples as factors: inputs a and output gradients b of one parameter group.

With n examples, c outputs, T positions, C rows and D columns, the gradient of output i with respect
to a matrix is :math:`J^i = \sum_t b^i_t a_t^\top`. Everything that the engine computes from the
gradients of examples is one of four methods of :class:`Factors`:

* ``gradients``: the gradients themselves, (n, c, p),
* ``squared_norms``: their squared norms, (n, c),
* ``weighted_sums``: their sums over ranges of examples, with weights or without, (ranges, p),
* the Gram matrix with other factors: :class:`theodolite.engine.contract.Contraction`.

``factors[rows]`` are the factors of some examples (views for a slice). To bound memory, form
gradients of as many examples at a time as fit. Parts that one method has formed are reused by the
next one.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from math import inf, log2
from typing import Literal, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from theodolite.engine.batches import spans
from theodolite.engine.patches import PatchGeometry
from theodolite.engine.state import HALF, coarse_arithmetic

# Writing and reading an entry of a gradient takes as long as this many multiply-adds. On a GPU it
# was measured with matrices of GPT-2, Llama and ViT (benchmarks/README.md).
_PRODUCTS_PER_ENTRY = {"cpu": 32, "cuda": 128}
# If the largest square is in this range, float32 holds it and, to full accuracy, those of much
# smaller entries: they neither overflow nor underflow.
_SQUARES_FIT = (1e-24, 1e30)
_FEW_NUMBERS = 2**13  # float64 is as fast for these


Examples = slice | list[int] | Int[Tensor, " m"]
# Orders in which the Gram matrix of gradients is contracted; ``plan`` chooses one.
Route = Literal["hadamard", "positions", "gradients"]


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of products and sums: at least float32."""
    return torch.float32 if dtype in HALF else dtype


def joined(parts: Sequence[Tensor], axis: int) -> Tensor:
    """Join parts; a single part is not copied."""
    return parts[0] if len(parts) == 1 else torch.cat([*parts], axis)


def scaled(tensor: Tensor, scale: float | None) -> Tensor:
    """A tensor times the factor by which its parameter was multiplied."""
    return tensor if scale in (None, 1.0) else tensor * scale


def squared_norms_of(vectors: Float[Tensor, "*rows p"]) -> Float[Tensor, "*rows"]:
    """Squared norms over the last axis, in float64.

    On a CPU ``vector_norm`` adds float32 entries one after the other and loses three digits over a
    million of them; in float64 it takes twice as long as ``sum``, which adds pairwise. Gradients of
    fitted examples have squares outside the range of float32. Such entries are scaled by a power of
    two first.
    """
    if not vectors.is_cpu or vectors.dtype == torch.float64 or vectors.numel() <= _FEW_NUMBERS:
        return torch.linalg.vector_norm(vectors, dim=-1, dtype=torch.float64).square()
    squares = vectors.square().sum(-1)
    if vectors.shape[-1] * _SQUARES_FIT[0] < float(squares.max()) < _SQUARES_FIT[1]:
        return squares.double()
    largest = float(vectors.abs().max())
    if not 0 < largest < inf:
        return squares.double()
    unit = 2.0 ** -round(log2(largest))
    return (vectors * unit).square().sum(-1).double() / unit**2


class Factors(ABC):
    """Gradients of the outputs of some examples with respect to one parameter group.

    Attributes:
        names: The parameters of the group: one, or a matrix and its bias.
        output_count: The number of outputs c.
        entries: The number of entries p of one gradient.
        route: The order in which their Gram matrix is contracted.
    """

    names: tuple[str, ...]
    output_count: int
    entries: int
    route: Route = "gradients"

    @property
    @abstractmethod
    def working_bytes(self) -> int:
        """Bytes of intermediate results for one example."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __getitem__(self, examples: Examples) -> "Factors": ...

    @abstractmethod
    def pieces(self) -> list[Float[Tensor, "n c _"]]:
        """The gradients, cut into pieces along their entries."""

    @abstractmethod
    def unpack(self, vector: Float[Tensor, " p"]) -> dict[str, Tensor]:
        """Parameter -> its entries of a gradient, in the shape of the used tensor."""

    def gradients(self) -> Float[Tensor, "n c p"]:
        """The gradients; :meth:`unpack` gives the order of their entries."""
        return joined(self.pieces(), 2)

    def squared_norms(self) -> Float[Tensor, "n c"]:
        """Squared norms of the gradients, in float64; rounding may make zero slightly negative."""
        squares = [squared_norms_of(piece) for piece in self.pieces()]
        return squares[0] if len(squares) == 1 else torch.stack(squares).sum(0)

    def weighted_sums(
        self, ranges: Sequence[slice], weights: Float[Tensor, "n c"] | None = None
    ) -> Float[Tensor, "s p"]:
        """Sums of the gradients of ranges of examples over examples and outputs.

        Args:
            ranges: Consecutive examples, in order and without overlap.
            weights: One number per example and output; None for ones.
        """
        pieces, found = self.pieces(), []
        if weights is None:
            weights = pieces[0].new_ones(len(self), self.output_count)
        weights = weights.to(pieces[0])
        for some in _equal_neighbours(ranges):
            rows, count = _examples_of(ranges[some]), some.stop - some.start
            size = (rows.stop - rows.start) // count * self.output_count
            left = weights[rows].reshape(count, 1, size)
            parts = [torch.bmm(left, p[rows].reshape(count, size, p.shape[2])) for p in pieces]
            found.append(joined(parts, 2).squeeze(1))
        return joined(found, 0)

    def spans(self, limit: int) -> Iterator[slice]:
        """Ranges of examples whose intermediate results stay below this number of bytes."""
        return spans(len(self), max(1, limit // max(1, self.working_bytes)))


@final
class DenseFactors(Factors):
    """Gradients themselves, in pieces (n, c, k) side by side.

    Args:
        names: The parameters.
        pieces: Their gradients.
        shape: Shape of the used tensor; None for a flat one.
    """

    def __init__(
        self,
        names: tuple[str, ...],
        pieces: list[Float[Tensor, "n c _"]],
        shape: Sequence[int] | None = None,
    ) -> None:
        self.names, self._pieces, self._shape = names, pieces, shape
        self.output_count = pieces[0].shape[1]
        self.entries = sum(piece.shape[2] for piece in pieces)

    def __len__(self) -> int:
        return len(self._pieces[0])

    @property
    def working_bytes(self) -> int:
        """Bytes of the squares of one example's gradients."""
        return self.entries * self.output_count * self._pieces[0].element_size()

    def __getitem__(self, examples: Examples) -> "DenseFactors":
        return DenseFactors(self.names, [piece[examples] for piece in self._pieces], self._shape)

    def pieces(self) -> list[Float[Tensor, "n c _"]]:
        """The gradients in pieces side by side, at least in float32."""
        return [piece.to(wide_dtype(piece.dtype)) for piece in self._pieces]

    def unpack(self, vector: Float[Tensor, " p"]) -> dict[str, Tensor]:
        """The whole vector, which belongs to the only parameter."""
        shape = tuple(vector.shape if self._shape is None else self._shape)
        fits = vector.numel() == torch.Size(shape).numel()  # complex entries are two numbers
        return {self.names[0]: vector.view(shape) if fits else vector}


class PositionFactors(Factors):
    """Factors with output gradients at every position.

    Args:
        names: The parameters of the group.
        output_grads: (n, c, C, T).

    Attributes:
        width: C, the entries of an output gradient at one position.
        positions: T.
    """

    def __init__(self, names: tuple[str, ...], output_grads: Float[Tensor, "n c C T"]) -> None:
        self.names, self.output_grads = names, output_grads
        _, self.output_count, self.width, self.positions = output_grads.shape

    def __len__(self) -> int:
        return self.output_grads.shape[0]

    @cached_property
    def b(self) -> Float[Tensor, "n c C T"]:
        """Output gradients, at least in float32."""
        return self.output_grads.to(wide_dtype(self.output_grads.dtype))


@final
class OuterFactors(PositionFactors):
    r"""Inputs a and output gradients b of a matrix, with or without its bias.

    Args:
        names: The matrix, and its bias if its gradient :math:`\sum_t b_t` belongs to the group.
        inputs: (n, T, D), or images (n, channels, ...) with ``geometry``.
        output_grads: (n, c, C, T).
        geometry: How patches are cut from the images; entries are ordered by kernel offset, then
            channel.
        shape: Shape of the matrix or kernel.
        transposed: Whether the matrix is stored as (D, C).
        route: The order in which the Gram matrix is contracted.

    Attributes:
        columns: D.
        has_bias: Whether a bias belongs to the group.
    """

    def __init__(
        self,
        names: tuple[str, ...],
        inputs: Tensor,
        output_grads: Float[Tensor, "n c C T"],
        *,
        geometry: PatchGeometry | None = None,
        shape: Sequence[int] = (),
        transposed: bool = False,
        route: Route = "positions",
    ) -> None:
        super().__init__(names, output_grads)
        self.inputs, self.geometry, self.route = inputs, geometry, route
        self.shape, self.transposed = tuple(shape), transposed
        offsets = 1 if geometry is None else geometry.offset_count
        self.columns = inputs.shape[2 if geometry is None else 1] * offsets
        self.has_bias = len(names) > 1
        self.entries = self.width * (self.columns + self.has_bias)

    @property
    def working_bytes(self) -> int:
        """Bytes of patches, and of Gram matrices over positions or of gradients."""
        T, D, C = self.positions, self.columns, self.width
        patches = T * D if self.geometry is not None else 0
        if self._gradients_are_cheaper:
            numbers = self.output_count * C * D
        else:
            numbers = T * T * (1 + self.output_count) + self.output_count * T * C
        return (patches + numbers) * wide_dtype(self.output_grads.dtype).itemsize

    def __getitem__(self, examples: Examples) -> "OuterFactors":
        return OuterFactors(
            self.names,
            self.inputs[examples],
            self.output_grads[examples],
            geometry=self.geometry,
            shape=self.shape,
            transposed=self.transposed,
            route=self.route,
        )

    @cached_property
    def _gradients_are_cheaper(self) -> bool:
        """Whether writing, reading and squaring them costs less than Gram matrices of positions."""
        T, C, D = self.positions, self.width, self.columns
        device = self.output_grads.device.type
        per_entry = _PRODUCTS_PER_ENTRY.get(device, _PRODUCTS_PER_ENTRY["cpu"])
        return T > 1 and per_entry * C * D <= T * T * (C + D)

    @cached_property
    def a(self) -> Float[Tensor, "n T D"]:
        """Inputs, one row per position, at least in float32."""
        inputs = self.inputs.to(wide_dtype(self.output_grads.dtype))
        if self.geometry is None:
            return inputs
        return self.geometry.columns(inputs).mT

    def _product_precision(self) -> AbstractContextManager[None]:
        """Tensor cores (TF32) for factors in half precision, which these multiply exactly."""
        if self.output_grads.dtype in HALF and self.inputs.dtype in HALF:
            return coarse_arithmetic(self.output_grads.device)
        return nullcontext()

    @cached_property
    def _formed(self) -> list[Tensor]:
        b = self.b
        with self._product_precision():
            matrix = b.flatten(1, 2) @ self.a
        pieces = [matrix.reshape(*b.shape[:2], -1)]
        return [*pieces, b.sum(3)] if self.has_bias else pieces

    def pieces(self) -> list[Float[Tensor, "n c _"]]:
        """Gradients of the matrix, then of the bias."""
        return self._formed

    def squared_norms(self) -> Float[Tensor, "n c"]:
        """Squared norms from Gram matrices over positions, if these cost less than gradients."""
        if self._gradients_are_cheaper:
            return super().squared_norms()
        b = self.b
        if self.positions == 1:
            squares = squared_norms_of(self.a) + float(self.has_bias)
            return squares * squared_norms_of(b.squeeze(3))
        n, c, _, T = b.shape
        with self._product_precision():
            gram, flat = torch.bmm(self.a, self.a.mT), b.flatten(0, 1)
            pairs = torch.bmm(flat.mT, flat).view(n, c, T, T)
        gram = gram.add_(1.0) if self.has_bias else gram
        return pairs.mul_(gram.unsqueeze(1)).sum((2, 3), dtype=torch.float64)

    def weighted_sums(
        self, ranges: Sequence[slice], weights: Float[Tensor, "n c"] | None = None
    ) -> Float[Tensor, "s p"]:
        """Sums from one product over examples and positions, or from gradients if formed."""
        if self._gradients_are_cheaper:
            return super().weighted_sums(ranges, weights)
        b = self.b
        precision = nullcontext() if weights is not None else self._product_precision()
        if weights is not None:
            b = b * weights.to(b)[:, :, None, None]
        b = b.sum(1) if self.output_count > 1 else b.squeeze(1)
        C, T, D = b.shape[1], b.shape[2], self.columns
        sums = b.new_empty(len(ranges), self.entries)
        matrices = sums[:, : C * D].view(-1, C, D)
        with precision:
            for some in _equal_neighbours(ranges):
                rows, count = _examples_of(ranges[some]), some.stop - some.start
                left = b[rows].view(count, -1, C, T).transpose(1, 2).flatten(2)
                right = self.a[rows].reshape(count, left.shape[2], D)
                torch.bmm(left, right, out=matrices[some])
                if self.has_bias:
                    torch.sum(left, 2, out=sums[some, C * D :])
        return sums

    def unpack(self, vector: Float[Tensor, " p"]) -> dict[str, Tensor]:
        """The matrix in its stored form, and the bias."""
        C, D = self.width, self.columns
        matrix = vector[: C * D].view(C, D)
        if self.transposed:
            matrix = matrix.T
        elif self.geometry is not None:
            matrix = matrix.view(C, self.geometry.offset_count, -1).transpose(1, 2)
        found = {self.names[0]: matrix.reshape(self.shape)}
        return {**found, self.names[1]: vector[C * D :]} if self.has_bias else found


def _equal_neighbours(ranges: Sequence[slice]) -> Iterator[slice]:
    """Indices of ranges that follow each other and have one length: one product serves them."""
    start = 0
    for stop in range(1, len(ranges) + 1):
        last = ranges[stop - 1]
        following = slice(last.stop, 2 * last.stop - last.start)
        if stop == len(ranges) or ranges[stop] != following:
            yield slice(start, stop)
            start = stop


def _examples_of(ranges: Sequence[slice]) -> slice:
    """The examples of ranges that follow each other."""
    return slice(ranges[0].start, ranges[-1].stop)


@final
class LookupFactors(PositionFactors):
    """Tokens and output gradients of a table.

    Args:
        names: The table.
        tokens: The row at every position, (n, T); -1 for none.
        output_grads: (n, c, C, T) for rows of width C, zero without a token.
        table_length: Number of rows of the table.
    """

    route: Route = "positions"

    def __init__(
        self,
        names: tuple[str, ...],
        tokens: Int[Tensor, "n T"],
        output_grads: Float[Tensor, "n c C T"],
        table_length: int,
    ) -> None:
        super().__init__(names, output_grads)
        self.tokens, self.table_length = tokens, table_length
        self.entries = table_length * self.width

    @property
    def working_bytes(self) -> int:
        """Bytes of products over pairs of positions."""
        T = self.positions
        return T * T * (1 + self.output_count) * wide_dtype(self.output_grads.dtype).itemsize

    def __getitem__(self, examples: Examples) -> "LookupFactors":
        return LookupFactors(
            self.names, self.tokens[examples], self.output_grads[examples], self.table_length
        )

    def pieces(self) -> list[Float[Tensor, "n c _"]]:
        """Output gradients added into the rows of their tokens, one table per example."""
        table = self.b.new_zeros(len(self), self.output_count, self.table_length, self.width)
        index = self.tokens.clamp(min=0)[:, None, :, None].expand(
            -1, self.output_count, -1, self.width
        )
        return [table.scatter_add_(2, index, self.b.mT).flatten(2)]

    def squared_norms(self) -> Float[Tensor, "n c"]:
        """Squared norms: only positions with the same token have inner products."""
        same = self.tokens.unsqueeze(1) == self.tokens.unsqueeze(2)
        pairs = self.b.mT @ self.b  # (n, c, T, T)
        return pairs.where(same.unsqueeze(1), 0.0).sum((2, 3), dtype=torch.float64)

    def weighted_sums(
        self, ranges: Sequence[slice], weights: Float[Tensor, "n c"] | None = None
    ) -> Float[Tensor, "s p"]:
        """Output gradients added into the rows of their tokens."""
        sums = self.b.new_zeros(len(ranges), self.table_length, self.width)
        self.add_sums(sums, ranges, weights)
        return sums.flatten(1)

    def add_sums(
        self, tables: Float[Tensor, "s length C"], ranges: Sequence[slice], weights: Tensor | None
    ) -> None:
        """Add the sums of ranges to tables of all rows."""
        b = self.b if weights is None else self.b * weights.to(self.b)[:, :, None, None]
        b = b.sum(1).mT  # (n, T, C)
        tokens = self.tokens.clamp(min=0)
        for table, rows in zip(tables, ranges, strict=True):
            table.index_add_(0, tokens[rows].flatten(), b[rows].flatten(0, 1))

    def unpack(self, vector: Float[Tensor, " p"]) -> dict[str, Tensor]:
        """The table."""
        return {self.names[0]: vector.view(self.table_length, self.width)}


@final
class MixedFactors(Factors):
    """A table that is also used as a matrix with the same rows: factors of both uses.

    Args:
        outer: Factors of the products.
        lookup: Factors of the lookups.
    """

    def __init__(self, outer: OuterFactors, lookup: LookupFactors) -> None:
        self.outer, self.lookup = outer, lookup
        self.names, self.route = outer.names, outer.route
        self.output_count, self.entries = lookup.output_count, lookup.entries

    def __len__(self) -> int:
        return len(self.lookup)

    @property
    def working_bytes(self) -> int:
        """Bytes of both kinds, and of the products between them."""
        size = wide_dtype(self.lookup.output_grads.dtype).itemsize
        between = 2 * self.output_count * self.lookup.positions * self.outer.positions * size
        return self.outer.working_bytes + self.lookup.working_bytes + between

    def __getitem__(self, examples: Examples) -> "MixedFactors":
        return MixedFactors(self.outer[examples], self.lookup[examples])

    def pieces(self) -> list[Float[Tensor, "n c _"]]:
        """Gradients of both uses, added."""
        return [self.outer.gradients() + self.lookup.gradients()]

    def squared_norms(self) -> Float[Tensor, "n c"]:
        """The squared norms of both, and twice their inner product, position by position."""
        b = self.outer.b  # (n, c, rows, U)
        tokens = self.lookup.tokens.clamp(min=0)
        index = tokens[:, None, :, None].expand(-1, self.output_count, -1, b.shape[3])
        products = self.lookup.b.mT @ self.outer.a.mT.unsqueeze(1)  # (n, c, T, U)
        cross = (products * b.gather(2, index)).sum((2, 3), dtype=torch.float64)
        return self.outer.squared_norms() + self.lookup.squared_norms() + 2 * cross

    def weighted_sums(
        self, ranges: Sequence[slice], weights: Float[Tensor, "n c"] | None = None
    ) -> Float[Tensor, "s p"]:
        """Sums of the products, with the rows of tokens added to them."""
        sums = self.outer.weighted_sums(ranges, weights)
        self.lookup.add_sums(sums.view(len(sums), self.lookup.table_length, -1), ranges, weights)
        return sums

    def unpack(self, vector: Float[Tensor, " p"]) -> dict[str, Tensor]:
        """The table."""
        return self.lookup.unpack(vector)
