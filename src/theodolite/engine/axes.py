"""Where the examples are inside a tensor: one axis, alone or merged with another."""

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Axis", "find_axis", "split_examples"]


@dataclass(frozen=True)
class Axis:
    """An axis along which examples lie.

    Args:
        index: Position of the axis.
        inner: Set where the axis holds several parts of every example and examples vary fastest,
            as in attention, which flattens (positions, examples).
    """

    index: int
    inner: bool = False


def find_axis(one: Tensor | None, tensor: Tensor, examples: int) -> Axis | None:
    """The axis of examples, found by comparison with the run in which the model saw one example.

    The axis is the one that has grown. Where it holds several parts of every example, the values
    of the first example tell their order. Without such a run, the first axis whose length fits.
    """
    if examples == 1:
        return None
    if tensor.is_nested:
        return Axis(0)
    shape = tuple(tensor.shape)
    if one is None or one.dim() != tensor.dim():
        exact = (Axis(k) for k, size in enumerate(shape) if size == examples)
        fits = bool(shape) and shape[0] > 0 and shape[0] % examples == 0
        return next(exact, Axis(0) if fits else None)
    for index, (single, size) in enumerate(zip(one.shape, shape, strict=True)):
        if single != size and single * examples == size:
            return Axis(index, single > 1 and _is_inner(one, tensor, examples, index))
    return None


def _is_inner(one: Tensor, tensor: Tensor, examples: int, index: int) -> bool:
    outer, inner = (
        _distance(one, split_examples(tensor, examples, Axis(index, order))[0])
        for order in (False, True)
    )
    return inner < outer


def _distance(first: Tensor, second: Tensor) -> float:
    if first.shape != second.shape:  # other axes have changed too, as with longer sequences
        return 0.0
    return float((first.detach().double() - second.detach().double()).abs().sum())


def split_examples(tensor: Tensor, examples: int, axis: Axis | None) -> Tensor:
    """Move examples to a new first axis; the rest is as for a single example."""
    if tensor.is_nested:  # positions that do not exist are zeros, which change no sum
        return torch.nested.to_padded_tensor(tensor, 0.0).unsqueeze(1)
    if examples == 1:
        return tensor.unsqueeze(0)
    if axis == Axis(0) and len(tensor) == examples:  # by far the most frequent case
        return tensor.unsqueeze(1)
    if axis is None:
        raise AssertionError("a tensor without an axis of examples cannot be split")
    if axis.inner:
        return torch.unflatten(tensor, axis.index, (-1, examples)).movedim(axis.index + 1, 0)
    return torch.unflatten(tensor, axis.index, (examples, -1)).movedim(axis.index, 0)
