"""One call of a torch function as a rule sees it: its arguments and where the examples are."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

__all__ = ["Site", "batch_axis", "function_name", "tensors_in"]


def tensors_in(value: Any) -> Iterator[Tensor]:
    """All tensors inside nested arguments, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)


def function_name(function: Callable[..., Any]) -> str:
    """Name of a torch function, method or property."""
    name = getattr(function, "__name__", repr(function))
    owner = getattr(function, "__self__", None)
    if name == "__get__" and owner is not None:
        return str(getattr(owner, "__name__", name))
    return str(name)


def batch_axis(one: tuple[int, ...] | None, shape: tuple[int, ...], examples: int) -> int | None:
    """The axis along which examples lie.

    Found by comparing with the shape of the same tensor when the model saw a single example;
    where that is not known, the first axis whose length fits.
    """
    if one is not None and len(one) == len(shape):
        pairs = list(zip(one, shape, strict=True))
        return next((k for k, (a, b) in enumerate(pairs) if a != b and a * examples == b), None)
    exact = (k for k, size in enumerate(shape) if size == examples)
    return next(exact, 0 if shape and shape[0] and shape[0] % examples == 0 else None)


@dataclass(frozen=True)
class Site:
    """One call that receives a parameter.

    Args:
        function: The torch function.
        args: Its positional arguments, tensors detached.
        kwargs: Its keyword arguments, tensors detached.
        source: The argument whose gradient is wanted: a parameter, or made of parameters only.
        examples: Number of examples n.
        axes: Identity of an argument -> the axis along which its examples lie.
        result_axes: The same for the tensors in the result, in order.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    source: Tensor
    examples: int
    axes: dict[int, int | None]
    result_axes: tuple[int | None, ...]

    def bind(self, *names: str, **defaults: Any) -> dict[str, Any]:
        """Arguments by name: positional ones in the order given, then keywords, then defaults."""
        return {**defaults, **dict(zip(names, self.args, strict=False)), **self.kwargs}

    def has_examples(self, tensor: Tensor) -> bool:
        """Whether the tensor has an axis of examples (always, for a single example)."""
        return self.examples == 1 or self.axes.get(id(tensor)) is not None

    def split(self, tensor: Tensor) -> Tensor:
        """An argument with a new first axis of examples; the rest is as for a single example."""
        return split_examples(tensor, self.examples, self.axes.get(id(tensor)))

    def split_result(self, gradient: Tensor, index: int = 0) -> Tensor:
        """The same for a tensor of the shape of the result."""
        return split_examples(gradient, self.examples, self.result_axes[index])


def split_examples(tensor: Tensor, examples: int, axis: int | None) -> Tensor:
    """Move examples to a new first axis; several parts of one example lie side by side."""
    if examples == 1:
        return tensor.unsqueeze(0)
    if axis is None:
        raise AssertionError("a tensor without an axis of examples cannot be split")
    return torch.unflatten(tensor, axis, (examples, -1)).movedim(axis, 0)
