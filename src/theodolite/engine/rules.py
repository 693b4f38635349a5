"""Rules per torch function: how one call turns its result's gradient into gradients of examples.

A call without a rule is run again, example by example (:func:`replay`): exact for every
differentiable function of torch, and slower; ``coverage`` counts it.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._pytree import tree_flatten, tree_unflatten

from theodolite.engine.calls import Site, function_name, split_examples, tensors_in
from theodolite.engine.patches import PatchGeometry, per_axis
from theodolite.engine.state import quiet_vmap
from theodolite.engine.structures import Dense, Form, Lookup, Outer, Signals
from theodolite.errors import CaptureError

__all__ = [
    "RULES",
    "Rule",
    "add",
    "addmm",
    "batch_norm",
    "convolution",
    "embedding",
    "group_norm",
    "layer_norm",
    "linear",
    "matmul",
    "multiply",
    "reflected_matmul",
    "reflected_subtract",
    "register_rule",
    "replay",
    "rms_norm",
    "subtract",
]

Rule = Callable[[Site], Form | None]

# Torch function -> rule. A rule that does not know a special case returns None and leaves the call
# to the vector-Jacobian product of replay.py.
RULES: dict[Callable[..., Any], Rule] = {}


def register_rule(*functions: Callable[..., Any]) -> Callable[[Rule], Rule]:
    """Declare how calls of these torch functions act on the gradients of their parameters.

    The rule receives a :class:`~theodolite.engine.calls.Site` and returns a form, or None where it
    does not apply. Functions of your own can be seen once they dispatch through
    ``torch.overrides.handle_torch_function`` or are built from torch functions that have rules.
    The self-check of every run compares what rules give with plain autograd.

    Example:
        >>> from theodolite.engine.structures import Dense
        >>> @register_rule(torch.hypot)
        ... def hypot(site):
        ...     return None
        >>> RULES.pop(torch.hypot) is hypot
        True
    """

    def decorate(rule: Rule) -> Rule:
        for function in functions:
            RULES[function] = rule
        return rule

    return decorate


def _row_signals(site: Site) -> Signals:
    """From a gradient of shape (..., C) to (n, C, T)."""

    def signals(gradient: Tensor) -> Tensor:
        parts = site.split_result(gradient)
        return parts.reshape(site.examples, -1, gradient.shape[-1]).transpose(1, 2)

    return signals


def _shift(site: Site) -> Form:
    signals = _row_signals(site)
    return Dense(lambda gradient: signals(gradient).sum(2), signals=signals)


def _matrix(site: Site, inputs: Tensor, rows: int, transposed: bool) -> Form | None:
    if not site.has_examples(inputs) or inputs.dim() < 1:
        return None
    flat = site.split(inputs).reshape(site.examples, -1, inputs.shape[-1])
    return Outer(flat, _row_signals(site), rows, transposed)


@register_rule(functional.linear)
def linear(site: Site) -> Form | None:
    """``linear(input, weight, bias)``: weight (C, D), any number of axes before D."""
    bound = site.bind("input", "weight", "bias", bias=None)
    if bound["bias"] is site.source:
        return _shift(site)
    if bound["weight"] is not site.source or site.source.dim() != 2:
        return None
    return _matrix(site, bound["input"], site.source.shape[0], transposed=False)


@register_rule(torch.addmm, Tensor.addmm)
def addmm(site: Site) -> Form | None:
    """``addmm(shift, input, weight)``, as in the Conv1D of GPT-2: weight (D, C)."""
    bound = site.bind("input", "mat1", "mat2", beta=1, alpha=1)
    if bound["beta"] != 1 or bound["alpha"] != 1:
        return None
    if bound["input"] is site.source and site.source.dim() == 1:
        return _shift(site)
    if bound["mat2"] is not site.source:
        return None
    return _matrix(site, bound["mat1"], site.source.shape[1], transposed=True)


@register_rule(torch.matmul, torch.mm, Tensor.matmul, Tensor.mm, Tensor.__matmul__)
def matmul(site: Site) -> Form | None:
    """``input @ weight`` with weight (D, C), and ``weight @ input`` with weight (C, D)."""
    left, right = site.args if len(site.args) == 2 else (None, None)
    if left is None or right is None or site.source.dim() != 2:
        return None
    return _product(site, left, right)


@register_rule(Tensor.__rmatmul__)
def reflected_matmul(site: Site) -> Form | None:
    """``other @ self`` written the other way round."""
    right, left = site.args
    return _product(site, left, right) if site.source.dim() == 2 else None


def _product(site: Site, left: Tensor, right: Tensor) -> Form | None:
    if right is site.source:
        return _matrix(site, left, right.shape[1], transposed=True)
    if left is site.source and right.dim() == 3 and site.has_examples(right):
        return _from_left(site, right, left.shape[0])
    return None


def _from_left(site: Site, right: Tensor, rows: int) -> Form:
    """``weight @ input`` with input (n, D, T): columns are the positions."""

    def columns_last(tensor: Tensor, parts: Tensor) -> Tensor:
        flat = parts.movedim(-2, 1)  # (n, D, ..., T)
        return flat.reshape(site.examples, tensor.shape[-2], -1)

    inputs = columns_last(right, site.split(right)).transpose(1, 2)
    return Outer(inputs, lambda g: columns_last(g, site.split_result(g)), rows)


@register_rule(torch.conv1d, torch.conv2d, torch.conv3d)
def convolution(site: Site) -> Form | None:
    """``conv(input, weight, bias, stride, padding, dilation, groups)``: patches times weights."""
    bound = site.bind(
        "input", "weight", "bias", "stride", "padding", "dilation", "groups",
        bias=None, stride=1, padding=0, dilation=1, groups=1,
    )  # fmt: skip
    images, weight = bound["input"], bound["weight"]
    if images.dim() != weight.dim() or not site.has_examples(images):
        return None
    signals = _map_signals(site)
    if bound["bias"] is site.source:
        return Dense(lambda gradient: signals(gradient).sum(2), signals=signals)
    geometry = _geometry(bound)
    if weight is not site.source or geometry is None:
        return None
    parts = site.split(images)  # (n, k, channels, ...) with k images per example
    if bound["groups"] > 1:
        return _grouped(parts, geometry, signals, bound["groups"])
    if parts.shape[1] == 1:
        return Outer(parts.squeeze(1), signals, len(weight), geometry=geometry)
    inputs = _rows(parts, geometry)
    return Outer(inputs, signals, len(weight))


def _map_signals(site: Site) -> Signals:
    """From (n k, C, ...) to (n, C, T), the positions of all k images of an example together."""

    def signals(gradient: Tensor) -> Tensor:
        parts = site.split_result(gradient).flatten(3)
        if parts.shape[1] == 1:
            return parts.squeeze(1)
        return parts.transpose(1, 2).flatten(2)

    return signals


def _geometry(bound: dict[str, Any]) -> PatchGeometry | None:
    count = bound["weight"].dim() - 2
    kernel = tuple(bound["weight"].shape[2:])
    stride, dilation = per_axis(bound["stride"], count), per_axis(bound["dilation"], count)
    padding = bound["padding"]
    if padding == "valid":
        padding = 0
    elif padding == "same":
        total = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
        if any(size % 2 for size in total):
            return None  # one side is padded more: left to replay
        padding = tuple(size // 2 for size in total)
    return PatchGeometry(kernel, stride, per_axis(padding, count), dilation)


def _rows(parts: Tensor, geometry: PatchGeometry) -> Tensor:
    """Patches of all images of an example, (n, T, D), D in the order of the weight's entries."""
    patches = geometry.columns(parts.flatten(0, 1)).transpose(1, 2).flatten(1, 2)
    rows = patches.transpose(1, 2)  # (n k, T, D)
    return rows.reshape(len(parts), -1, rows.shape[-1])


def _grouped(parts: Tensor, geometry: PatchGeometry, signals: Signals, groups: int) -> Form:
    """Groups are small matrices: their gradients are formed as they are."""

    def jacobian(gradient: Tensor) -> Tensor:
        signal = signals(gradient)
        rows = _rows(parts, geometry).to(signal.dtype)  # (n, T, channels offsets)
        rows = torch.unflatten(rows, 2, (groups, -1)).transpose(1, 2)
        signal = torch.unflatten(signal, 1, (groups, -1))
        J = signal @ rows  # (n, groups, C / groups, D)
        return J.reshape(len(parts), -1, parts.shape[2] // groups, *geometry.kernel)

    return Dense(jacobian, needs=(parts,))


@register_rule(functional.embedding)
def embedding(site: Site) -> Form | None:
    """``embedding(input, weight, padding_idx)``: rows of padding receive no gradient."""
    bound = site.bind(
        "input", "weight", "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq",
        padding_idx=None, max_norm=None, scale_grad_by_freq=False,
    )  # fmt: skip
    if bound["max_norm"] is not None or bound["scale_grad_by_freq"]:
        raise CaptureError(
            "embedding: expected plain lookups, got max_norm or scale_grad_by_freq, with which an "
            "example's gradient depends on the rest of the batch; build the embedding without them"
        )
    if bound["weight"] is not site.source or not site.has_examples(bound["input"]):
        return None
    tokens = site.split(bound["input"]).reshape(site.examples, -1)
    padding = bound["padding_idx"]
    rows = len(site.source)
    if padding is not None:
        padding = padding % rows

    def signals(gradient: Tensor) -> Tensor:
        parts = site.split_result(gradient)
        signal = parts.reshape(site.examples, -1, gradient.shape[-1]).transpose(1, 2)
        return signal if padding is None else signal * (tokens != padding)[:, None]

    return Lookup(tokens, signals, rows)


@register_rule(functional.layer_norm)
def layer_norm(site: Site) -> Form | None:
    """``layer_norm(input, normalized_shape, weight, bias, eps)``."""
    names = ("input", "normalized_shape", "weight", "bias", "eps")
    bound = site.bind(*names, weight=None, bias=None, eps=1e-5)
    shape = tuple(bound["normalized_shape"])
    normalized = partial(functional.layer_norm, bound["input"], shape, eps=bound["eps"])
    return _trailing(site, bound["input"], shape, bound["bias"] is site.source, normalized)


@register_rule(functional.rms_norm)
def rms_norm(site: Site) -> Form | None:
    """``rms_norm(input, normalized_shape, weight, eps)``."""
    bound = site.bind("input", "normalized_shape", "weight", "eps", weight=None, eps=None)
    shape = tuple(bound["normalized_shape"])
    normalized = partial(functional.rms_norm, bound["input"], shape, eps=bound["eps"])
    return _trailing(site, bound["input"], shape, False, normalized)


@register_rule(functional.group_norm)
def group_norm(site: Site) -> Form | None:
    """``group_norm(input, num_groups, weight, bias, eps)``."""
    names = ("input", "num_groups", "weight", "bias", "eps")
    bound = site.bind(*names, weight=None, bias=None, eps=1e-5)
    normalized = partial(
        functional.group_norm, bound["input"], bound["num_groups"], eps=bound["eps"]
    )
    return _channels(site, bound["input"], bound["bias"] is site.source, normalized)


@register_rule(functional.batch_norm)
def batch_norm(site: Site) -> Form | None:
    """``batch_norm`` with running statistics; those of the batch would mix examples."""
    bound = site.bind(
        "input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps",
        weight=None, bias=None, training=False, eps=1e-5,
    )  # fmt: skip
    if bound["training"]:
        raise CaptureError(
            "batch_norm: expected running statistics, got statistics of the batch, with which an "
            "example's gradient depends on the others; call model.eval() first, and build "
            "BatchNorm with track_running_stats=True"
        )
    mean, variance = bound["running_mean"], bound["running_var"]
    images = bound["input"]
    normalized = partial(functional.batch_norm, images, mean, variance, eps=bound["eps"])
    return _channels(site, images, bound["bias"] is site.source, normalized)


def _trailing(
    site: Site,
    inputs: Tensor,
    shape: tuple[int, ...],
    is_shift: bool,
    normalized: Callable[[], Tensor],
) -> Form | None:
    """Parameters of the shape of the last axes: sum over all axes before them."""
    if not site.has_examples(inputs):
        return None

    def jacobian(gradient: Tensor) -> Tensor:
        product = gradient if is_shift else gradient * normalized()
        return site.split_result(product).reshape(site.examples, -1, *shape).sum(1)

    return Dense(jacobian, needs=() if is_shift else (inputs,))


def _channels(
    site: Site, inputs: Tensor, is_shift: bool, normalized: Callable[[], Tensor]
) -> Form | None:
    """One parameter per channel: sum over all axes after them."""
    if not site.has_examples(inputs):
        return None

    def jacobian(gradient: Tensor) -> Tensor:
        product = gradient if is_shift else gradient * normalized()
        parts = site.split_result(product)  # (n, k, channels, ...)
        return parts.flatten(3).sum((1, 3)) if parts.dim() > 3 else parts.sum(1)

    return Dense(jacobian, needs=() if is_shift else (inputs,))


@register_rule(
    torch.mul, torch.multiply, Tensor.mul, Tensor.mul_, Tensor.__mul__, Tensor.__rmul__,
    Tensor.__imul__,
)  # fmt: skip
def multiply(site: Site) -> Form | None:
    """``a * b`` with one of them made of parameters."""
    other = _other(site)
    return None if other is None else _reduced(site, other)


@register_rule(torch.add, Tensor.add, Tensor.add_, Tensor.__add__, Tensor.__radd__, Tensor.__iadd__)
def add(site: Site) -> Form | None:
    """``a + b`` with one of them made of parameters."""
    if site.kwargs or _other(site) is None:
        return None
    return _reduced(site, None)


@register_rule(torch.sub, Tensor.sub, Tensor.sub_, Tensor.__sub__, Tensor.__isub__)
def subtract(site: Site) -> Form | None:
    """``a - b`` with one of them made of parameters."""
    if site.kwargs or _other(site) is None:
        return None
    return _reduced(site, None, -1.0 if site.args[1] is site.source else 1.0)


@register_rule(Tensor.__rsub__)
def reflected_subtract(site: Site) -> Form | None:
    """``b - a`` written the other way round."""
    if site.kwargs or _other(site) is None:
        return None
    return _reduced(site, None, -1.0 if site.args[0] is site.source else 1.0)


def _other(site: Site) -> Tensor | None:
    """The argument that depends on the examples, if the call is a plain product or sum."""
    if len(site.args) != 2 or not all(isinstance(value, Tensor) for value in site.args):
        return None
    left, right = site.args
    if left is right or site.axes.get(id(site.source)) is not None:
        return None  # a tensor with one part per example is left to replay
    return right if left is site.source else left


def _reduced(site: Site, factor: Tensor | None, sign: float = 1.0) -> Form:
    """Sum the axes along which the parameter was repeated, example by example."""
    shape = tuple(site.source.shape)

    def jacobian(gradient: Tensor) -> Tensor:
        product = gradient * sign if factor is None else gradient * factor
        parts = site.split_result(product)  # (n, as for a single example)
        lead = parts.dim() - 1 - len(shape)
        parts = parts.sum(tuple(range(1, 1 + lead))) if lead else parts
        repeated = [k + 1 for k, size in enumerate(shape) if size == 1 and parts.shape[k + 1] != 1]
        return parts.sum(repeated, keepdim=True) if repeated else parts

    return Dense(jacobian, needs=() if factor is None else (factor,))


def replay(site: Site, keep: tuple[bool, ...]) -> Form:
    """The per-example vector-Jacobian product of one call.

    Args:
        site: The call.
        keep: Which tensors of the result take part in the gradient.
    """
    for axis, kept in zip(site.result_axes, keep, strict=True):
        if kept and axis is None and site.examples > 1:
            raise CaptureError(
                f"{function_name(site.function)}: expected a result with one part per example, got "
                "one that mixes them; examples must not see each other (batch statistics, "
                "contrastive heads), use model.eval() or a readout per example"
            )
    own_rows = site.axes.get(id(site.source)) is not None and site.examples > 1
    jacobian = _Replay(site, keep, own_rows)
    needs = tuple(t for t in tensors_in((site.args, site.kwargs)) if t is not site.source)
    return Dense(jacobian, own_rows=own_rows, axis=site.axes.get(id(site.source)), needs=needs)


class _Replay:
    """Gradient of the call's result -> gradient of every example with respect to the source."""

    def __init__(self, site: Site, keep: tuple[bool, ...], own_rows: bool) -> None:
        self.site, self.keep, self.own_rows = site, keep, own_rows
        self.leaves, self.structure = tree_flatten((site.args, site.kwargs))
        self.split = [
            isinstance(leaf, Tensor)
            and leaf is not site.source
            and (site.axes.get(id(leaf)) is not None and site.examples > 1)
            for leaf in self.leaves
        ]

    def __call__(self, gradients: Any) -> Tensor:
        site = self.site
        axes = [axis for axis, kept in zip(site.result_axes, self.keep, strict=True) if kept]
        given = gradients if isinstance(gradients, tuple) else (gradients,)
        signals = tuple(
            split_examples(gradient, site.examples, axis)
            for gradient, axis in zip(given, axes, strict=True)
        )
        slices = tuple(
            split_examples(leaf, site.examples, site.axes[id(leaf)])
            for leaf, split in zip(self.leaves, self.split, strict=True)
            if split
        )
        source = site.split(site.source) if self.own_rows else site.source
        return self._all(source, signals, slices)

    def _all(
        self, source: Tensor, signals: tuple[Tensor, ...], slices: tuple[Tensor, ...]
    ) -> Tensor:
        in_dims = (0 if self.own_rows else None, 0, 0 if slices else None)
        try:
            return quiet_vmap(self._one, in_dims)(source, signals, slices)
        except RuntimeError:  # no batching rule, as for some recurrent kernels
            rows = [
                self._one(
                    source[k] if self.own_rows else source,
                    tuple(signal[k] for signal in signals),
                    tuple(part[k] for part in slices),
                )
                for k in range(self.site.examples)
            ]
            return torch.stack(rows)

    def _one(
        self, source: Tensor, signals: tuple[Tensor, ...], slices: tuple[Tensor, ...]
    ) -> Tensor:
        def call(value: Tensor) -> tuple[Tensor, ...]:
            result = self._function(slices)(value)
            kept = zip(tensors_in(result), self.keep, strict=True)
            return tuple(tensor for tensor, keep in kept if keep)

        pull = torch.func.vjp(call, source)[1]
        return pull(signals)[0]

    def _function(self, slices: tuple[Tensor, ...]) -> Callable[[Tensor], Any]:
        def function(value: Tensor) -> Any:
            parts = iter(slices)
            leaves = [
                value if leaf is self.site.source else next(parts) if split else leaf
                for leaf, split in zip(self.leaves, self.split, strict=True)
            ]
            args, kwargs = tree_unflatten(leaves, self.structure)
            return self.site.function(*args, **kwargs)

        return function
