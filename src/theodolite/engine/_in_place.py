"""Which calls leave every example in its place, whatever the numbers are?

As long as the first axis of all tensors holds the examples one after the other, some calls keep it
so by their definition: they work along other axes only, or number by number. A model that makes no
other calls cannot move or mix examples, and nobody needs to look for them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

__all__ = ["MadeCall", "is_known", "reads_numbers", "reads_shape", "stays_in_place"]

# Calls and properties that tell about a tensor without its numbers.
_ABOUT_SHAPES = frozenset({
    "__len__", "device", "dim", "dtype", "element_size", "get_device", "is_complex",
    "is_contiguous", "is_cuda", "is_floating_point", "is_leaf", "is_nested", "is_sparse",
    "itemsize", "layout", "nbytes", "ndim", "nelement", "numel", "requires_grad", "shape", "size",
    "stride",
})  # fmt: skip


def reads_shape(name: str) -> bool:
    """Whether a function or property tells about a tensor without its numbers."""
    return name in _ABOUT_SHAPES


@dataclass(slots=True)  # thousands of them: not frozen, which takes three times as long
class MadeCall:
    """A call that was made.

    Args:
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        result: What it returned.
        depends: Whether a tensor depends on the examples.
        examples: Number of examples, more than one.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any
    depends: Callable[[Tensor], bool]
    examples: int

    @property
    def first(self) -> Any:
        """The first argument."""
        return self.args[0]

    @property
    def others(self) -> list[Tensor]:
        """Tensors among the other arguments."""
        return [v for v in (*self.args[1:], *self.kwargs.values()) if isinstance(v, Tensor)]

    def given(self, name: str, place: int, default: Any = None) -> Any:
        """An argument by name or by place."""
        default = self.args[place] if len(self.args) > place else default
        return self.kwargs.get(name, default)

    def axes(self, name: str, place: int, default: Any = None) -> set[int]:
        """Axes that an argument names, counted from the first; the first if nobody knows."""
        return _axes(self.first, self.given(name, place, default))

    def holds_examples(self) -> bool:
        """Whether the first argument has examples, and no other argument."""
        alone = not any(self.depends(other) for other in self.others)
        return alone and isinstance(self.first, Tensor) and self.first.dim() > 0


def stays_in_place(name: str, call: MadeCall) -> bool:
    """Whether a call leaves examples in order along the first axis, given that they are so now.

    False says nothing: the call is not known here, or its arguments are unusual.

    Args:
        name: Name of the torch function.
        call: The call.
    """
    known = _KNOWN.get(_plain(name))
    return known is not None and "out" not in call.kwargs and bool(call.args) and known(call)


def is_known(name: str) -> bool:
    """Whether all that a function of this name takes are its arguments, as they are written."""
    return _plain(name) in _KNOWN


def reads_numbers(name: str) -> bool:
    """Whether numbers in arguments that depend on no example may decide about such a function."""
    return _KNOWN.get(_plain(name)) in (_pointwise, _compared, _attention, _indexed)


def _plain(name: str) -> str:
    return name[:-1] if name.endswith("_") and not name.endswith("__") else name


def _axes(tensor: Tensor, given: Any) -> set[int]:
    axes = (given,) if isinstance(given, int) else given
    if not isinstance(axes, list | tuple) or not axes:
        return {0}
    if not all(isinstance(axis, int) and not isinstance(axis, bool) for axis in axes):
        return {0}
    return {axis % max(1, tensor.dim()) for axis in axes}


def _fits(call: MadeCall, tensor: Tensor, like: Tensor) -> bool:
    """Whether a tensor has the same examples in the same places, or none and the same for all."""
    if call.depends(tensor):
        return tensor.dim() == like.dim() and len(tensor) == len(like)
    few = tensor.dim() < like.dim() or len(tensor) == 1 or tensor.stride(0) == 0
    return few or torch.equal(tensor, tensor[:1].expand_as(tensor))


def _pointwise(call: MadeCall) -> bool:
    result = call.result
    if not isinstance(result, Tensor) or result.dim() < 1:
        return False
    given = [call.first, *call.others] if isinstance(call.first, Tensor) else call.others
    return all(_fits(call, tensor, result) for tensor in given)


def _rows(axes: int | None = None, least: int = 2) -> Callable[[MadeCall], bool]:
    """Functions of one tensor with examples, of so many axes, and of weights."""

    def known(call: MadeCall) -> bool:
        if not call.holds_examples() or not isinstance(call.result, Tensor):
            return False
        enough = call.first.dim() >= least and axes in (None, call.first.dim())
        return enough and len(call.result) == len(call.first)

    return known


def _normalised(call: MadeCall) -> bool:
    shape = call.given("normalized_shape", 1)
    return call.holds_examples() and call.first.dim() > len(shape)


def _reshaped(call: MadeCall) -> bool:
    """Rows of a result are whole parts of one example where their number is a multiple."""
    first, result = call.first, call.result
    if not isinstance(first, Tensor) or not isinstance(result, Tensor) or result.dim() < 1:
        return False
    whole = result.numel() == first.numel() and len(result) > 0
    return whole and len(result) % call.examples == 0


def _permuted(call: MadeCall) -> bool:
    order = call.args[1:] if len(call.args) != 2 or isinstance(call.args[1], int) else call.args[1]
    return len(order) > 0 and _axes(call.first, order[0]) == {0}


def _joined(call: MadeCall) -> bool:
    parts = [p for p in call.first if isinstance(p, Tensor) and p.numel()]  # caches begin empty
    axis = call.given("dim", 1, 0)
    apart = bool(parts) and 0 not in _axes(parts[0], axis)
    return apart and all(call.depends(part) or part.stride(0) == 0 for part in parts)


def _product(call: MadeCall) -> bool:
    if len(call.others) != 1 or not isinstance(call.first, Tensor):
        return False
    left, right = call.first, call.others[0]
    if not call.depends(right):
        return right.dim() == 2 and left.dim() > 1
    return call.depends(left) and left.dim() == right.dim() > 2 and len(left) == len(right)


def _counted(call: MadeCall) -> bool:
    """One whole number of all examples, as of a mask: no other call takes it for examples.

    What Python decides by it is noted elsewhere, and compared with what single examples decide.
    """
    tensors = [call.first, *call.others, call.result]
    found = [t for t in tensors if isinstance(t, Tensor)]
    exact = not any(t.is_floating_point() or t.is_complex() for t in found)
    return exact and not (isinstance(call.result, Tensor) and call.result.dim())


def _compared(call: MadeCall) -> bool:
    return _pointwise(call) or _counted(call)


def _rows_by_weight(call: MadeCall) -> bool:
    """``addmm(bias, rows, weight)``."""
    given = [isinstance(value, Tensor) and call.depends(value) for value in call.args]
    return given == [False, True, False] and not call.kwargs


def _loss_of_each(*, labels: bool) -> Callable[[MadeCall], bool]:
    """Losses that are not added up, of labels or of numbers; weights are the same for all."""

    def known(call: MadeCall) -> bool:
        first, target = call.first, call.given("target", 1)
        others = [v for v in call.others if v is not target]
        if call.kwargs.get("reduction") != "none" or any(map(call.depends, others)):
            return False
        if not isinstance(target, Tensor) or not (call.depends(first) and call.depends(target)):
            return False
        one_each = labels and target.shape == first.shape[:1] + first.shape[2:]
        return first.dim() > 0 and (one_each or target.shape == first.shape)

    return known


def _padded(call: MadeCall) -> bool:
    """Along the last axes, of which the first is none."""
    return call.holds_examples() and len(call.given("pad", 1)) // 2 < call.first.dim()


def _attention(call: MadeCall) -> bool:
    query, certain = call.first, call.given("dropout_p", 4, 0.0) == 0.0
    examples = call.depends(query) and query.dim() > 2
    return certain and examples and all(_fits(call, tensor, query) for tensor in call.others)


def _numbered(call: MadeCall, parts: tuple[Any, ...]) -> bool:
    """Whether an index takes the examples one after the other, as padding masks are read."""
    rows, others = parts[0], parts[1:]
    if any(not isinstance(part, Tensor) or call.depends(part) for part in parts):
        return False
    if rows.is_floating_point() or not rows.dim() or rows.numel() != len(rows):
        return False
    same = all(part.dim() < rows.dim() or len(part) == 1 for part in others)
    return same and torch.equal(rows.flatten(), torch.arange(len(call.first)).to(rows))


def _indexed(call: MadeCall) -> bool:
    """Whole examples, by slices and numbers along other axes, or each by its own number."""
    index = call.args[1]
    parts = index if isinstance(index, tuple) else (index,)
    if parts and isinstance(parts[0], Tensor):
        return _numbered(call, parts)
    kinds = {type(part) for part in parts}
    if not parts or not kinds <= {int, slice, type(None), type(Ellipsis)}:
        return False
    if parts[0] is Ellipsis:
        return sum(part is not None for part in parts[1:]) < call.first.dim()
    return isinstance(parts[0], slice) and parts[0] == slice(None)


_KNOWN: dict[str, Callable[[MadeCall], bool]] = {
    **dict.fromkeys(
        [
            "abs", "add", "bfloat16", "clamp", "clone", "contiguous", "cos", "detach", "div",
            "double", "elu", "erf", "exp", "float", "gelu", "half", "hardswish", "hardtanh",
            "leaky_relu", "log", "log1p", "masked_fill", "mish", "mul", "neg", "pow", "relu",
            "relu6", "rsqrt", "selu", "sigmoid", "silu", "sin", "softplus", "sqrt", "square",
            "sub", "tanh", "to", "type_as", "where", "__add__", "__and__", "__iadd__", "__imul__",
            "__invert__", "__isub__", "__itruediv__", "__mul__", "__neg__", "__or__", "__pow__",
            "__radd__", "__rmul__", "__rsub__", "__rtruediv__", "__sub__", "__truediv__",
            "bool", "int", "isnan", "long", "logical_and", "logical_not", "logical_or",
        ],
        _pointwise,
    ),
    **dict.fromkeys(["linear", "group_norm"], _rows()),
    **dict.fromkeys(["conv1d", "max_pool1d", "avg_pool1d", "adaptive_avg_pool1d"], _rows(3)),
    **dict.fromkeys(["conv2d", "max_pool2d", "avg_pool2d", "adaptive_avg_pool2d"], _rows(4)),
    **dict.fromkeys(["conv3d", "max_pool3d", "avg_pool3d", "adaptive_avg_pool3d"], _rows(5)),
    **dict.fromkeys(["layer_norm", "rms_norm"], _normalised),
    **dict.fromkeys(
        [
            "flatten", "reshape", "reshape_as", "squeeze", "unflatten", "unsqueeze", "view",
            "view_as",
        ],
        _reshaped,
    ),
    **dict.fromkeys(
        ["amax", "amin", "log_softmax", "logsumexp", "mean", "softmax", "sum"],
        lambda call: (call.holds_examples() and 0 not in call.axes("dim", 1)) or _counted(call),
    ),
    **dict.fromkeys(["all", "any", "__bool__"], _counted),
    **dict.fromkeys(
        [
            "eq", "ge", "gt", "le", "lt", "ne", "__eq__", "__ge__", "__gt__", "__le__", "__lt__",
            "__ne__",
        ],
        _compared,
    ),
    **dict.fromkeys(
        ["transpose", "swapaxes", "swapdims"],
        lambda call: len(call.args) == 3 and 0 not in _axes(call.first, call.args[1:]),
    ),
    **dict.fromkeys(
        ["chunk", "split"], lambda call: call.holds_examples() and 0 not in call.axes("dim", 2, 0)
    ),
    **dict.fromkeys(["cat", "concat"], _joined),
    **dict.fromkeys(["matmul", "bmm", "__matmul__"], _product),
    **dict.fromkeys(["cross_entropy", "nll_loss"], _loss_of_each(labels=True)),
    **dict.fromkeys(
        [
            "binary_cross_entropy_with_logits", "huber_loss", "l1_loss", "mse_loss",
            "smooth_l1_loss",
        ],
        _loss_of_each(labels=False),
    ),
    "pad": _padded,
    "embedding": _rows(least=1),
    "batch_norm": lambda call: _rows()(call) and call.given("training", 5) is False,
    "dropout": lambda call: call.given("training", 2) is False,
    "expand": lambda call: call.result.dim() == call.first.dim()
    and len(call.result) == len(call.first),
    "permute": _permuted,
    "addmm": _rows_by_weight,
    "scaled_dot_product_attention": _attention,
    "__getitem__": _indexed,
}  # fmt: skip
