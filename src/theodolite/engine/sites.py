"""One call of a torch function as a rule sees it: its arguments and where the examples are."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from theodolite.engine.axes import Axis, split_examples

__all__ = ["Site", "function_name", "tensors_in"]

_PLAIN = frozenset({int, float, bool, str, type(None)})


def tensors_in(value: Any) -> list[Tensor]:
    """All tensors inside nested arguments, in order."""
    found: list[Tensor] = []
    _gather((value,), found)
    return found


def _gather(values: Iterable[Any], found: list[Tensor]) -> None:
    for value in values:
        if type(value) in _PLAIN:  # most arguments: thousands of calls are looked at
            continue
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            _gather(value, found)
        elif isinstance(value, dict):
            _gather(value.values(), found)


def function_name(function: Callable[..., Any]) -> str:
    """Name of a torch function, method or property."""
    name = getattr(function, "__name__", repr(function))
    owner = getattr(function, "__self__", None)
    if name == "__get__" and owner is not None:
        return str(getattr(owner, "__name__", name))
    return str(name)


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
    axes: dict[int, Axis | None]
    result_axes: tuple[Axis | None, ...]

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
