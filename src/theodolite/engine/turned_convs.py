"""Convolutions whose gradient goes back through a forward convolution, which a GPU does faster.

The gradient of the input of a convolution with stride one is the convolution of the gradient with
the kernel turned around. cuDNN's own pass back needs a third more time for it.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from theodolite.engine.forms import per_axis

__all__ = ["turned_convolution"]

_CONVOLUTIONS: tuple[Callable[..., Any], ...] = (
    functional.conv1d,
    functional.conv2d,
    functional.conv3d,
)
_NAMES = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
_DEFAULTS = {"bias": None, "stride": 1, "padding": 0, "dilation": 1, "groups": 1}
_EXACT = (torch.float32, torch.float64)


class _WayBack(torch.autograd.Function):
    """A result as it is, with a way back to the input that its own graph does not have.

    The gradient goes on to the result's own graph as well, where weights and bias get theirs if
    somebody asks for them. The result counts as changed in place: as a view of itself it could not
    be overwritten by a later operation.
    """

    @staticmethod
    def forward(ctx: Any, result: Tensor, inputs: Tensor, weight: Tensor, options: Any) -> Tensor:
        ctx.mark_dirty(result)
        ctx.weight, ctx.turned, ctx.options = weight, None, options
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        if ctx.turned is None:  # on the way back, when a GPU has more to do than to be asked
            around = ctx.weight.flip(tuple(range(2, ctx.weight.dim())))
            ctx.turned = around.transpose(0, 1).contiguous()
        convolve, padding, dilation = ctx.options
        return gradient, convolve(gradient, ctx.turned, None, 1, padding, dilation), None, None


def turned_convolution(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Tensor | None:
    """The result of a call of a convolution on a GPU, with the faster way back to its input.

    Returns None where the call is another one, or has strides, groups, more padding than the
    kernel is long, a kernel of one pixel, an input without a gradient, or short numbers.
    """
    if function not in _CONVOLUTIONS:
        return None
    bound = {**_DEFAULTS, **dict(zip(_NAMES, args, strict=False)), **kwargs}
    return _turned(function, bound) if _faster_on(bound["input"].device) else None


def _faster_on(device: torch.device) -> bool:
    return device.type == "cuda"


def _turned(convolve: Callable[..., Any], bound: dict[str, Any]) -> Tensor | None:
    inputs, weight = bound["input"], bound["weight"]
    sizes = tuple(weight.shape[2:])
    strides, dilation = (per_axis(bound[name], len(sizes)) for name in ("stride", "dilation"))
    plain = bound["groups"] == 1 and set(strides) == {1} and set(sizes) != {1}
    if not plain or isinstance(bound["padding"], str) or not inputs.requires_grad:
        return None
    given = per_axis(bound["padding"], len(sizes))
    padding = tuple(d * (k - 1) - p for k, d, p in zip(sizes, dilation, given, strict=True))
    if min(padding) < 0 or inputs.dtype not in _EXACT or weight.dtype != inputs.dtype:
        return None
    if torch.is_autocast_enabled(inputs.device.type):  # gradients come in another dtype
        return None
    result = convolve(**{**bound, "input": inputs.detach()})
    options = convolve, padding, dilation
    back: Tensor = _WayBack.apply(  # type: ignore[no-untyped-call]
        result, inputs, weight.detach(), options
    )
    return back
