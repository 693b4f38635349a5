"""One call of a torch function for a rule, and the structures that its gradient can have.

Arguments and results are nested lists, tuples and dictionaries: :func:`leaves`, :func:`map_leaves`.
Their tensors have an :class:`Axis` of examples. A :class:`Call` has all of this for one tensor with
a gradient. Its rule returns a structure: :class:`Outer`, :class:`Lookup` or :class:`Dense`. It says
how the gradient of an output at the call's result becomes the gradient of each example with respect
to the tensor. There are n examples, T positions, C rows and D columns. A pass makes hundreds of
these objects: they are not frozen, because that takes longer.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from theodolite.engine.patches import PatchGeometry
from theodolite.errors import CaptureError


class CannotSplitError(CaptureError):
    """The gradients of a batch cannot be divided among its examples; take one at a time.

    Args:
        text: The message.
        cause: A ``check.Cause``; None if a use of a parameter was not recorded.
        seen: Batches with their outputs, if two passes differed. The same batches run again: if
            outputs have changed, the model changes from pass to pass.
    """

    def __init__(
        self, text: str, cause: Any = None, seen: Sequence[tuple[Any, Tensor]] = ()
    ) -> None:
        super().__init__(text)
        self.cause, self.seen = cause, seen


class WrongGradientError(CannotSplitError):
    """The result for a batch differs from plain autograd."""


_DICTIONARIES = (dict, OrderedDict)


class NestingError(Exception):
    """Values that should have the same nesting differ."""


# Types of most arguments without tensors.
PLAIN = frozenset({int, float, bool, str, type(None), torch.dtype, torch.device})


def _is_nested(value: Any) -> bool:
    return type(value) is list or _is_tuple(value) or type(value) in _DICTIONARIES


def _is_tuple(value: Any) -> bool:
    return type(value) is tuple or (isinstance(value, tuple) and hasattr(value, "_fields"))


def leaves(value: Any) -> Iterator[Any]:
    """All values inside nested lists, tuples and dictionaries, in order.

    Examples:
        >>> list(leaves((1, [2, {"a": 3}])))
        [1, 2, 3]
    """
    if type(value) is list or _is_tuple(value):
        for item in value:
            yield from leaves(item)
    elif type(value) in _DICTIONARIES:
        for item in value.values():
            yield from leaves(item)
    else:
        yield value


def map_leaves(function: Callable[..., Any], value: Any, *others: Any) -> Any:
    """Apply a function to every value of a nested structure.

    Args:
        function: Function of a value, and of the values at its place in the others.
        value: Lists, tuples and dictionaries of values.
        *others: Structures with the same nesting.

    Raises:
        NestingError: If another structure has another nesting.

    Examples:
        >>> map_leaves(lambda a, b: a + b, (1, [2]), (10, [20]))
        (11, [22])
    """
    kind = type(value)
    if not others and (isinstance(value, Tensor) or kind in PLAIN):  # most values
        return function(value)
    if kind is list or _is_tuple(value):
        if any(type(other) is not kind or len(other) != len(value) for other in others):
            raise NestingError
        if others:
            items = [map_leaves(function, *parts) for parts in zip(value, *others, strict=True)]
        else:  # by far the most frequent case
            items = [map_leaves(function, item) for item in value]
        if kind is list:
            return items
        return tuple(items) if kind is tuple else kind(*items)
    if kind in _DICTIONARIES:
        if any(type(other) is not kind or other.keys() != value.keys() for other in others):
            raise NestingError
        return kind(
            (key, map_leaves(function, item, *(other[key] for other in others)))
            for key, item in value.items()
        )
    if others and any(_is_nested(other) for other in others):
        raise NestingError
    return function(value, *others)


def tensors_in(value: Any) -> list[Tensor]:
    """All tensors inside nested arguments, in order, also inside subclasses of containers.

    :func:`map_leaves` rebuilds what it walks, so subclasses are leaves for it and :func:`leaves`.
    """
    found: list[Tensor] = []
    _gather(value if type(value) is tuple else (value,), found)
    return found


def _gather(values: Iterable[Any], found: list[Tensor]) -> None:
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif type(value) in PLAIN:  # fast path for thousands of calls
            continue
        elif isinstance(value, (list, tuple)):
            _gather(value, found)
        elif isinstance(value, dict):
            _gather(value.values(), found)


def has_storage(tensor: Tensor) -> bool:
    """Whether a tensor is dense and not a wrapper of ``torch.func``, which hides its numbers."""
    if tensor.is_nested or tensor.layout != torch.strided:
        return True
    try:
        tensor.untyped_storage()
    except (RuntimeError, NotImplementedError):
        return False
    return True


def function_name(function: Callable[..., Any]) -> str:
    """Name of a torch function, method or property."""
    name = getattr(function, "__name__", None)
    owner = getattr(function, "__self__", None)
    if name == "__get__" and owner is not None:
        return str(getattr(owner, "__name__", name))
    return repr(function) if name is None else str(name)


@dataclass(slots=True)
class Axis:
    """The axis of examples in a tensor.

    It may hold several parts of every example. Attention, for instance, flattens k positions and n
    examples to one axis of length k n.
    """

    index: int
    examples_fastest: bool = False  # whether it is a flattened (k, n); otherwise (n, k)


def find_axis(one: Tensor | None, tensor: Tensor, examples: int) -> Axis | None:
    """The axis of examples; None if there is none, or only one example.

    It is the axis that is longer than in the same tensor of a single example. Without that tensor
    it is the first axis with one entry per example, or else the first axis if it can be divided.
    :func:`find_orders` finds the order of several parts of every example.
    """
    if examples == 1:
        return None
    if tensor.is_nested:
        return Axis(0)
    shape = tensor.shape
    if one is None or one.dim() != len(shape):
        exact = (Axis(k) for k, size in enumerate(shape) if size == examples)
        divisible = bool(shape) and shape[0] > 0 and shape[0] % examples == 0
        return next(exact, Axis(0) if divisible else None)
    for index, (single, size) in enumerate(zip(one.shape, shape, strict=True)):
        if single != size and single * examples == size:
            return Axis(index)
    return None


def find_orders(
    pairs: Sequence[tuple[Tensor, Tensor]], axes: Sequence[Axis | None], examples: int, row: int
) -> None:
    """Set ``examples_fastest`` of axes with several parts of every example.

    ``pairs`` are tensors of a call for a single example and for all. Both orders are tried. The
    right one gives the numbers of the single example, which is one ``row`` of the batch.
    """
    undecided: list[Axis] = []
    gaps: list[Tensor] = []
    for (one, tensor), axis in zip(pairs, axes, strict=True):
        if axis is None or one.dim() != tensor.dim() or one.shape[axis.index] == 1:
            continue
        rows = [split_examples(tensor, examples, Axis(axis.index, k))[row] for k in (False, True)]
        if rows[0].shape != one.shape:  # other axes have changed too, for example longer sequences
            continue
        undecided.append(axis)
        wanted = one.detach().double()
        gaps += [torch.linalg.vector_norm(part.detach().double() - wanted, 1) for part in rows]
    if undecided:
        slowest, fastest = torch.stack(gaps).view(-1, 2).T.tolist()  # waits for the device once
        for axis, gap, gap_if_fastest in zip(undecided, slowest, fastest, strict=True):
            axis.examples_fastest = gap_if_fastest < gap


def split_examples(tensor: Tensor, examples: int, axis: Axis | None) -> Tensor:
    """Move examples to a new first axis; the other axes are as for a single example."""
    if tensor.is_nested:  # missing positions become zeros, which change no sum
        return torch.nested.to_padded_tensor(tensor, 0.0).unsqueeze(1)
    if examples == 1:
        return tensor.unsqueeze(0)
    if axis is None:
        raise CannotSplitError("a tensor without an axis of examples cannot be split")
    if axis.index == 0 and tensor.shape[0] == examples:  # by far the most frequent case
        return tensor.unsqueeze(1)
    if axis.examples_fastest:
        return torch.unflatten(tensor, axis.index, (-1, examples)).movedim(axis.index + 1, 0)
    return torch.unflatten(tensor, axis.index, (examples, -1)).movedim(axis.index, 0)


@dataclass(slots=True)
class Call:
    """One call that receives a parameter."""

    function: Callable[..., Any]
    args: tuple[Any, ...]  # its positional arguments, with detached tensors
    kwargs: dict[str, Any]  # its keyword arguments, with detached tensors
    source: Tensor  # the argument whose gradient is computed; it depends on parameters only
    examples: int
    axes: dict[int, Axis | None]  # id of an argument -> its axis of examples
    result_axes: tuple[Axis | None, ...]  # the same for the tensors in the result, in order

    def bind(self, *names: str, **defaults: Any) -> dict[str, Any]:
        """Arguments by name: positional ones in the order given, then keywords, then defaults."""
        return {**defaults, **dict(zip(names, self.args, strict=False)), **self.kwargs}

    def axis_of(self, tensor: Tensor) -> Axis | None:
        """The axis of examples in an argument; None for a single example."""
        return self.axes.get(id(tensor))

    def has_examples(self, tensor: Tensor) -> bool:
        """Whether an argument has an axis of examples (always, for a single example)."""
        return self.examples == 1 or self.axis_of(tensor) is not None

    def split(self, tensor: Tensor) -> Tensor:
        """An argument with a new first axis of examples; other axes as for a single example."""
        return split_examples(tensor, self.examples, self.axis_of(tensor))

    def split_result(self, gradient: Tensor) -> Tensor:
        """The same for a tensor with the shape of the first result."""
        return split_examples(gradient, self.examples, self.result_axes[0])


ToOutputGrads = Callable[[Tensor], Tensor]
ResultGrads = tuple[Tensor | None, ...]  # gradients at the results of one call; None for zero


@dataclass(slots=True)
class Outer:
    r"""A matrix whose gradient is a sum of outer products, :math:`\sum_t b_t a_t^\top`."""

    inputs: Tensor  # a, of shape (n, T, D), or images (n, channels, ...) with geometry
    to_output_grads: ToOutputGrads  # function from the result's gradient to b, a view (n, C, T)
    rows: int  # C
    transposed: bool = False  # whether the tensor is stored as (D, C)
    geometry: PatchGeometry | None = None  # how patches are cut from the images

    @property
    def positions(self) -> int:
        """T."""
        if self.geometry is None:
            return self.inputs.shape[1]
        return self.geometry.positions(self.inputs.shape[2:])

    @property
    def columns(self) -> int:
        """D."""
        return (
            self.inputs.shape[-1]
            if self.geometry is None
            else self.inputs.shape[1] * self.geometry.offset_count
        )

    def rows_of_inputs(self) -> Tensor:
        """:math:`a` as (n, T, D) for any geometry, with D in the order of the stored tensor."""
        if self.geometry is None:
            return self.inputs
        return self.geometry.patch_rows(self.geometry.pad(self.inputs))

    def example_gradients(self, gradient: Tensor) -> Tensor:
        """Gradient of every example with respect to the tensor, (n, C, D) or (n, D, C)."""
        J = self.to_output_grads(gradient) @ self.rows_of_inputs().to(gradient.dtype)
        return J.transpose(1, 2) if self.transposed else J


@dataclass(slots=True)
class Lookup:
    """A table whose rows are selected by integers: an outer product with one-hot vectors.

    C is the width of a row, and D the length of the table.
    """

    tokens: Tensor  # row at every position, (n, T)
    to_output_grads: ToOutputGrads  # function from the result's gradient to b, a view (n, C, T)
    table_length: int  # number of rows of the table

    def example_gradients(self, gradient: Tensor) -> Tensor:
        """Gradient of every example with respect to the table, (n, D, C)."""
        output_grad = self.to_output_grads(gradient)
        table = output_grad.new_zeros(len(output_grad), self.table_length, output_grad.shape[1])
        index = self.tokens[:, :, None].expand(-1, -1, output_grad.shape[1])
        return table.scatter_add_(1, index, output_grad.transpose(1, 2))


@dataclass(slots=True)
class Dense:
    """Any other tensor: the gradient of every example itself."""

    # Function from the gradient of the call's result (a tuple for several results) to the gradient
    # of every example with respect to the tensor, (n, ...).
    example_gradients: Callable[[Any], Tensor]
    is_bias: bool = False  # whether it is added at every position of an Outer of the same call
    # Whether the tensor has one part for every example, such as ``token.expand(n, -1)``. Gradients
    # are then those of each example's own part.
    own_rows: bool = False
    axis: Axis | None = None  # the axis of these parts in the tensor
    needs: tuple[Tensor, ...] = ()  # tensors that must not be overwritten before the backward pass


Structure = Outer | Lookup | Dense
