"""``vmap`` that does not warn where an operation runs example by example."""

import warnings
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["quiet_vmap"]


def quiet_vmap(function: Callable[..., Any], in_dims: Any = 0) -> Callable[..., Any]:
    """Vectorise over the first axis; operations without a batching rule are slower, not wrong."""
    mapped = torch.func.vmap(function, in_dims=in_dims)

    def call(*args: Any) -> Any:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="There is a performance drop")
            return mapped(*args)

    return call
