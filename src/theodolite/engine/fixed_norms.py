"""Batch norm with fixed statistics and parameters: the same values, a cheaper backward pass.

The gradient is multiplied by one number per channel. PyTorch's own pass reads the inputs for that
too, and makes five copies where the gradients of several outputs go through it together.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["fixed_norm"]

_NAMES = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
_DEFAULTS = {"weight": None, "bias": None, "training": False, "eps": 1e-5}
_EXACT = (torch.float32, torch.float64)  # others are normalized in float32 inside PyTorch


class _FixedNorm(torch.autograd.Function):
    """The values of ``batch_norm``, and the gradient of its input alone."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, bound: dict[str, Any]) -> Tensor:
        ctx.statistics = bound["running_var"], bound["weight"], bound["eps"], inputs.dim()
        ctx.scale = None
        given = {name: bound[name] for name in ("weight", "bias", "eps")}
        return functional.batch_norm(inputs, bound["running_mean"], bound["running_var"], **given)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        if ctx.scale is None:  # on the way back, when a GPU has more to do than to be asked
            ctx.scale = _scale(*ctx.statistics)
        return gradient * ctx.scale, None


def _scale(variance: Tensor, weight: Tensor | None, eps: float, axes: int) -> Tensor:
    """What the gradient is multiplied by: one number per channel."""
    with torch.no_grad():
        scale = torch.rsqrt(variance + eps)
        scale = scale if weight is None else scale * weight
        return scale.view(-1, *(1,) * (axes - 2))


def fixed_norm(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Tensor | None:
    """The result of a call of ``batch_norm`` whose parameters need no gradient.

    Returns None where the call is another one, takes statistics of the batch or parameters that
    are computed, mixes dtypes, or has a short one.
    """
    if function is not functional.batch_norm:
        return None
    bound = {**_DEFAULTS, **dict(zip(_NAMES, args, strict=False)), **kwargs}
    inputs, variance = bound["input"], bound["running_var"]
    if bound["training"] or bound["running_mean"] is None or variance is None:
        return None
    if inputs.dtype != variance.dtype or inputs.dtype not in _EXACT or not inputs.requires_grad:
        return None
    if any(
        given is not None and given.grad_fn is not None for given in map(bound.get, _NAMES[1:5])
    ):
        return None
    result: Tensor = _FixedNorm.apply(inputs, bound)  # type: ignore[no-untyped-call]
    return result
