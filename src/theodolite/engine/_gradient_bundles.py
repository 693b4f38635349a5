"""Gradients of many tensors at once: fewer and larger operations than tensor by tensor.

Deep networks repeat their layers. Matrices of one shape at the same place of each layer are stacked
(:class:`OuterStack`), scales and shifts of one shape are added up together, and all small tensors
lie side by side in one matrix: the number of operations is that of one layer, not of all.
"""

import re
from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from functools import lru_cache
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from theodolite.engine._example_gradients import (
    LONG_ROW,
    DenseGradients,
    ExampleGradients,
    OuterGradients,
    Segment,
    SharedGrams,
    Sink,
    SummedGradients,
    cut,
    members_of,
    norms_from_factors,
    ranges,
    row_norms,
    segment_groups,
    wide_dtype,
    wide_product,
)

__all__ = ["Bundle", "OuterStack", "bundled", "part_norms"]

_SMALL = 2**14  # entries of a tensor whose cost is that of the calls, not of the numbers
# Entries of all matrices of a stack. On a CPU calls cost little beside products of larger ones; on
# a GPU the sums of a few classes stay below a GiB.
_STACKED = {"cpu": 2**17, "cuda": 2**26}

Named = tuple[str, ExampleGradients]


@final
class OuterStack(ExampleGradients):
    """Gradients of m matrices of one shape, (n, m, p): products of one are products of all.

    Sequences of different lengths are padded: positions without a gradient change nothing.
    """

    def __init__(self, members: Sequence[OuterGradients], grams: SharedGrams) -> None:
        outline = members[0].outline
        assert outline is not None
        self._rows, self._columns, self._transposed, kept = outline
        self._size = self._rows * self._columns
        self._dtype = wide_dtype(kept)
        pairs = [member.rows_of_factors() for member in members]
        self._positions = max(inputs.shape[1] for inputs, _ in pairs)
        self._inputs = [self._padded(inputs) for inputs, _ in pairs]
        self._output_grads = [self._padded(output_grads) for _, output_grads in pairs]
        self._grams, self.coarse = grams, members[0].coarse
        self._by_factors = any(member.by_factors for member in members)

    def _padded(self, rows: Float[Tensor, "n t d"]) -> Tensor:
        missing = self._positions - rows.shape[1]
        return functional.pad(rows, (0, 0, 0, missing)) if missing else rows

    def reduce(self, segments: Sequence[Segment], sink: Sink) -> Float[Tensor, "m n"]:
        """By the factors or by gradients of a few examples, whichever is cheaper."""
        norms = []
        for rows in self._chunks():
            inputs, output_grads = self._stacked(rows)
            parts = cut(segments, rows)
            if self._by_factors:
                squares = self._squares(inputs.flatten(0, 1), output_grads.flatten(0, 1))
                for group in segment_groups(parts, self._bytes, inputs.device):
                    sink(group, self._sums(group, rows, inputs, output_grads))
            else:
                gradients = self._product(inputs.flatten(0, 1), output_grads.flatten(0, 1))
                squares = row_norms(gradients).square()
                members = members_of(tuple(parts), rows, self._dtype, inputs.device)
                every = gradients.view(len(inputs), len(rows), self._size)
                sink(parts, (members @ every).transpose(0, 1))
            norms.append(squares.view(len(inputs), -1))
        return norms[0] if len(norms) == 1 else torch.cat(norms, 1)

    def _squares(self, inputs: Tensor, output_grads: Tensor) -> Float[Tensor, " b"]:
        """Squared norms from the factors; layers may differ by more than float32 can square."""
        if self._positions > 1:
            return norms_from_factors(inputs, output_grads.mT, self._grams)
        return (row_norms(inputs) * row_norms(output_grads)).square()

    def weighted_sums(
        self, segments: Sequence[Segment], weights: Float[Tensor, " n"] | None, sink: Sink
    ) -> None:
        """One product per segment."""
        for part in segments:
            rows = range(part.start, part.stop)
            inputs, output_grads = (side.to(self._dtype) for side in self._stacked(rows))
            if weights is not None:
                scale = weights[part.start : part.stop].to(self._dtype)
                output_grads = output_grads * scale.view(-1, 1, 1)
            sink([part], self._sums([part], rows, inputs, output_grads))

    def singles(self, examples: slice) -> Float[Tensor, "k m p"]:
        """One product for all of them, in half precision where factors are."""
        sides = (
            torch.stack([side[examples] for side in sides], 1)
            for sides in (self._inputs, self._output_grads)
        )
        inputs, output_grads = sides
        product = self._product(inputs.flatten(0, 1), output_grads.flatten(0, 1))
        return product.view(len(inputs), len(self._inputs), self._size)

    def _sums(
        self, parts: Sequence[Segment], rows: range, inputs: Tensor, output_grads: Tensor
    ) -> Float[Tensor, "s m p"]:
        """Sums of segments: products over their examples and positions, of views."""
        m, lengths = len(inputs), [part.stop - part.start for part in parts]
        if len(set(lengths)) == 1:
            start, stop = parts[0].start - rows.start, parts[-1].stop - rows.start
            sides = (
                side[:, start:stop].reshape(m * len(parts), -1, side.shape[3])
                for side in (inputs, output_grads)
            )
            return self._product(*sides).view(m, len(parts), self._size).transpose(0, 1)
        sums = []
        for part in parts:
            span = slice(part.start - rows.start, part.stop - rows.start)
            sides = (side[:, span].flatten(1, 2) for side in (inputs, output_grads))
            sums.append(self._product(*sides).flatten(1))
        return torch.stack(sums)

    def _product(
        self, inputs: Float[Tensor, "b t d"], output_grads: Float[Tensor, "b t c"]
    ) -> Tensor:
        """Entries in the order of the parameter's own."""
        if self._transposed:
            return wide_product(inputs.mT, output_grads)
        return wide_product(output_grads.mT, inputs)

    def _stacked(self, rows: range) -> tuple[Float[Tensor, "m k t d"], Float[Tensor, "m k t c"]]:
        inputs, output_grads = self._inputs, self._output_grads
        if len(rows) < len(inputs[0]):
            inputs, output_grads = (
                [side[rows.start : rows.stop] for side in sides] for sides in (inputs, output_grads)
            )
        return self._grams.stacked(inputs), torch.stack(output_grads)

    @property
    def _bytes(self) -> int:
        """Of the sum of one segment."""
        return len(self._inputs) * self._size * self._dtype.itemsize

    def _chunks(self) -> Iterator[range]:
        T = self._positions
        entries = T * (self._rows + self._columns)
        entries += 2 * T * T if self._by_factors else self._size
        size = len(self._inputs) * entries * self._dtype.itemsize
        return ranges(len(self._inputs[0]), size, self._inputs[0].device)


@final
class Bundle:
    """Gradients of one or several tensors.

    Args:
        names: the tensors.
        gradients: gradients of all of them, stacked or side by side.
        widths: entries of each tensor; empty for a single one.
    """

    def __init__(
        self, names: tuple[str, ...], gradients: ExampleGradients, widths: tuple[int, ...] = ()
    ) -> None:
        self.names, self.gradients, self.widths = names, gradients, widths

    def reduce(self, segments: Sequence[Segment], sink: Sink) -> Float[Tensor, "m n"]:
        """Squared norms per tensor and example; sums of segments go to the sink."""
        if not isinstance(self.gradients, DenseGradients) or not self.widths:
            norms = self.gradients.reduce(segments, sink)
            return norms.view(-1, norms.shape[-1])
        self.gradients.sums(segments, None, sink)
        return _part_squares(self.gradients.rows, self.widths).mT


def part_norms(
    rows: Float[Tensor, "k *m p"], widths: tuple[int, ...], exact: bool = True
) -> Float[Tensor, "k m"]:
    """Norms of rows, of each part apart where they are stacked or side by side."""
    if rows.dim() == 3:
        long = exact and rows.is_cuda and rows.shape[2] >= LONG_ROW and rows.dtype != torch.float64
        if long:  # without a copy
            single = [row for stack in rows.unbind(0) for row in stack.unbind(0)]
            return torch.stack(torch._foreach_norm(single, 2, torch.float64)).view(rows.shape[:2])
        return torch.linalg.vector_norm(rows, dim=2, dtype=torch.float64 if exact else None)
    if len(widths) < 2:
        return row_norms(rows, exact).unsqueeze(1)
    return _part_squares(rows, widths).sqrt()


def _part_squares(rows: Float[Tensor, "k p"], widths: tuple[int, ...]) -> Float[Tensor, "k m"]:
    """Squared norms of parts side by side: one product, or where that is too large their sums."""
    squares = rows.double().square()
    if rows.device.type == "cpu" and rows.shape[1] > _SMALL:
        return torch.stack([part.sum(1) for part in torch.split(squares, list(widths), 1)], 1)
    return squares @ _column_groups(widths, rows.device)


@lru_cache(maxsize=8)
def _column_groups(widths: tuple[int, ...], device: torch.device) -> Float[Tensor, "p m"]:
    """Column m is one on the entries of tensor m."""
    sizes = torch.tensor(widths, device=device)
    owners = torch.arange(len(widths), device=device).repeat_interleave(sizes)
    return functional.one_hot(owners, len(widths)).double()


def bundled(gradients: Iterator[Named], *, stacked: bool = True) -> Iterator[Bundle]:
    """The same gradients in fewer pieces: stacks of matrices, and all small tensors at the end.

    Args:
        gradients: name of a tensor -> gradients of the examples.
        stacked: whether matrices may be stacked; which ones does not depend on the examples.
    """
    small: list[tuple[str, DenseGradients]] = []
    stacks: dict[Hashable, list[tuple[str, OuterGradients]]] = defaultdict(list)
    for name, values in gradients:
        if isinstance(values, DenseGradients) and values.width <= _SMALL:
            small.append((name, values))
        elif stacked and isinstance(values, OuterGradients) and values.outline is not None:
            stacks[_place(name), values.outline].append((name, values))
        else:
            yield Bundle((name,), values)
    grams = SharedGrams()
    for members in stacks.values():
        yield from _stacks(members, grams)
    if small:
        rows = _rows(small)
        widths = tuple(part.shape[1] for part in rows.values())
        yield Bundle(tuple(rows), DenseGradients(torch.cat([*rows.values()], dim=1)), widths)


@lru_cache(maxsize=2**14)
def _place(name: str) -> str:
    """A parameter's place in its layer: its name without numbers."""
    return re.sub(r"\d+", "*", name)


def _stacks(members: list[tuple[str, OuterGradients]], grams: SharedGrams) -> Iterator[Bundle]:
    outline, device = members[0][1].outline, members[0][1].device
    assert outline is not None
    size = outline[0] * outline[1]
    most = max(1, _STACKED.get(device.type, _STACKED["cpu"]) // size)
    for start in range(0, len(members), most):
        names, values = zip(*members[start : start + most], strict=True)
        if len(names) == 1:
            yield Bundle(names, values[0])
        else:
            yield Bundle(names, OuterStack(values, grams), (size,) * len(names))


def _rows(small: list[tuple[str, DenseGradients]]) -> dict[str, Float[Tensor, "n p"]]:
    """Rows of small tensors; scales and shifts that are alike are added up together."""
    rows = dict.fromkeys((name for name, _ in small), torch.empty(0))  # keeps their order
    alike: dict[Hashable, list[tuple[str, SummedGradients]]] = defaultdict(list)
    for name, values in small:
        if isinstance(values, SummedGradients):
            alike[values.outline].append((name, values))
        else:
            rows[name] = values.rows
    for members in alike.values():
        names, several = zip(*members, strict=True)
        rows |= zip(names, SummedGradients.together(several), strict=True)
    return rows
