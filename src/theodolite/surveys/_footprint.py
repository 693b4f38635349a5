"""What one pass of a model costs, counted operation by operation: bytes and multiply-adds."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

__all__ = ["Footprint", "footprint_of"]


@dataclass
class Footprint:
    """One forward pass over some examples.

    Args:
        examples: how many.
        largest: bytes of the largest result of an operation.
        total: bytes of all results, which is what a backward pass needs at most.
        products: multiply-adds.
    """

    examples: int = 1
    largest: int = 0
    total: int = 0
    products: int = 0

    def per_example(self, number: int) -> int:
        """A count divided among the examples, rounded up."""
        return -(-number // self.examples)


@contextmanager
def footprint_of(examples: int) -> Iterator[Footprint]:
    """Count what runs in the block."""
    found = Footprint(examples)
    with _Counting(found):
        yield found


class _Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, found: Footprint) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._found = found

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        held = {_storage(value) for value in tree_leaves((args, kwargs)) if _dense(value)}
        fresh = [v for v in tree_leaves(result) if _dense(v) and _storage(v) not in held]
        size = sum(value.nbytes for value in fresh)
        self._found.total += size
        self._found.largest = max(self._found.largest, size)
        count = flop_registry.get(func._overloadpacket)
        if count is not None:
            self._found.products += int(count(*args, **(kwargs or {}), out_val=result)) // 2
        return result


def _dense(value: Any) -> bool:
    return isinstance(value, Tensor) and not value.is_nested and value.layout == torch.strided


def _storage(value: Tensor) -> int:
    return value.untyped_storage().data_ptr()
