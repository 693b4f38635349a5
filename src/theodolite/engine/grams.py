"""Gram matrices of features over all the data, exact, in bounded memory.

Flattened maps do not fit for many examples, an ``n x n`` matrix does. Features of a tile of
examples, of all layers, are written by the hooks straight into one buffer per layer; the tile is
multiplied with itself and with every later batch, and dropped. If all features fit into the memory
limit that is one reader over the data, else ``(tiles + 1) / 2``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from theodolite.checks import size_in_bytes
from theodolite.engine.batches import Batch, iterate_batches
from theodolite.engine.check import Check
from theodolite.engine.features import FeatureReader, Pool, join_targets
from theodolite.engine.hooks import Read, ReadPoint
from theodolite.engine.layers import LayerMapping, Layers, layers_text
from theodolite.engine.state import DEFAULT_MEMORY_LIMIT, exact_arithmetic, untouched
from theodolite.errors import DomainError, ShapeError
from theodolite.linalg import double, double_center

_BATCH_SIZE = 256
_ROWS = 512  # rows of one product inside a tile: half of the square is skipped, units stay busy


@dataclass(frozen=True)
class FeatureGrams(LayerMapping[Tensor]):
    """Layer -> Gram matrix ``(n, n)`` of its features, in order of execution.

    Args:
        layers: the matrices.
        targets: targets of the same examples, where the data has some.
        widths: layer -> number of features.
        tiles: number of tiles that the examples were cut into.
        centered: whether the mean feature was removed.
    """

    layers: Mapping[str, Float[Tensor, "n n"]]
    targets: Tensor | None
    widths: Mapping[str, int]
    tiles: int
    centered: bool

    def __repr__(self) -> str:
        n = len(next(iter(self.layers.values()), ()))
        return f"FeatureGrams({n} examples, {layers_text(self)})"


def feature_grams(
    model: nn.Module,
    data: Any,
    layers: Layers = "*",
    pool: Pool = "flatten",
    *,
    read: Read | Mapping[str, ReadPoint] = "next",
    center: bool = False,
    dtype: torch.dtype | None = None,
    batch_size: int | None = None,
    memory_limit: int | str | None = None,
    check: Check = True,
    **options: Any,
) -> FeatureGrams:
    r"""Gram matrices :math:`K = F F^\top` of the features of layers over all the data.

    The value does not depend on the batch size or the memory limit beyond rounding.

    Args:
        model: any module, in evaluation mode; it is left as it was found.
        data: anything that :func:`theodolite.engine.batches.iterate_batches` accepts; the inputs
            of all examples are kept.
        layers: names, patterns or a predicate; ``"*"`` takes layers with parameters of their own.
        pool: how an output becomes a vector, see :func:`feature_chunks`.
        read: where a layer is read, see :func:`feature_chunks`.
        center: remove the mean feature: :math:`HKH`, in float64. Features are shifted before the
            product, so that a large mean costs no digits.
        dtype: of the products; None keeps that of the features.
        batch_size: examples in one forward pass; None takes 256.
        memory_limit: bytes that buffers of features may take, or a size such as "4GB"; None takes
            half of what is free on the GPU, 2 GiB on the CPU.
        check: see :func:`feature_chunks`.
        **options: ``batch_fn`` and ``targets`` of ``iterate_batches``.

    Raises:
        DomainError: If the model normalises over the batch or drops out units, a named layer does
            not run, or the features of one batch exceed the memory limit.
        ShapeError: If features differ in length between batches, or there is no example.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 3, bias=False), nn.ReLU())
        >>> grams = feature_grams(model, torch.eye(2), center=True)
        >>> grams["0"].sum().abs().item() < 1e-6
        True
    """
    reader = FeatureReader(model, layers, pool, read, check)
    with untouched(reader.model), exact_arithmetic(reader.device):
        batches = list(iterate_batches(data, batch_size=batch_size or _BATCH_SIZE, **options))
        if not batches:
            raise ShapeError("data: expected at least one batch, got none; the data set is empty")
        work = _Accumulation(reader, batches, dtype, center)
        tiles = work.run(_limit(size_in_bytes(memory_limit), reader.device))
        grams = work.grams
    if center:
        grams = {name: double_center(double(gram)) for name, gram in grams.items()}
    targets = join_targets([batch.targets for batch in batches])
    return FeatureGrams(grams, targets, work.widths, tiles, center)


def _limit(memory_limit: int | None, device: torch.device) -> int:
    if memory_limit is not None:
        return memory_limit
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0] // 2
    return DEFAULT_MEMORY_LIMIT


class _Accumulation:
    """Gram matrices while tiles of features go by."""

    def __init__(
        self, reader: FeatureReader, batches: list[Batch], dtype: torch.dtype | None, center: bool
    ) -> None:
        self.reader, self.batches, self.dtype, self.center = reader, batches, dtype, center
        self.count = sum(map(len, batches))
        first = self._read(0)
        self.widths = {name: rows.shape[1] for name, rows in first.items()}
        self.grams = {name: rows.new_empty(self.count, self.count) for name, rows in first.items()}
        self.shifts = {name: rows.mean(0) for name, rows in first.items()} if center else {}
        self._first: dict[str, Tensor] | None = first

    def _read(self, index: int) -> dict[str, Tensor]:
        rows = self.reader.read(self.batches[index].to(self.reader.device))
        return {name: value.to(self.dtype or value.dtype) for name, value in rows.items()}

    def _rows(self, index: int) -> dict[str, Tensor]:
        rows = self._read(index) if self._first is None or index else self._first
        self._first = None
        for name, value in rows.items():
            if value.shape[1] != self.widths[name]:
                raise ShapeError(
                    f"features of {name!r}: expected {self.widths[name]} as in the first batch, "
                    f'got {value.shape[1]}; pad the inputs to one length, or pool="mean"'
                )
            if self.center:
                value -= self.shifts[name]
        return rows

    def run(self, limit: int) -> int:
        """Fill the matrices; the number of tiles that it took."""
        size = next(iter(self.grams.values())).element_size()
        per_example = sum(self.widths.values()) * size
        most = limit // per_example
        largest = max(map(len, self.batches))
        if most < largest:
            raise DomainError(
                f"memory_limit: expected at least {largest * per_example:,} bytes, the features of "
                f"one batch, got {limit:,}; lower batch_size, choose fewer layers, or pool them"
            )
        index, start, tiles = 0, 0, 0
        while index < len(self.batches):
            index, start = self._tile(index, start, most)
            tiles += 1
        return tiles

    def _tile(self, index: int, start: int, most: int) -> tuple[int, int]:
        """One tile against itself and everything after it; where the next one begins."""
        stop, last = start, index
        while last < len(self.batches) and stop + len(self.batches[last]) - start <= most:
            stop += len(self.batches[last])
            last += 1
        buffers = self._buffers(range(index, last), stop - start)
        for name, buffer in buffers.items():
            _fill_square(self.grams[name][start:stop, start:stop], buffer)
        self._fill_later(buffers, last, start, stop)
        return last, stop

    def _buffers(self, batches: range, length: int) -> dict[str, Tensor]:
        """Features of the batches of a tile, one matrix per layer; a single batch is not copied."""
        if len(batches) == 1:
            return self._rows(batches[0])
        buffers = {
            name: gram.new_empty(length, self.widths[name]) for name, gram in self.grams.items()
        }
        position = 0
        for batch in batches:
            for name, rows in self._rows(batch).items():
                buffers[name][position : position + len(rows)] = rows
            position += len(self.batches[batch])
        return buffers

    def _fill_later(self, buffers: dict[str, Tensor], last: int, start: int, stop: int) -> None:
        position = stop
        for batch in range(last, len(self.batches)):
            for name, rows in self._rows(batch).items():
                block = buffers[name] @ rows.mT
                self.grams[name][start:stop, position : position + len(rows)] = block
                self.grams[name][position : position + len(rows), start:stop] = block.mT
            position += len(self.batches[batch])


def _fill_square(gram: Tensor, rows: Tensor) -> None:
    """``rows @ rows.T`` into ``gram``: lower block rows by products, the rest by symmetry."""
    for low in range(0, len(rows), _ROWS):
        high = min(low + _ROWS, len(rows))
        block = rows[low:high] @ rows[:high].mT
        gram[low:high, :high] = block
        gram[:low, low:high] = block[:, :low].mT
