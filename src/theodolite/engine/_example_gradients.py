"""Norms and sums of the gradients of single examples, for one tensor and one batch.

The gradients themselves are factored (outer products over positions), and where the factors are
cheaper than the gradients these are never formed: norms follow from two small Gram matrices per
example, sums over a class from one product. Elsewhere gradients of a few examples exist at a time.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import inf, log2
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from theodolite.engine._factors import DenseFactors, FactorLayout
from theodolite.engine._plan import ParameterGroup
from theodolite.engine.calls import Dense, Lookup, Outer, Structure, Summed
from theodolite.engine.layers import Ownership
from theodolite.engine.uses import Use

__all__ = [
    "LONG_ROW",
    "DenseGradients",
    "ExampleGradients",
    "LookupGradients",
    "OuterGradients",
    "Segment",
    "SegmentTotal",
    "SharedGrams",
    "Sink",
    "SummedGradients",
    "TiedGradients",
    "cut",
    "example_gradients",
    "is_tied_table",
    "members_of",
    "norms_from_factors",
    "ranges",
    "row_norms",
    "segment_groups",
    "squared_row_norms",
    "wide_dtype",
    "wide_product",
]

_CHUNK_BYTES = {"cpu": 2**25, "cuda": 2**30}  # stays near the cache; keeps the GPU busy
# An entry of a gradient is written and read a few times; in that time this many multiply-adds run.
_PRODUCTS_PER_ENTRY = 32
_HALVES_PER_ENTRY = 512  # of half precision on a GPU
LONG_ROW = 2**16  # entries
_SUM_BYTES = 12  # of one entry of a sum, in float32 and in float64


@dataclass(frozen=True)
class Segment:
    """Consecutive examples of one class; ``closes`` if no later example belongs to the class."""

    label: int
    start: int
    stop: int
    closes: bool


Sink = Callable[[list[Segment], Tensor], None]


class ExampleGradients(ABC):
    """Gradients of the loss of each example with respect to one tensor."""

    coarse: bool = False  # whether they are products of half precision

    @abstractmethod
    def reduce(self, segments: Sequence[Segment], sink: Sink) -> Float[Tensor, "*m n"]:
        """Squared norm per example; sums of segments, ``(s, *m, p)``, go to the sink.

        A norm that vanishes may come out below zero by rounding.

        A segment may be handed over in parts, in order; only the last part closes it. Entries of a
        sum come in an order of their own, the same in all batches: only norms are taken of them.
        """

    @abstractmethod
    def weighted_sums(
        self, segments: Sequence[Segment], weights: Float[Tensor, " n"] | None, sink: Sink
    ) -> None:
        """Sums of segments, with a weight per example if any, go to the sink."""

    @abstractmethod
    def singles(self, examples: slice) -> Float[Tensor, "k *m p"]:
        """Gradients of a few examples, entries in the order of sums."""

    def arrangement(self) -> Callable[[Tensor], Float[Tensor, " p"]]:
        """From a gradient of the tensor to the order of the entries of sums; holds no data."""
        return torch.flatten


class DenseGradients(ExampleGradients):
    """Gradients as they are, ``(n, ...)``."""

    def __init__(self, gradients: Float[Tensor, "n ..."]) -> None:
        self._gradients = gradients

    @property
    def width(self) -> int:
        """Entries of a row."""
        return self._gradients[0].numel()

    @cached_property
    def rows(self) -> Float[Tensor, "n p"]:
        """One gradient per row, at least in float32."""
        return _working(self._gradients).reshape(len(self._gradients), -1)

    def reduce(self, segments: Sequence[Segment], sink: Sink) -> Float[Tensor, " n"]:
        """Norms and sums of rows."""
        self.sums(segments, None, sink)
        return squared_row_norms(self.rows)

    def weighted_sums(
        self, segments: Sequence[Segment], weights: Float[Tensor, " n"] | None, sink: Sink
    ) -> None:
        """Weighted sums of rows."""
        self.sums(segments, None if weights is None else weights.to(self.rows), sink)

    def singles(self, examples: slice) -> Float[Tensor, "m p"]:
        """Some of the rows."""
        return self.rows[examples]

    def sums(self, segments: Sequence[Segment], weights: Tensor | None, sink: Sink) -> None:
        """One product with the matrix that says who belongs to which segment."""
        size = self.rows.shape[1] * _SUM_BYTES
        for group in segment_groups(segments, size, self.rows.device):
            rows = range(group[0].start, group[-1].stop)
            members = members_of(tuple(group), rows, self.rows.dtype, self.rows.device)
            if weights is not None:
                members = members * weights[rows.start : rows.stop]
            sink(group, members @ self.rows[rows.start : rows.stop])


@final
class SummedGradients(DenseGradients):
    """Gradients of a scale or shift, added up over positions when they are asked for."""

    def __init__(self, summed: Summed, gradient: Tensor) -> None:
        self._summed, self._output_grads = summed, summed.output_grads(gradient)

    @property
    def width(self) -> int:
        """Entries of a row."""
        return self._output_grads.shape[2]

    @cached_property
    def rows(self) -> Float[Tensor, "n p"]:
        """One gradient per row, at least in float32."""
        return _working(self._summed.sum(self._output_grads, self._summed.inputs))

    @property
    def outline(self) -> tuple[object, ...]:
        """Equal for scales and shifts that can be added up together."""
        inputs = self._summed.inputs
        kinds = None if inputs is None else inputs.dtype, self._output_grads.dtype
        return self._summed.alike, self._output_grads.shape, kinds

    @staticmethod
    def together(alike: Sequence["SummedGradients"]) -> Iterator[Float[Tensor, "n p"]]:
        """The rows of several that are alike, a few operations for all of them."""
        first = alike[0]
        if len(alike) == 1:
            yield first.rows
            return
        size = first._output_grads.numel() * 2 * first._output_grads.element_size()
        for span in ranges(len(alike), size, first._output_grads.device):
            chosen = alike[span.start : span.stop]
            inputs = [one._summed.inputs for one in chosen]
            factors = [values for values in inputs if values is not None]
            stacked = torch.stack(factors) if factors else None
            output_grads = torch.stack([one._output_grads for one in chosen])
            yield from _working(first._summed.sum(output_grads, stacked))


@final
class LookupGradients(ExampleGradients):
    """Rows of a table picked by tokens ``(n, T)``; output gradients ``(n, D, T)``."""

    def __init__(
        self, structures: Sequence[Lookup], gradients: Sequence[Tensor], scale: float
    ) -> None:
        self._rows = structures[0].rows
        self._tokens = torch.cat([structure.tokens for structure in structures], dim=1)
        output_grads = torch.cat(_output_grads(structures, gradients, scale), dim=2)
        self._output_grads = output_grads.transpose(1, 2)

    @property
    def width(self) -> int:
        """Entries of a row."""
        return self._output_grads.shape[2]

    def factors(self) -> tuple[Tensor, Float[Tensor, "n t d"]]:
        """Tokens and output gradients at all positions."""
        return self._tokens, self._output_grads

    def reduce(self, segments: Sequence[Segment], sink: Sink) -> Float[Tensor, " n"]:
        """Positions with the same token interact, others do not."""
        positions = self._tokens.shape[1]
        size = positions * positions * self._output_grads.element_size()
        norms = []
        for rows in ranges(len(self._tokens), size, self._output_grads.device):
            tokens = self._tokens[rows.start : rows.stop]
            output_grads = self._output_grads[rows.start : rows.stop]
            same = tokens.unsqueeze(1) == tokens.unsqueeze(2)
            norms.append(
                (output_grads @ output_grads.mT).where(same, 0.0).sum((1, 2), dtype=torch.float64)
            )
        self.weighted_sums(segments, None, sink)
        return torch.cat(norms)

    def weighted_sums(
        self, segments: Sequence[Segment], weights: Float[Tensor, " n"] | None, sink: Sink
    ) -> None:
        """Output gradients added into the rows of their tokens."""
        for part in segments:
            sink([part], self.sum_of(part, weights))

    def singles(self, examples: slice) -> Float[Tensor, "m p"]:
        """One table per example."""
        return torch.cat([self.sum_of(part, None) for part in _alone(examples)])

    def sum_of(
        self, part: Segment, weights: Float[Tensor, " n"] | None, table: Tensor | None = None
    ) -> Float[Tensor, "1 p"]:
        """The sum of a segment, added to a table of all rows if there is one."""
        output_grads = self._output_grads[part.start : part.stop]
        if weights is not None:
            own = weights[part.start : part.stop].to(output_grads)
            output_grads = output_grads * own.view(-1, 1, 1)
        if table is None:
            table = output_grads.new_zeros(self._rows, output_grads.shape[2])
        picked = self._tokens[part.start : part.stop].flatten()
        return table.index_add_(0, picked, output_grads.flatten(0, 1)).view(1, -1)


@final
class OuterGradients(ExampleGradients):
    r"""Gradients :math:`\sum_t b_t a_t^\top`; several uses of one tensor join their positions."""

    def __init__(
        self,
        structures: Sequence[Outer],
        gradients: Sequence[Tensor],
        scale: float,
        grams: "SharedGrams | None" = None,
        *,
        norms_only: bool = False,
    ) -> None:
        self._structures = list(structures)
        self._grams = grams or SharedGrams()
        half = scale == 1.0 and _multiplies_halves(structures, gradients)
        self._output_grads = _output_grads(structures, gradients, scale, exact=not half)
        self._offsets_first = len(structures) == 1 and structures[0].geometry is not None
        self._count = len(self._output_grads[0])
        self._kept = self._output_grads[0].dtype  # of the factors
        self.coarse = half
        self._dtype = wide_dtype(self._kept)  # of products and sums
        self.device = self._output_grads[0].device
        self._positions = sum(structure.positions for structure in structures)
        self._size = structures[0].rows * structures[0].columns
        self._by_factors = prefers_factors(
            self._positions,
            structures[0].rows,
            structures[0].columns,
            _HALVES_PER_ENTRY if half else _PRODUCTS_PER_ENTRY,
        )
        if norms_only:  # gradients serve no sums then: whichever takes fewer multiplications
            both = structures[0].rows + structures[0].columns
            self._by_factors |= self._positions * both < self._size

    @property
    def outline(self) -> tuple[int, int, bool, torch.dtype] | None:
        """Equal for matrices that can be stacked; None where one cannot."""
        first, *others = self._structures
        if others or first.geometry is not None:
            return None
        return first.rows, first.columns, first.transposed, self._kept

    @property
    def by_factors(self) -> bool:
        """Whether norms come from the factors; from gradients otherwise."""
        return self._by_factors

    def rows_of_factors(self) -> tuple[Float[Tensor, "n t d"], Float[Tensor, "n t c"]]:
        """Inputs and output gradients as they are, for one use without a geometry."""
        return self._inputs(range(self._count)), self._output_grads[0].mT

    def factors(self) -> tuple[Float[Tensor, "n t d"], Float[Tensor, "n c t"]]:
        """Inputs and output gradients at all positions."""
        rows = range(self._count)
        return self._inputs(rows).to(self._dtype), self._output_grad(rows).to(self._dtype)

    def reduce(self, segments: Sequence[Segment], sink: Sink) -> Float[Tensor, " n"]:
        """By the factors or by gradients of a few examples, whichever is cheaper."""
        norms: list[Tensor] = []
        for rows in self._chunks(range(self._count)):
            output_grads, parts = self._output_grad(rows), cut(segments, rows)
            if self._by_factors:
                inputs = self._inputs(rows)
                norms.append(norms_from_factors(inputs, output_grads, self._grams))
                self._products(parts, rows, inputs, output_grads, sink)
                continue
            gradients = self._gradients(rows, output_grads)
            norms.append(squared_row_norms(gradients))
            if parts:
                members = members_of(tuple(parts), rows, self._dtype, self.device)
                sink(parts, members @ gradients.flatten(1))
        return torch.cat(norms)

    def weighted_sums(
        self, segments: Sequence[Segment], weights: Float[Tensor, " n"] | None, sink: Sink
    ) -> None:
        """One product per segment, whatever the route of the norms."""
        for span in _spans(segments):
            for rows in self._chunks(span):
                inputs, output_grads = self._inputs(rows), self._output_grad(rows)
                if weights is not None:
                    inputs = inputs.to(self._dtype)
                    scale = weights[rows.start : rows.stop].to(self._dtype).view(-1, 1, 1)
                    output_grads = output_grads.to(self._dtype) * scale
                self._products(cut(segments, rows), rows, inputs, output_grads, sink)

    def singles(self, examples: slice) -> Float[Tensor, "m p"]:
        """One product for all of them, in half precision where factors are."""
        if self._offsets_first or len(self._structures) > 1:
            places = (range(part.start, part.stop) for part in _alone(examples))
            parts = [self._gradients(rows, self._output_grad(rows)) for rows in places]
            return torch.cat(parts).flatten(1)
        inputs = self._inputs(range(self._count))[examples]
        return wide_product(self._output_grads[0][examples], inputs).flatten(1)

    def arrangement(self) -> Callable[[Tensor], Float[Tensor, " p"]]:
        """Rows before columns, kernel offsets before channels."""
        if self._structures[0].transposed:
            return _columns_first
        return _offsets_before_channels if self._offsets_first else torch.flatten

    def _gradients(self, rows: range, output_grads: Tensor) -> Float[Tensor, "m c d"]:
        """Gradients of a few examples; strips serve several kernel offsets without a copy."""
        geometry = self._structures[0].geometry
        if not self._offsets_first or geometry is None or not geometry.has_strips:
            return wide_product(output_grads, self._inputs(rows))
        images = self._structures[0].inputs[rows.start : rows.stop].to(self._dtype)
        windows = geometry.strips(images)
        width = windows[0].shape[1]
        result = output_grads.new_empty(*output_grads.shape[:2], len(windows), width)
        for index, window in enumerate(windows):
            torch.bmm(output_grads, window.mT, out=result[:, :, index])
        return result.flatten(2)

    def _products(
        self, parts: list[Segment], rows: range, inputs: Tensor, output_grads: Tensor, sink: Sink
    ) -> None:
        """The sum of a segment is one product over all of its examples and positions."""
        columns = output_grads.transpose(0, 1)
        for group in segment_groups(parts, self._size * _SUM_BYTES, self.device):
            if len({part.stop - part.start for part in group}) == 1:  # one product for all
                left, right = self._by_segment(group, rows, inputs, output_grads)
                sink(group, wide_product(left, right).flatten(1))
                continue
            shape = len(group), output_grads.shape[1], inputs.shape[2]
            sums = output_grads.new_empty(shape, dtype=self._dtype)
            for index, part in enumerate(group):
                span = slice(part.start - rows.start, part.stop - rows.start)
                left, right = columns[:, span].flatten(1), inputs[span].flatten(0, 1)
                if left.dtype == self._dtype:
                    torch.mm(left, right, out=sums[index])
                else:
                    sums[index] = torch.mm(left, right, out_dtype=self._dtype)
            sink(group, sums.flatten(1))

    def _by_segment(
        self, group: list[Segment], rows: range, inputs: Tensor, output_grads: Tensor
    ) -> tuple[Float[Tensor, "s c m"], Float[Tensor, "s m d"]]:
        """Factors of segments of one length, all examples and positions side by side; views."""
        start, stop = group[0].start - rows.start, group[-1].stop - rows.start
        if stop - start < len(rows):
            inputs, output_grads = inputs[start:stop], output_grads[start:stop]
        count = len(group)
        if output_grads.stride(1) == 1:  # positions before rows, as in matrices of tokens
            left = output_grads.mT.reshape(count, -1, output_grads.shape[1]).mT
        else:
            left = output_grads.reshape(count, -1, *output_grads.shape[1:])
            left = left.transpose(1, 2).flatten(2)
        return left, inputs.reshape(count, -1, inputs.shape[2])

    def _chunks(self, span: range) -> Iterator[range]:
        structure = self._structures[0]
        entries = self._positions * structure.columns if structure.geometry else 0
        if self._by_factors:
            entries += self._positions * (2 * self._positions + structure.rows)
        else:
            entries += self._size
        for rows in ranges(len(span), entries * self._dtype.itemsize, self.device):
            yield range(span.start + rows.start, span.start + rows.stop)

    def _inputs(self, rows: range) -> Tensor:
        """``(n, T, D)``, a strided view; of patches, kernel offsets before channels."""
        first, *others = self._structures
        if first.geometry is None and not others and len(rows) == self._count:
            return first.inputs if first.inputs.dtype == self._kept else first.inputs.to(self._kept)
        parts = []
        for structure in self._structures:
            chosen = replace(
                structure, inputs=structure.inputs[rows.start : rows.stop].to(self._kept)
            )
            if self._offsets_first and structure.geometry is not None:
                inside = self._by_factors
                parts.append(structure.geometry.patch_views(chosen.inputs, examples_inside=inside))
            else:
                parts.append(chosen.rows_of_inputs())
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    def _output_grad(self, rows: range) -> Tensor:
        parts = [output_grad[rows.start : rows.stop] for output_grad in self._output_grads]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)


def _columns_first(gradient: Tensor) -> Float[Tensor, " p"]:
    return gradient.T.flatten()


def _offsets_before_channels(gradient: Tensor) -> Float[Tensor, " p"]:
    return gradient.flatten(2).transpose(1, 2).flatten()


def _alone(examples: slice) -> list[Segment]:
    """Segments of one example each."""
    places = range(examples.start, examples.stop, examples.step or 1)
    return [Segment(0, place, place + 1, closes=True) for place in places]


def _spans(segments: Sequence[Segment]) -> list[range]:
    """Ranges of examples without gaps between the segments."""
    spans: list[range] = []
    for part in segments:
        if spans and spans[-1].stop == part.start:
            spans[-1] = range(spans[-1].start, part.stop)
        else:
            spans.append(range(part.start, part.stop))
    return spans


def prefers_factors(
    positions: int, rows: int, columns: int, per_entry: int = _PRODUCTS_PER_ENTRY
) -> bool:
    """Whether two Gram matrices over positions cost less than writing and reading a gradient."""
    products = positions * positions * (rows + columns)
    return positions == 1 or products < per_entry * rows * columns


def _multiplies_halves(structures: Sequence[Outer], gradients: Sequence[Tensor]) -> bool:
    """Whether factors stay in half precision: their products are then exact in float32.

    A GPU multiplies them an order of magnitude faster than the same numbers in float32.
    """
    first = gradients[0]
    if first.dtype not in (torch.float16, torch.bfloat16) or not _has_wide_products(first.device):
        return False
    kinds = {gradient.dtype for gradient in gradients}
    kinds |= {structure.inputs.dtype for structure in structures}
    return kinds == {first.dtype} and all(s.geometry is None for s in structures)


@lru_cache(maxsize=8)
def _has_wide_products(device: torch.device) -> bool:
    """Whether this device multiplies bfloat16 into float32."""
    if device.type != "cuda":
        return False
    one = torch.ones(1, 16, 16, dtype=torch.bfloat16, device=device)
    try:
        return torch.bmm(one, one, out_dtype=torch.float32).dtype == torch.float32
    except (RuntimeError, TypeError):
        return False


def wide_product(left: Tensor, right: Tensor) -> Tensor:
    """Products of matrices, at least in float32."""
    wide = wide_dtype(left.dtype)
    return left @ right if left.dtype == wide else torch.bmm(left, right, out_dtype=wide)


@lru_cache(maxsize=32)
def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of products and sums: at least float32."""
    return torch.promote_types(dtype, torch.float32)


class SharedGrams:
    """Products of inputs with themselves; queries, keys and values have the same."""

    def __init__(self) -> None:
        self._inputs: Tensor | None = None  # held: its memory belongs to no other tensor meanwhile
        self._gram: Tensor
        self._members: list[Tensor] = []
        self._stack: Tensor

    def of(self, inputs: Float[Tensor, "n t d"]) -> Float[Tensor, "n t t"]:
        """The product for each example, at least in float32; not to be overwritten."""
        if self._inputs is None or _place(self._inputs) != _place(inputs):
            self._inputs, self._gram = inputs, wide_product(inputs, inputs.mT)
        return self._gram

    def stacked(self, inputs: list[Tensor]) -> Float[Tensor, "m n t d"]:
        """Inputs of several matrices side by side; not to be overwritten."""
        if [*map(_place, self._members)] != [*map(_place, inputs)]:
            self._members, self._stack = inputs, torch.stack(inputs)
        return self._stack


def _place(tensor: Tensor) -> tuple[object, ...]:
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


def norms_from_factors(inputs: Tensor, output_grads: Tensor, grams: SharedGrams) -> Tensor:
    if inputs.shape[1] == 1:
        return squared_row_norms(_working(inputs)) * squared_row_norms(_working(output_grads))
    products = wide_product(output_grads.mT, output_grads).mul_(grams.of(inputs))
    exact = products.dtype == output_grads.dtype
    return products.sum((1, 2), dtype=torch.float64 if exact else None)


def cut(segments: Sequence[Segment], rows: range) -> list[Segment]:
    """The parts of segments inside a range of examples; a part that is not the last stays open."""
    parts = []
    for part in segments:
        start, stop = max(part.start, rows.start), min(part.stop, rows.stop)
        if start < stop:
            closes = part.closes and stop == part.stop
            parts.append(Segment(part.label, start, stop, closes))
    return parts


def segment_groups(
    segments: Sequence[Segment], size: int, device: torch.device
) -> Iterator[list[Segment]]:
    """Neighbouring segments whose sums together stay below the limit of the device."""
    for rows in ranges(len(segments), size, device):
        yield list(segments[rows.start : rows.stop])


@lru_cache(maxsize=16)
def members_of(
    parts: tuple[Segment, ...], rows: range, dtype: torch.dtype, device: torch.device
) -> Float[Tensor, "s m"]:
    """Row s is one for the examples of segment s and zero for the others; alike for all layers."""
    members = torch.zeros(len(parts), len(rows), dtype=dtype, device=device)
    for index, part in enumerate(parts):
        members[index, part.start - rows.start : part.stop - rows.start] = 1.0
    return members


def _output_grads(
    structures: Sequence[Outer | Lookup],
    gradients: Sequence[Tensor],
    scale: float,
    exact: bool = True,
) -> list[Tensor]:
    pairs = zip(structures, gradients, strict=True)
    found = [structure.output_grads(gradient) for structure, gradient in pairs]
    output_grads = [_working(part) for part in found] if exact else found
    return output_grads if scale == 1.0 else [output_grad * scale for output_grad in output_grads]


def _working(tensor: Tensor) -> Tensor:
    """At least float32."""
    return tensor.to(wide_dtype(tensor.dtype))


# Largest entries whose squares, and those of much smaller ones, float32 holds to full accuracy.
_SQUARES_FIT = (1e-12, 1e15)


def squared_row_norms(rows: Tensor) -> Tensor:
    """Squared norm of each row, in float64.

    On the CPU ``vector_norm`` adds up float32 entries one after the other and loses three digits
    over a million of them; ``sum`` adds pairwise. Where squares would leave the range of float32
    (gradients of fitted examples do), the rows are brought to a largest entry of about 1 first.
    """
    axes = tuple(range(1, rows.ndim))
    if rows.device.type == "cpu":
        largest = float(rows.abs().max()) if rows.numel() else 0.0
        if _SQUARES_FIT[0] < largest < _SQUARES_FIT[1] or not 0 < largest < inf:
            return rows.square().sum(axes).double()
        unit = 2.0 ** -round(log2(largest))
        return (rows * unit).square().sum(axes).double() / unit**2
    return row_norms(rows).square()


def row_norms(rows: Tensor, exact: bool = True) -> Float[Tensor, " n"]:
    """Norm of each row; in float64, of long ones on a GPU without a copy, unless not exact."""
    if not exact:
        return torch.linalg.vector_norm(rows, dim=1)
    long = rows.numel() >= LONG_ROW * len(rows) and rows.dtype != torch.float64
    if long and rows.device.type == "cuda":
        return torch.stack(torch._foreach_norm(list(rows.unbind(0)), 2, torch.float64))
    return torch.linalg.vector_norm(rows.flatten(1), dim=1, dtype=torch.float64)


def ranges(count: int, size: int, device: torch.device) -> Iterator[range]:
    """Ranges of examples whose buffers stay below the limit of the device."""
    step = max(1, _CHUNK_BYTES.get(device.type, 2**25) // max(size, 1))
    for start in range(0, count, step):
        yield range(start, min(start + step, count))


def is_tied_table(structures: Sequence[Structure]) -> bool:
    """Whether a tensor is used as a table of rows and as a matrix with the same rows."""
    lookups = [structure for structure in structures if isinstance(structure, Lookup)]
    outers = [structure for structure in structures if isinstance(structure, Outer)]
    if not lookups or not outers or len(lookups) + len(outers) < len(structures):
        return False
    return all(
        outer.geometry is None and not outer.transposed and outer.rows == lookups[0].rows
        for outer in outers
    )


@final
class TiedGradients(ExampleGradients):
    r"""Gradients :math:`\sum_t e_{k_t} s_t^\top + \sum_u b_u a_u^\top` of one table."""

    def __init__(
        self, structures: Sequence[Structure], gradients: Sequence[Tensor], scale: float
    ) -> None:
        pairs = list(zip(structures, gradients, strict=True))
        lookups = [structure for structure in structures if isinstance(structure, Lookup)]
        outers = [structure for structure in structures if isinstance(structure, Outer)]
        looked_up = [value for structure, value in pairs if isinstance(structure, Lookup)]
        multiplied = [value for structure, value in pairs if isinstance(structure, Outer)]
        self.lookup = LookupGradients(lookups, looked_up, scale)
        self.outer = OuterGradients(outers, multiplied, scale, norms_only=True)

    def reduce(self, segments: Sequence[Segment], sink: Sink) -> Float[Tensor, " n"]:
        """The two squared norms and twice the inner product, position by position."""
        squares = self.lookup.reduce((), sink) + self.outer.reduce((), sink)
        tokens, output_grads = self.lookup.factors()  # (n, T), (n, T, D)
        inputs, outputs = self.outer.factors()  # (n, U, D), (n, rows, U)
        picked = outputs.gather(1, tokens.unsqueeze(2).expand(-1, -1, outputs.shape[2]))
        cross = ((output_grads @ inputs.mT) * picked).sum((1, 2), dtype=torch.float64)
        self.weighted_sums(segments, None, sink)
        return squares + 2 * cross

    def weighted_sums(
        self, segments: Sequence[Segment], weights: Float[Tensor, " n"] | None, sink: Sink
    ) -> None:
        """Both sums of a segment, added before they are handed over."""
        for part in segments:
            product = SegmentTotal()
            self.outer.weighted_sums([part], weights, product.add)
            table = product.value.view(-1, self.lookup.width)
            sink([part], self.lookup.sum_of(part, weights, table))

    def singles(self, examples: slice) -> Float[Tensor, "m p"]:
        """Products, and the rows of tokens added."""
        rows = self.outer.singles(examples)
        for row, part in zip(rows, _alone(examples), strict=True):
            self.lookup.sum_of(part, None, row.view(-1, self.lookup.width))
        return rows


class SegmentTotal:
    """A sum that is handed over in parts."""

    value: Tensor

    def add(self, _parts: list[Segment], sums: Tensor) -> None:
        """One more part."""
        self.value = self.value.add_(sums) if hasattr(self, "value") else sums


def example_gradients(
    uses: Sequence[Use],
    groups: Sequence[ParameterGroup],
    arrived: Sequence[Tensor | None],
    owned: Ownership,
    examples: int,
) -> Iterator[tuple[str, ExampleGradients]]:
    """Parameter -> gradients of the examples, for every parameter that receives any.

    Args:
        uses: all uses of one run.
        groups: these uses by parameters.
        arrived: gradients at the results of all uses, one after the other; None where zero.
        owned: the parameters.
        examples: number of examples.
    """
    grouped = _by_use(uses, arrived)
    grams = SharedGrams()
    for group in groups:
        chosen = [
            (uses[index], grouped[index])
            for index in group.uses
            if any(gradient is not None for gradient in grouped[index])
        ]
        if not chosen:
            continue
        for use, _ in chosen:
            use.require_unchanged()
        yield from _of_group(group, chosen, owned, examples, grams)


def _by_use(
    uses: Sequence[Use], arrived: Sequence[Tensor | None]
) -> list[tuple[Tensor | None, ...]]:
    position, grouped = 0, []
    for use in uses:
        grouped.append(tuple(arrived[position : position + len(use.edges)]))
        position += len(use.edges)
    return grouped


def _of_group(
    group: ParameterGroup,
    chosen: list[tuple[Use, tuple[Tensor | None, ...]]],
    owned: Ownership,
    examples: int,
    grams: SharedGrams,
) -> Iterator[tuple[str, ExampleGradients]]:
    structures = [use.structure for use, _ in chosen]
    gradients = [given[0] for _, given in chosen if given[0] is not None]
    scale = chosen[0][0].origin.scale or 1.0
    if group.kind == "outer":
        outer = [structure for structure in structures if isinstance(structure, Outer)]
        yield group.parameter, OuterGradients(outer, gradients, scale, grams)
        if group.bias is not None:
            biases = [
                SummedGradients(Summed(lambda b: b.mT), structure.output_grads(gradient))
                for structure, gradient in zip(outer, gradients, strict=True)
            ]
            single = len(biases) == 1
            rows = None if single else torch.stack([bias.rows for bias in biases]).sum(0)
            yield group.bias, biases[0] if rows is None else DenseGradients(rows)
    elif group.kind == "lookup":
        lookups = [structure for structure in structures if isinstance(structure, Lookup)]
        yield group.parameter, LookupGradients(lookups, gradients, scale)
    elif group.direct and is_tied_table(structures):
        yield group.parameter, TiedGradients(structures, gradients, scale)
    else:
        yield group.parameter, _dense(group, chosen, owned, examples)


def _dense(
    group: ParameterGroup,
    chosen: list[tuple[Use, tuple[Tensor | None, ...]]],
    owned: Ownership,
    examples: int,
) -> ExampleGradients:
    """Gradients as such; added up over uses and pulled back where the tensor was transformed."""
    use, given = chosen[0]
    structure = use.structure
    plain = group.direct and len(chosen) == 1 and len(given) == 1 and use.origin.scale == 1.0
    if plain and given[0] is not None and isinstance(structure, Dense) and not structure.own_rows:
        if structure.summed is not None:
            return SummedGradients(structure.summed, given[0])
        return DenseGradients(structure.jacobian(given[0]))
    parameter = owned.parameters[group.parameter]
    dtype = wide_dtype(parameter.dtype)
    factors = DenseFactors(group, FactorLayout(examples, 1, dtype, parameter.device), parameter)
    factors.begin(slice(0, examples), [use for use, _ in chosen])
    factors.add(0, [given for _, given in chosen])
    factors.end()
    return DenseGradients(factors.gradients[0].squeeze(1))
