"""How all metrics of this package store, merge and reduce their statistics.

The states of processes are concatenated; some of them may be empty. A packed block contains its
length and layout, so that any concatenation of blocks can be split again.
"""

from abc import abstractmethod
from collections.abc import Sequence
from functools import reduce
from math import prod
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torchmetrics import Metric

from theodolite.checks import require_finite
from theodolite.errors import DtypeError, ShapeError
from theodolite.linalg import double

S = TypeVar("S")  # statistics of some examples; ``+`` joins those of two groups


def pack(tensors: Sequence[Tensor]) -> Tensor:
    """One float64 vector: its length, the length of the header, all shapes, all entries."""
    shapes = [tensor.shape for tensor in tensors]
    head = _header(shapes, tensors[0].device)
    return torch.cat([head, *(tensor.reshape(-1) for tensor in tensors)])


def unpack(blocks: Tensor) -> list[list[Tensor]]:
    """The tensors of every block, as views, from a concatenation of blocks."""
    found = []
    while len(blocks):
        length, size = (int(number) for number in blocks[:2].tolist())
        header = [int(number) for number in blocks[2:size].tolist()]
        found.append(_split(blocks[size:length], header))
        blocks = blocks[length:]
    return found


def _header(shapes: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    axes = [number for shape in shapes for number in (len(shape), *shape)]
    size = 2 + len(axes)
    length = size + sum(prod(shape) for shape in shapes)
    return torch.tensor([length, size, *axes], dtype=torch.float64, device=device)


def _split(entries: Tensor, header: list[int]) -> list[Tensor]:
    shapes, position = [], 0
    while position < len(header):
        axes = header[position]
        shapes.append(header[position + 1 : position + 1 + axes])
        position += 1 + axes
    parts = torch.split(entries, [prod(shape) for shape in shapes])
    return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]


class StreamingMetric(Metric, Generic[S]):
    """A metric whose state is a few float64 sums, for any number of examples.

    The state is a list of packed blocks of statistics, each about the shift of its own first batch.
    Processes exchange blocks by concatenation. This works for any number of processes, also if some
    have no examples. The reader of the state moves the blocks to one shift and adds them. Half
    precision and float32 inputs are converted exactly and summed in float64.

    Values are float64. As in every torchmetrics metric, a single value is a 0-d tensor.
    """

    is_differentiable = False
    full_state_update = False

    blocks: list[Tensor] | Tensor

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_state("blocks", default=[], dist_reduce_fx="cat")
        self._latest: tuple[Tensor, S] | None = None

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the state; a process without data sends an empty vector of this dtype."""
        return torch.float64

    def _to_tensors(self, statistics: S) -> Sequence[Tensor]:
        """What a block holds."""
        return tuple(vars(statistics).values())

    @abstractmethod
    def _from_tensors(self, tensors: Sequence[Tensor]) -> S:
        """The statistics of one block."""

    def _statistics(self) -> S | None:
        """Statistics of all examples so far; None before the first."""
        blocks = self.blocks if isinstance(self.blocks, list) else [self.blocks]
        if self._latest is not None and len(blocks) == 1 and blocks[0] is self._latest[0]:
            return self._latest[1]  # this metric packed it last, so it need not be unpacked
        parts = [self._from_tensors(part) for block in blocks for part in unpack(block)]
        return reduce(self._joined, parts) if parts else None

    def _joined(self, first: S, second: S) -> S:
        """Statistics of both groups of examples together."""
        total: S = first + second  # type: ignore[operator]
        return total

    def _keep(self, statistics: S) -> None:
        block = pack(self._to_tensors(statistics))
        self.blocks = [block]
        self._latest = (block, statistics)

    def __getstate__(self) -> dict[str, Any]:
        """The state without cached values."""
        return {**super().__getstate__(), "_latest": None}

    def _compact(self) -> None:
        if isinstance(self.blocks, list) and len(self.blocks) > 1:
            statistics = self._statistics()
            assert statistics is not None
            self._keep(statistics)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Value of this batch alone; the batch is added to the state."""
        value = super().forward(*args, **kwargs)
        self._compact()
        return value

    def merge_state(self, incoming_state: "dict[str, Any] | Metric") -> None:
        """Add the examples of another metric of the same kind, or of its state.

        Raises:
            ShapeError: If the other metric has another width or other options; nothing is changed.
        """
        before = self.blocks
        super().merge_state(incoming_state)
        try:
            self._compact()
        except ShapeError as error:
            self.blocks = before
            raise ShapeError(
                "expected the state of a metric of the same options over features of the same "
                f"width ({error}); use one metric per layer, built alike everywhere"
            ) from error
        self._computed = None  # otherwise the base class returns the value before the merge
        self._update_count += 1  # otherwise the base class warns of a metric without updates


def require_tensors(**tensors: object) -> None:
    """Check that each argument is a tensor, as everywhere in torchmetrics."""
    for name, value in tensors.items():
        if not isinstance(value, Tensor):
            raise DtypeError(
                f"{name}: expected a tensor, got {type(value).__name__}; wrap it in torch.as_tensor"
            )


def floating(tensor: Tensor) -> Tensor:
    """Integers and booleans as float64; floating-point numbers as they are."""
    if tensor.is_complex():
        raise DtypeError(f"expected real numbers, got {tensor.dtype}; pass .real or .abs()")
    return tensor if tensor.is_floating_point() else double(tensor)


def require_finite_sums(sums: Tensor, **tensors: Tensor) -> None:
    """Check that rows are finite, by sums over them; an error searches the rows for the entry."""
    if not bool(sums.isfinite().all()):
        require_finite(**tensors)


def require_width(expected: int | None, **tensors: Tensor) -> None:
    """Check that there are as many columns as in earlier batches; None: at least one."""
    for name, tensor in tensors.items():
        if expected is None and tensor.shape[1] == 0:
            raise ShapeError(
                f"{name}: expected at least one column, got shape {tuple(tensor.shape)}"
            )
        if expected is not None and tensor.shape[1] != expected:
            raise ShapeError(
                f"{name}: expected {expected} columns, as in the batches before, "
                f"got {tensor.shape[1]}; use one metric per layer, or reset() it"
            )
