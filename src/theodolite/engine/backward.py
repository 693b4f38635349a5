"""Calls whose values are PyTorch's own and whose backward pass is cheaper.

Batch norm with fixed statistics multiplies the gradient by one number per channel; PyTorch's own
pass reads the inputs for that too, and makes five copies where the gradients of several outputs go
through it together. The gradient of the input of a convolution with stride one is the convolution
of the gradient with the flipped kernel; cuDNN's own backward pass needs a third more time for it.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from theodolite.engine.patches import per_axis

__all__ = [
    "CHEAPER",
    "fixed_batch_norm",
    "flipped_kernel_convolution",
]

_NORM_NAMES = (
    "input",
    "running_mean",
    "running_var",
    "weight",
    "bias",
    "training",
    "momentum",
    "eps",
)
_NORM_DEFAULTS = {"weight": None, "bias": None, "training": False, "eps": 1e-5}
_EXACT = (torch.float32, torch.float64)  # others are normalized in float32 inside PyTorch


class _FixedBatchNorm(torch.autograd.Function):
    """The values of ``batch_norm``, and the gradient of its input alone."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, bound: dict[str, Any]) -> Tensor:
        ctx.statistics = bound["running_var"], bound["weight"], bound["eps"], inputs.dim()
        ctx.scale = None
        given = {name: bound[name] for name in ("weight", "bias", "eps")}
        return functional.batch_norm(inputs, bound["running_mean"], bound["running_var"], **given)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        if ctx.scale is None:  # in the backward pass, when a GPU has work queued
            ctx.scale = _scale(*ctx.statistics)
        return gradient * ctx.scale, None


class _FixedNormBackward(torch.autograd.Function):
    """A result as it is, with a gradient for the input that its own graph does not have.

    See :class:`_FlippedKernelBackward`: scale and shift get theirs from the result's own graph.
    """

    @staticmethod
    def forward(ctx: Any, result: Tensor, inputs: Tensor, statistics: Any) -> Tensor:
        ctx.mark_dirty(result)
        ctx.statistics, ctx.scale = statistics, None
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        if ctx.scale is None:
            ctx.scale = _scale(*ctx.statistics)
        return gradient, gradient * ctx.scale, None


def _scale(variance: Tensor, weight: Tensor | None, eps: float, axes: int) -> Tensor:
    """What the gradient is multiplied by: one number per channel."""
    with torch.no_grad():
        scale = torch.rsqrt(variance + eps)
        scale = scale if weight is None else scale * weight
        return scale.view(-1, *(1,) * (axes - 2))


def fixed_batch_norm(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    followed: bool = False,
) -> Tensor | None:
    """The result of a call of ``batch_norm`` with the cheaper backward pass to its input.

    Scale and shift get gradients only where they are ``followed``: for them its input is kept.

    Returns None where the call is another one, takes statistics of the batch or parameters that
    are computed, mixes dtypes, or has a short one.
    """
    if function is not functional.batch_norm:
        return None
    bound = {**_NORM_DEFAULTS, **dict(zip(_NORM_NAMES, args, strict=False)), **kwargs}
    inputs, variance = bound["input"], bound["running_var"]
    if bound["training"] or bound["running_mean"] is None or variance is None:
        return None
    if inputs.dtype != variance.dtype or inputs.dtype not in _EXACT or not inputs.requires_grad:
        return None
    given = map(bound.get, ("running_mean", "running_var", "weight", "bias"))
    if any(tensor is not None and tensor.grad_fn is not None for tensor in given):
        return None
    if not followed:
        result: Tensor = _FixedBatchNorm.apply(inputs, bound)  # type: ignore[no-untyped-call]
        return result
    result = function(**{**bound, "input": inputs.detach()})
    statistics = variance, bound["weight"], bound["eps"], inputs.dim()
    back: Tensor = _FixedNormBackward.apply(  # type: ignore[no-untyped-call]
        result, inputs, statistics
    )
    return back


_CONVOLUTIONS: tuple[Callable[..., Any], ...] = (
    functional.conv1d,
    functional.conv2d,
    functional.conv3d,
)
CHEAPER = frozenset({functional.batch_norm, *_CONVOLUTIONS})  # whose calls are worth a look
_CONV_NAMES = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
_CONV_DEFAULTS = {"bias": None, "stride": 1, "padding": 0, "dilation": 1, "groups": 1}


class _FlippedKernelBackward(torch.autograd.Function):
    """A result as it is, with a gradient for the input that its own graph does not have.

    The gradient goes on to the result's own graph as well, where weights and bias get theirs if
    they need one. The result counts as changed in place: as a view of itself it could not
    be overwritten by a later operation.
    """

    @staticmethod
    def forward(ctx: Any, result: Tensor, inputs: Tensor, weight: Tensor, options: Any) -> Tensor:
        ctx.mark_dirty(result)
        ctx.weight, ctx.flipped, ctx.options = weight, None, options
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        if ctx.flipped is None:  # in the backward pass, when a GPU has work queued
            around = ctx.weight.flip(tuple(range(2, ctx.weight.dim())))
            ctx.flipped = around.transpose(0, 1).contiguous()
        convolve, padding, dilation = ctx.options
        return gradient, convolve(gradient, ctx.flipped, None, 1, padding, dilation), None, None


def flipped_kernel_convolution(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Tensor | None:
    """The result of a call of a convolution on a GPU, with the faster backward pass to its input.

    Returns None where the call is another one, or has strides, groups, more padding than the
    kernel is long, a kernel of one pixel, an input without a gradient, or short numbers.
    """
    if function not in _CONVOLUTIONS:
        return None
    bound = {**_CONV_DEFAULTS, **dict(zip(_CONV_NAMES, args, strict=False)), **kwargs}
    return _with_flipped_kernel(function, bound) if _faster_on(bound["input"].device) else None


def _faster_on(device: torch.device) -> bool:
    return device.type == "cuda"


def _with_flipped_kernel(convolve: Callable[..., Any], bound: dict[str, Any]) -> Tensor | None:
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
    back: Tensor = _FlippedKernelBackward.apply(  # type: ignore[no-untyped-call]
        result, inputs, weight.detach(), options
    )
    return back
