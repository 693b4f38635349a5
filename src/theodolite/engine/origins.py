"""Tensors made of parameters only: transposed, scaled, sliced or re-parametrised weights."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from theodolite.engine.quiet import quiet_vmap
from theodolite.engine.sites import function_name

__all__ = ["Origin", "derive", "pull_back"]

# Functions whose result consists of entries of their argument, each at most once.
SELECTIONS = frozenset(
    {"t", "T", "mT", "transpose", "permute", "movedim", "swapaxes", "swapdims"}
    | {"view", "view_as", "reshape", "reshape_as", "flatten", "unflatten", "squeeze", "unsqueeze"}
    | {"chunk", "split", "unbind", "select", "narrow", "contiguous", "to", "float", "double"}
)


@dataclass(frozen=True)
class Origin:
    """Where a tensor comes from.

    Args:
        roots: Names of the parameters that it is made of.
        tensor: The tensor, attached to the graph that leads to the roots.
        scale: Set if the tensor consists of entries of its only root, each at most once, times
            this number: inner products of gradients then agree up to its square.
    """

    roots: tuple[str, ...]
    tensor: Tensor = field(repr=False)
    scale: float | None = None


def derive(
    function: Callable[..., Any], arguments: Any, sources: list[Origin], result: Tensor
) -> Origin:
    """Origin of a result that depends on parameters and on no example."""
    roots = tuple(dict.fromkeys(name for source in sources for name in source.roots))
    scale = None
    if len(sources) == 1 and sources[0].scale is not None:
        factor = _factor(function, arguments, sources[0].tensor)
        scale = None if factor is None else sources[0].scale * factor
    return Origin(roots, result, scale)


def _factor(
    function: Callable[..., Any], arguments: tuple[Any, Any], source: Tensor
) -> float | None:
    """By what a function multiplies the entries that it selects; None if it does anything else."""
    name = function_name(function)
    args, kwargs = arguments
    if name in SELECTIONS:
        return 1.0
    if name == "__getitem__":
        return 1.0 if _is_basic_index(args[1]) else None
    if function is functional.embedding and args[1] is source and args[2:] in ((), (None,)):
        tokens = args[0]
        return 1.0 if not kwargs and tokens.unique().numel() == tokens.numel() else None
    others = [value for value in args if value is not source]
    if name in ("mul", "__mul__", "__rmul__", "div", "__truediv__") and len(others) == 1:
        value = _number(others[0])
        if value is None or kwargs or (name in ("div", "__truediv__") and args[0] is not source):
            return None
        return value if "mul" in name else 1.0 / value
    return -1.0 if name in ("neg", "__neg__") else None


def _number(value: Any) -> float | None:
    if isinstance(value, Tensor):
        return float(value) if value.dim() == 0 and not value.requires_grad else None
    return float(value) if isinstance(value, (int, float)) else None


def _is_basic_index(index: Any) -> bool:
    parts = index if isinstance(index, tuple) else (index,)
    return all(part is None or part is Ellipsis or isinstance(part, (int, slice)) for part in parts)


def pull_back(origin: Origin, root: Tensor, gradients: Tensor) -> Tensor:
    """From gradients with respect to a derived tensor to gradients of one of its roots.

    Args:
        origin: The derived tensor.
        root: The parameter.
        gradients: One gradient per row, (rows, ...) with the shape of the derived tensor.
    """
    if origin.tensor is root:
        return gradients

    def single(gradient: Tensor) -> Tensor:
        return torch.autograd.grad(
            origin.tensor, root, gradient.to(origin.tensor.dtype), retain_graph=True
        )[0]

    return quiet_vmap(single)(gradients)
