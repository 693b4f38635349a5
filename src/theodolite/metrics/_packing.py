"""Several tensors as one self-describing vector, and back.

A metric's state must survive being concatenated with the states of other processes, some of which
have seen nothing. A packed block says how long it is and what is in it, so that any concatenation
of blocks can be taken apart again.
"""

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

__all__ = ["pack", "unpack"]


def pack(tensors: Sequence[Tensor]) -> Tensor:
    """``[length, number of tensors, axes and lengths of each, entries of each]`` in float64."""
    header = [float(len(tensors))]
    for tensor in tensors:
        header += [float(tensor.ndim), *(float(length) for length in tensor.shape)]
    length = 1 + len(header) + sum(tensor.numel() for tensor in tensors)
    head = tensors[0].new_tensor([float(length), *header])
    return torch.cat([head, *(tensor.reshape(-1) for tensor in tensors)])


def unpack(blocks: Tensor) -> list[list[Tensor]]:
    """The tensors of every block, as views, from a concatenation of blocks."""
    found = []
    while len(blocks):
        block, blocks = blocks[: int(blocks[0])], blocks[int(blocks[0]) :]
        found.append(_unpack_one(block[1:]))
    return found


def _unpack_one(block: Tensor) -> list[Tensor]:
    position, shapes = 1, []
    for _ in range(int(block[0])):
        axes = int(block[position])
        shapes.append([int(length) for length in block[position + 1 : position + 1 + axes]])
        position += 1 + axes
    parts = torch.split(block[position:], [prod(shape) for shape in shapes])
    return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]
