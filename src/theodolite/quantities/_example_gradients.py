"""Norms and sums of the gradients of single examples, for one tensor and one batch.

The gradients themselves are factored (outer products over positions), and where the factors are
cheaper than the gradients these are never formed: norms follow from two small Gram matrices per
example, sums over a class from one product. Elsewhere gradients of a few examples exist at a time.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from theodolite.capture.forms import Dense, Form, Geometry, Lookup, Outer

__all__ = ["DenseGradients", "ExampleGradients", "LookupGradients", "OuterGradients", "Segment"]

_CHUNK_BYTES = {"cpu": 2**25, "cuda": 2**29}  # stays near the cache; keeps the GPU busy
# An entry of a gradient is written and read a few times; in that time this many multiply-adds run.
_PRODUCTS_PER_ENTRY = 32


@dataclass(frozen=True)
class Segment:
    """Consecutive examples of one class in a batch that is sorted by class."""

    label: int
    start: int
    stop: int

    def within(self, rows: range) -> slice | None:
        """The part that lies in a range of examples, counted from its start."""
        start, stop = max(self.start, rows.start), min(self.stop, rows.stop)
        return slice(start - rows.start, stop - rows.start) if start < stop else None


class ExampleGradients(ABC):
    """Gradients of the loss of each example with respect to one tensor."""

    @abstractmethod
    def reduce(self, segments: Sequence[Segment]) -> tuple[Float[Tensor, " n"], list[Tensor]]:
        """Squared norm per example, in float64, and the sum of each segment."""

    @abstractmethod
    def weighted_sums(
        self, segments: Sequence[Segment], weights: Float[Tensor, " n"]
    ) -> list[Tensor]:
        """The sum of each segment, with a weight per example."""


@final
class DenseGradients(ExampleGradients):
    """Gradients as they are, ``(n, ...)``."""

    def __init__(self, gradients: Float[Tensor, "n ..."]) -> None:
        self._rows = _working(gradients).flatten(1)

    def reduce(self, segments: Sequence[Segment]) -> tuple[Float[Tensor, " n"], list[Tensor]]:
        """Norms and sums of rows."""
        sums = [self._rows[part.start : part.stop].sum(0) for part in segments]
        return _squared_norms(self._rows), sums

    def weighted_sums(
        self, segments: Sequence[Segment], weights: Float[Tensor, " n"]
    ) -> list[Tensor]:
        """Weighted sums of rows."""
        scaled = weights.to(self._rows)
        spans = [slice(part.start, part.stop) for part in segments]
        return [scaled[span] @ self._rows[span] for span in spans]


@final
class LookupGradients(ExampleGradients):
    """Rows of a table picked by tokens ``(n, T)``; signals ``(n, D, T)``."""

    def __init__(self, form: Lookup, gradient: Tensor) -> None:
        self._tokens, self._rows = form.tokens, form.rows
        self._signals = _working(form.signals(gradient)).transpose(1, 2)

    def reduce(self, segments: Sequence[Segment]) -> tuple[Float[Tensor, " n"], list[Tensor]]:
        """Positions with the same token interact, others do not."""
        positions = self._tokens.shape[1]
        size = positions * positions * self._signals.element_size()
        norms = []
        for rows in _ranges(len(self._tokens), size, self._signals.device):
            tokens = self._tokens[rows.start : rows.stop]
            signals = self._signals[rows.start : rows.stop]
            same = tokens.unsqueeze(1) == tokens.unsqueeze(2)
            norms.append((signals @ signals.mT).where(same, 0.0).sum((1, 2), dtype=torch.float64))
        ones = self._signals.new_ones(len(self._tokens))
        return torch.cat(norms), self.weighted_sums(segments, ones)

    def weighted_sums(
        self, segments: Sequence[Segment], weights: Float[Tensor, " n"]
    ) -> list[Tensor]:
        """Signals added into the rows of their tokens."""
        signals = self._signals * weights.to(self._signals).view(-1, 1, 1)
        tables = []
        for part in segments:
            table = signals.new_zeros(self._rows, signals.shape[2])
            picked = self._tokens[part.start : part.stop].flatten()
            tables.append(
                table.index_add_(0, picked, signals[part.start : part.stop].flatten(0, 1))
            )
        return tables


@final
class OuterGradients(ExampleGradients):
    r"""Gradients :math:`\sum_t b_t a_t^\top`; several uses of one tensor join their positions."""

    def __init__(self, forms: Sequence[Outer], gradients: Sequence[Tensor]) -> None:
        self._forms = list(forms)
        self._signals = [
            _working(form.signals(gradient))
            for form, gradient in zip(forms, gradients, strict=True)
        ]
        self._count = len(self._signals[0])
        self._dtype = self._signals[0].dtype
        self._positions = sum(form.positions for form in forms)
        self._by_factors = prefers_factors(self._positions, forms[0].rows, forms[0].columns)

    def reduce(self, segments: Sequence[Segment]) -> tuple[Float[Tensor, " n"], list[Tensor]]:
        """By the factors or by gradients of a few examples, whichever is cheaper."""
        norms: list[Tensor] = []
        sums: list[Tensor | None] = [None] * len(segments)
        for rows in self._chunks():
            inputs, signals = self._inputs(rows), self._signal(rows)
            if self._by_factors:
                norms.append(_norms_from_factors(inputs, signals))
                _add_products(sums, segments, rows, inputs, signals)
            else:
                gradients = signals @ inputs
                norms.append(_squared_norms(gradients))
                _add_parts(sums, segments, rows, gradients)
        return torch.cat(norms), self._ordered(sums)

    def weighted_sums(
        self, segments: Sequence[Segment], weights: Float[Tensor, " n"]
    ) -> list[Tensor]:
        """One product per segment, or sums of gradients of a few examples."""
        sums: list[Tensor | None] = [None] * len(segments)
        for rows in self._chunks():
            scale = weights[rows.start : rows.stop].to(self._dtype).view(-1, 1, 1)
            inputs, signals = self._inputs(rows), self._signal(rows) * scale
            _add_products(sums, segments, rows, inputs, signals)
        return self._ordered(sums)

    def _chunks(self) -> Iterator[range]:
        form = self._forms[0]
        entries = self._positions * form.columns if form.geometry else 0
        if not self._by_factors:
            entries += form.rows * form.columns
        else:
            entries += self._positions * (2 * self._positions + form.rows)
        size = entries * self._dtype.itemsize
        yield from _ranges(self._count, size, self._signals[0].device)

    def _inputs(self, rows: range) -> Tensor:
        """``(n, T, D)``, a strided view; taps come before channels where there are patches."""
        parts = []
        for form in self._forms:
            chosen = form.inputs[rows.start : rows.stop].to(self._dtype)
            if form.geometry is not None:
                chosen = _patches(chosen, form.geometry, examples_inside=self._by_factors)
            parts.append(chosen)
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    def _signal(self, rows: range) -> Tensor:
        parts = [signal[rows.start : rows.stop] for signal in self._signals]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)

    def _ordered(self, sums: list[Tensor | None]) -> list[Tensor]:
        """Sums in the order of the tensor's entries: channels before taps."""
        geometry = self._forms[0].geometry
        present = [part for part in sums if part is not None]
        assert len(present) == len(sums)
        if geometry is not None and geometry.taps > 1:
            shape = (geometry.taps, -1)
            present = [torch.unflatten(part, 1, shape).mT.flatten(1) for part in present]
        return [part.mT if self._forms[0].transposed else part for part in present]


def prefers_factors(positions: int, rows: int, columns: int) -> bool:
    """Whether two Gram matrices over positions cost less than writing and reading a gradient."""
    products = positions * positions * (rows + columns)
    return positions == 1 or products < _PRODUCTS_PER_ENTRY * rows * columns


def _norms_from_factors(inputs: Tensor, signals: Tensor) -> Tensor:
    if inputs.shape[1] == 1:
        return _squared_norms(inputs) * _squared_norms(signals)
    products = (inputs @ inputs.mT).mul_(signals.mT @ signals)
    return products.sum((1, 2), dtype=torch.float64).clamp_(min=0.0)


def _add_products(
    sums: list[Tensor | None],
    segments: Sequence[Segment],
    rows: range,
    inputs: Tensor,
    signals: Tensor,
) -> None:
    columns = signals.transpose(0, 1)
    for index, part in enumerate(segments):
        if (span := part.within(rows)) is None:
            continue
        left = columns[:, span].flatten(1)
        product = left @ inputs[span].flatten(0, 1)
        _add(sums, index, product)


def _add_parts(
    sums: list[Tensor | None], segments: Sequence[Segment], rows: range, gradients: Tensor
) -> None:
    for index, part in enumerate(segments):
        if (span := part.within(rows)) is not None:
            _add(sums, index, gradients[span].sum(0))


def _add(sums: list[Tensor | None], index: int, more: Tensor) -> None:
    before = sums[index]
    sums[index] = more if before is None else before.add_(more)


def _patches(images: Tensor, geometry: Geometry, *, examples_inside: bool) -> Tensor:
    """Patches ``(n, T, taps * channels)`` as a view of ``(D, n, T)`` or of ``(n, D, T)``.

    With examples inside, the rows of all examples form one matrix without a further copy; with
    examples outside, each example's matrix is contiguous.
    """
    count, channels = images.shape[:2]
    sizes = geometry.output_size(tuple(images.shape[2:]))
    edges = [edge for width in reversed(geometry.padding) for edge in (width, width)]
    padded = functional.pad(images, edges) if any(edges) else images
    lead = (channels, count) if examples_inside else (count, channels)
    axis = 0 if examples_inside else 1
    source = padded.transpose(0, 1) if examples_inside else padded
    shape = (geometry.taps, *lead) if examples_inside else (count, geometry.taps, channels)
    result = images.new_empty(*shape, *sizes)
    for index, offset in enumerate(geometry.offsets()):
        spans = zip(offset, sizes, geometry.stride, strict=True)
        window = tuple(slice(o, o + (s - 1) * t + 1, t) for o, s, t in spans)
        result.select(axis, index).copy_(source[(slice(None), slice(None), *window)])
    if examples_inside:
        return result.flatten(0, 1).flatten(2).permute(1, 2, 0)
    return result.flatten(1, 2).flatten(2).transpose(1, 2)


def _working(tensor: Tensor) -> Tensor:
    """At least float32."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _squared_norms(rows: Tensor) -> Tensor:
    norms = torch.linalg.vector_norm(rows, dim=tuple(range(1, rows.ndim)))
    return norms.double().square()


def _ranges(count: int, size: int, device: torch.device) -> Iterator[range]:
    """Ranges of examples whose buffers stay below the limit of the device."""
    step = max(1, _CHUNK_BYTES.get(device.type, 2**25) // max(size, 1))
    for start in range(0, count, step):
        yield range(start, min(start + step, count))


def gradients_of(form: Form, gradients: Any) -> ExampleGradients:
    """The reduction that fits one use of a tensor."""
    if isinstance(form, Outer):
        return OuterGradients([form], [gradients])
    if isinstance(form, Lookup):
        return LookupGradients(form, gradients)
    assert isinstance(form, Dense)
    return DenseGradients(form.jacobian(gradients))
