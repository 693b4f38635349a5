"""Several tensors as one self-describing vector, and back.

A metric's state must survive being concatenated with the states of other processes, some of which
have seen nothing. A packed block says how long it is and what is in it, so that any concatenation
of blocks can be taken apart again.
"""

from collections.abc import Sequence
from functools import lru_cache
from math import prod

import torch
from torch import Tensor

__all__ = ["pack", "unpack"]


def pack(tensors: Sequence[Tensor]) -> Tensor:
    """One float64 vector: its length, that of the header, all shapes, all entries."""
    shapes = tuple(tuple(tensor.shape) for tensor in tensors)
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


@lru_cache(maxsize=64)
def _header(shapes: tuple[tuple[int, ...], ...], device: torch.device) -> Tensor:
    """Cached: a stream packs the same shapes again and again."""
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
