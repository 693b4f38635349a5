"""Blocks of a kernel to be filled, whichever outputs it is about."""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from theodolite.engine._outputs import Mode

__all__ = ["KernelBlock", "kernel_shape", "spans"]

_SMALL = 2**24  # entries of a matrix of which a GPU can afford a copy


def spans(length: int, size: int) -> Iterator[slice]:
    """Consecutive ranges of at most this size."""
    for start in range(0, length, size):
        yield slice(start, min(length, start + size))


def kernel_shape(mode: Mode, left: int, right: int, outputs: int) -> tuple[int, ...]:
    """Shape of a kernel between two sets of examples."""
    shapes: dict[Mode, tuple[int, ...]] = {
        "full": (left, outputs, right, outputs),
        "trace": (left, right),
        "diagonal": (outputs, left, right),
    }
    return shapes[mode]


@dataclass(frozen=True)
class KernelBlock:
    """A block of a kernel.

    Args:
        values: (nx, c, ny, c) for ``"full"``, (nx, ny) for ``"trace"``, (c, nx, ny) for
            ``"diagonal"``; may be a view into a larger kernel.
        mode: Which of them.
    """

    values: Tensor
    mode: Mode

    def part(self, left: slice, right: slice) -> "KernelBlock":
        """The block between two ranges of examples, a view."""
        index = (left, slice(None), right) if self.mode == "full" else (..., left, right)
        return KernelBlock(self.values[index], self.mode)

    @property
    def width(self) -> int:
        """Rows of a matrix that belong to one example."""
        return self.values.shape[1] if self.mode == "full" else 1

    def matrices(self) -> list[Tensor]:
        """The block as matrices, views of it: one, or one per output."""
        if self.mode == "diagonal":
            return list(self.values)
        if self.mode == "trace":
            return [self.values]
        nx, c, ny, _ = self.values.shape
        strides = self.values.stride()
        # Rows (x, i) and columns (y, j) merge without a copy, also inside a larger kernel.
        shape, steps = (nx * c, ny * c), (strides[1], strides[3])
        return [self.values.as_strided(shape, steps, self.values.storage_offset())]

    def pairs(self) -> list[Tensor]:
        """The block as (nx, width, ny, width) for each matrix, views of it."""
        if self.mode == "full":
            return [self.values]
        return [matrix[:, None, :, None] for matrix in self.matrices()]

    def signals(self, signals: Tensor) -> list[Tensor]:
        """Signals (n, c, C, ...) as (n, width, C', ...) for each matrix."""
        if self.mode == "full":
            return [signals]
        if self.mode == "trace":
            return [signals.flatten(1, 2).unsqueeze(1)]
        return [signals[:, index, None] for index in range(signals.shape[1])]

    def add_full(self, kernel: Tensor) -> None:
        """Add the part of a full kernel (nx, c, ny, c) that this block is about."""
        if self.mode == "full":
            self.values.add_(kernel)
            return
        diagonal = kernel.diagonal(dim1=1, dim2=3)  # (nx, ny, c)
        self.values.add_(diagonal.sum(2) if self.mode == "trace" else diagonal.permute(2, 0, 1))

    def mirror(self, size: int, symmetrize: bool) -> None:
        """Complete a symmetric block from the part on and above its diagonal blocks.

        Args:
            size: Examples per block.
            symmetrize: Whether rounding has left the diagonal blocks slightly asymmetric.
        """
        for matrix in self.matrices():
            if matrix.is_cuda and symmetrize and matrix.numel() <= _SMALL:
                upper = matrix.triu(1)  # three launches, however many blocks there are
                matrix.triu_().add_(upper.T)
                continue
            for rows in spans(len(matrix), size * self.width):
                matrix[rows, : rows.start] = matrix[: rows.start, rows].T
                if symmetrize:
                    square = matrix[rows, rows]
                    square.copy_((square + square.T).mul_(0.5))
