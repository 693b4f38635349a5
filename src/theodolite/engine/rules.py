"""Rules for torch functions: from the gradient of a result to gradients of examples.

A call without a rule is run again for each example (:func:`replay`). This is exact for every
differentiable function of torch, and slower; ``Coverage.by_rule`` says so. Recurrent layers are run
step by step, in functions that have rules (``STEP_BY_STEP``).
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from theodolite.engine.calls import (
    Axis,
    Call,
    CannotSplitError,
    Dense,
    Lookup,
    Outer,
    Structure,
    ToOutputGrads,
    function_name,
    leaves,
    map_leaves,
    split_examples,
    tensors_in,
)
from theodolite.engine.patches import PatchGeometry, per_axis
from theodolite.engine.state import quiet_vmap

Rule = Callable[[Call], Structure | None]

# Torch function -> rule. A rule may return None for a special case; the call then goes to
# :func:`replay`.
RULES: dict[Callable[..., Any], Rule] = {}


def register_rule(*functions: Callable[..., Any]) -> Callable[[Rule], Rule]:
    """Declare how calls of these torch functions act on the gradients of their parameters.

    The rule receives a :class:`~theodolite.engine.calls.Call`. It returns a structure, or None if
    it does not apply. Your own functions are recorded if they dispatch through
    ``torch.overrides.handle_torch_function`` or consist of torch functions with rules. Checked
    batches (``check=``) compare the results of rules with plain autograd.

    Args:
        *functions: torch functions, such as ``torch.addmm``.

    Returns:
        A decorator for the rule.

    Examples:
        >>> from theodolite.engine.calls import Dense
        >>> @register_rule(torch.hypot)
        ... def hypot(call):
        ...     return None
        >>> RULES.pop(torch.hypot) is hypot
        True
    """

    def decorate(rule: Rule) -> Rule:
        for function in functions:
            RULES[function] = rule
        return rule

    return decorate


def _in_rows(call: Call, tensor: Tensor, axis: Axis | None) -> Tensor:
    """A tensor (..., D) as (n, T, D); unchanged if it has this form already."""
    first = axis is not None and axis.index == 0 and not (axis.examples_fastest or tensor.is_nested)
    if first and tensor.dim() == 3 and tensor.shape[0] == call.examples:
        return tensor
    parts = split_examples(tensor, call.examples, axis)
    positions = math.prod(parts.shape[1:-1])  # -1 would fail for layers without rows
    return parts.reshape(call.examples, positions, tensor.shape[-1])


def _rows_to_output_grads(call: Call) -> ToOutputGrads:
    """From a gradient of shape (..., C) to (n, C, T)."""

    def to_output_grads(gradient: Tensor) -> Tensor:
        return _in_rows(call, gradient, call.result_axes[0]).transpose(1, 2)

    return to_output_grads


def _bias(to_output_grads: ToOutputGrads) -> Structure:
    """A vector that is added at every position."""
    return Dense(lambda gradient: to_output_grads(gradient).sum(2), is_bias=True)


def _matrix(call: Call, inputs: Tensor, rows: int, transposed: bool) -> Structure | None:
    if not call.has_examples(inputs) or inputs.dim() < 1:
        return None
    flat = _in_rows(call, inputs, call.axis_of(inputs))
    return Outer(flat, _rows_to_output_grads(call), rows, transposed)


@register_rule(functional.linear)
def linear(call: Call) -> Structure | None:
    """``linear(input, weight, bias)``: weight (C, D), any number of axes before D."""
    bound = call.bind("input", "weight", "bias", bias=None)
    if bound["bias"] is call.source:
        return _bias(_rows_to_output_grads(call))
    if bound["weight"] is not call.source or call.source.dim() != 2:
        return None
    return _matrix(call, bound["input"], call.source.shape[0], transposed=False)


@register_rule(torch.addmm, Tensor.addmm)
def addmm(call: Call) -> Structure | None:
    """``addmm(bias, input, weight)``, as in the Conv1D of GPT-2: weight (D, C)."""
    bound = call.bind("input", "mat1", "mat2", beta=1, alpha=1)
    if bound["beta"] != 1 or bound["alpha"] != 1:
        return None
    if bound["input"] is call.source and call.source.dim() == 1:
        return _bias(_rows_to_output_grads(call))
    if bound["mat2"] is not call.source:
        return None
    return _matrix(call, bound["mat1"], call.source.shape[1], transposed=True)


@register_rule(
    torch.matmul, torch.mm, Tensor.matmul, Tensor.mm, Tensor.__matmul__, Tensor.__rmatmul__
)
def matmul(call: Call) -> Structure | None:
    """``input @ weight`` with weight (D, C), and ``weight @ input`` with weight (C, D)."""
    if len(call.args) != 2 or call.source.dim() != 2:
        return None
    left, right = call.args[::-1] if call.function is Tensor.__rmatmul__ else call.args
    if right is call.source:
        return _matrix(call, left, right.shape[1], transposed=True)
    if left is call.source and right.dim() == 3 and call.has_examples(right):
        return _from_left(call, right, left.shape[0])
    return None


def _from_left(call: Call, right: Tensor, rows: int) -> Structure:
    """``weight @ input`` with input (n, D, T), whose columns are the positions."""

    def columns_last(tensor: Tensor, parts: Tensor) -> Tensor:
        flat = parts.movedim(-2, 1)  # (n, D, ..., T)
        return flat.reshape(call.examples, tensor.shape[-2], -1)

    inputs = columns_last(right, call.split(right)).transpose(1, 2)
    return Outer(inputs, lambda g: columns_last(g, call.split_result(g)), rows)


@register_rule(torch.conv1d, torch.conv2d, torch.conv3d)
def convolution(call: Call) -> Structure | None:
    """``conv(input, weight, bias, stride, padding, dilation)``: patches times weights."""
    bound = call.bind(
        "input", "weight", "bias", "stride", "padding", "dilation", "groups",
        bias=None, stride=1, padding=0, dilation=1, groups=1,
    )  # fmt: skip
    images, weight = bound["input"], bound["weight"]
    if images.dim() != weight.dim() or not call.has_examples(images):
        return None
    to_output_grads = _maps_to_output_grads(call)
    if bound["bias"] is call.source:
        return _bias(to_output_grads)
    geometry = _geometry(bound)
    if weight is not call.source or geometry is None or bound["groups"] > 1:
        return (
            None  # replaying a grouped convolution is faster than gradients of its small matrices
        )
    parts = call.split(images)  # (n, k, channels, ...) with k images per example
    if parts.shape[1] == 1:
        return Outer(parts.squeeze(1), to_output_grads, len(weight), geometry=geometry)
    return Outer(_patches(parts, geometry), to_output_grads, len(weight))


def _maps_to_output_grads(call: Call) -> ToOutputGrads:
    """From (n k, C, ...) to (n, C, T), with the positions of all k images of an example."""

    def to_output_grads(gradient: Tensor) -> Tensor:
        parts = call.split_result(gradient).flatten(3)
        if parts.shape[1] == 1:
            return parts.squeeze(1)
        return parts.transpose(1, 2).flatten(2)

    return to_output_grads


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
            return None  # uneven padding is replayed
        padding = tuple(size // 2 for size in total)
    return PatchGeometry(kernel, stride, per_axis(padding, count), dilation)


def _patches(parts: Tensor, geometry: PatchGeometry) -> Tensor:
    """Patches of all images of an example, (n, T, D), with D in the order of the weight."""
    rows = geometry.patch_rows(geometry.pad(parts.flatten(0, 1)))  # (n k, T, D)
    return rows.reshape(len(parts), -1, rows.shape[-1])


@register_rule(functional.embedding)
def embedding(call: Call) -> Structure | None:
    """``embedding(input, weight, padding_idx)``: rows of padding receive no gradient."""
    bound = call.bind(
        "input", "weight", "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq",
        padding_idx=None, max_norm=None, scale_grad_by_freq=False,
    )  # fmt: skip
    if bound["max_norm"] is not None or bound["scale_grad_by_freq"]:
        raise CannotSplitError(
            "embedding with max_norm or scale_grad_by_freq treats the examples of a batch together"
        )
    if bound["weight"] is not call.source or not call.has_examples(bound["input"]):
        return None
    tokens = call.split(bound["input"]).reshape(call.examples, -1)
    padding = bound["padding_idx"]
    rows = len(call.source)
    if padding is not None:
        padding = padding % rows

    def to_output_grads(gradient: Tensor) -> Tensor:
        parts = call.split_result(gradient)
        output_grad = parts.reshape(call.examples, -1, gradient.shape[-1]).transpose(1, 2)
        return output_grad if padding is None else output_grad * (tokens != padding)[:, None]

    return Lookup(tokens, to_output_grads, rows)


@register_rule(functional.layer_norm)
def layer_norm(call: Call) -> Structure | None:
    """``layer_norm(input, normalized_shape, weight, bias, eps)``."""
    bound = call.bind("input", "normalized_shape", "weight", "bias", "eps")
    return _scale_or_shift(call, bound, _over_leading_axes)


@register_rule(functional.rms_norm)
def rms_norm(call: Call) -> Structure | None:
    """``rms_norm(input, normalized_shape, weight, eps)``."""
    bound = call.bind("input", "normalized_shape", "weight", "eps")
    return _scale_or_shift(call, bound, _over_leading_axes)


@register_rule(functional.group_norm)
def group_norm(call: Call) -> Structure | None:
    """``group_norm(input, num_groups, weight, bias, eps)``."""
    bound = call.bind("input", "num_groups", "weight", "bias", "eps")
    return _scale_or_shift(call, bound, _over_positions)


@register_rule(functional.batch_norm)
def batch_norm(call: Call) -> Structure | None:
    """``batch_norm`` with running statistics; those of the batch mostly mix examples."""
    bound = call.bind(
        "input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps"
    )
    if bound.get("training"):
        raise CannotSplitError("batch_norm uses statistics of the batch")
    return _scale_or_shift(call, bound, _over_positions)


def _scale_or_shift(
    call: Call, bound: dict[str, Any], add_up: Callable[[Tensor, Tensor], Tensor]
) -> Structure | None:
    """Parameters that a normalisation multiplies with its result, or adds to it.

    ``add_up`` makes the gradient of every example from k parts of each, (n, k, ...).
    """
    inputs, is_shift = bound["input"], bound.get("bias") is call.source
    if not call.has_examples(inputs):
        return None
    without_parameters = {**bound, **dict.fromkeys(bound.keys() & {"weight", "bias"})}

    def example_gradients(gradient: Tensor) -> Tensor:
        product = gradient if is_shift else gradient * call.function(**without_parameters)
        return add_up(call.split_result(product), call.source)

    return Dense(example_gradients, needs=() if is_shift else (inputs,))


def _over_leading_axes(parts: Tensor, parameter: Tensor) -> Tensor:
    """For a parameter with the shape of the last axes: the sum over all axes before them."""
    return parts.reshape(len(parts), -1, *parameter.shape).sum(1)


def _over_positions(parts: Tensor, _parameter: Tensor) -> Tensor:
    """For one number per channel: the sum over all axes but that of the channels."""
    return parts.flatten(3).sum((1, 3)) if parts.dim() > 3 else parts.sum(1)


@register_rule(
    torch.mul, torch.multiply, Tensor.mul, Tensor.mul_, Tensor.__mul__, Tensor.__rmul__,
    Tensor.__imul__,
)  # fmt: skip
def multiply(call: Call) -> Structure | None:
    """``a * b`` where one of both depends on parameters only."""
    other = _other(call)
    return None if other is None else _reduced(call, other)


@register_rule(torch.add, Tensor.add, Tensor.add_, Tensor.__add__, Tensor.__radd__, Tensor.__iadd__)
def add(call: Call) -> Structure | None:
    """``a + b`` where one of both depends on parameters only."""
    if call.kwargs or _other(call) is None:
        return None
    return _reduced(call, None)


@register_rule(torch.sub, Tensor.sub, Tensor.sub_, Tensor.__sub__, Tensor.__isub__, Tensor.__rsub__)
def subtract(call: Call) -> Structure | None:
    """``a - b`` where one of both depends on parameters only; ``a.__rsub__(b)`` is ``b - a``."""
    if call.kwargs or _other(call) is None:
        return None
    subtracted = call.args[0 if call.function is Tensor.__rsub__ else 1]
    return _reduced(call, None, -1.0 if subtracted is call.source else 1.0)


def _other(call: Call) -> Tensor | None:
    """The argument that depends on examples, if the call is a plain product or sum."""
    if len(call.args) != 2 or not all(isinstance(value, Tensor) for value in call.args):
        return None
    left, right = call.args
    if left is right or call.axis_of(call.source) is not None:
        return None  # a tensor with one part per example is replayed
    if left.is_complex() or right.is_complex():
        return None  # the gradient of a real factor is the real part
    return right if left is call.source else left


def _reduced(call: Call, factor: Tensor | None, sign: float = 1.0) -> Structure:
    """Sum over the axes along which the parameter was repeated, for each example."""
    shape = tuple(call.source.shape)

    def example_gradients(gradient: Tensor) -> Tensor:
        product = gradient * sign if factor is None else gradient * factor
        parts = call.split_result(product)  # (n, shape for a single example)
        lead = parts.dim() - 1 - len(shape)
        parts = parts.sum(tuple(range(1, 1 + lead))) if lead else parts
        repeated = [k + 1 for k, size in enumerate(shape) if size == 1 and parts.shape[k + 1] != 1]
        return parts.sum(repeated, keepdim=True) if repeated else parts

    return Dense(example_gradients, needs=() if factor is None else (factor,))


def replay(call: Call, keep: tuple[bool, ...]) -> Structure:
    """The vector-Jacobian product of one call for every example, where no rule applies.

    ``keep`` says which tensors of the result have a gradient.
    """
    n, source, axis = call.examples, call.source, call.axis_of(call.source)
    result_axes = [found for found, kept in zip(call.result_axes, keep, strict=True) if kept]
    if n > 1 and None in result_axes:
        raise CannotSplitError(
            f"{function_name(call.function)}: expected a result with one part per example, got "
            "one in which they cannot be distinguished"
        )
    own_rows = axis is not None and n > 1
    arguments = call.args, call.kwargs
    divided = [
        leaf
        for leaf in leaves(arguments)
        if isinstance(leaf, Tensor) and leaf is not source and n > 1 and call.axis_of(leaf)
    ]

    def of_one(source_part: Tensor, output_grads: Sequence[Tensor], parts: Sequence[Tensor]) -> Any:
        """The gradient of one example, from its part of each result and argument."""
        own = dict(zip(map(id, divided), parts, strict=True))

        def run(value: Tensor) -> tuple[Tensor, ...]:
            args, kwargs = map_leaves(
                lambda leaf: value if leaf is source else own.get(id(leaf), leaf), arguments
            )
            returned = tensors_in(call.function(*args, **kwargs))
            return tuple(tensor for tensor, kept in zip(returned, keep, strict=True) if kept)

        return torch.func.vjp(run, source_part)[1](tuple(output_grads))[0]

    def example_gradients(gradients: Any) -> Tensor:
        given = gradients if isinstance(gradients, tuple) else (gradients,)
        output_grads = tuple(
            split_examples(gradient, n, found)
            for gradient, found in zip(given, result_axes, strict=True)
        )
        parts = tuple(map(call.split, divided))
        sources = call.split(source) if own_rows else source
        in_dims = (0 if own_rows else None, 0, 0 if parts else None)
        try:
            return quiet_vmap(of_one, in_dims)(sources, output_grads, parts)
        except RuntimeError:  # no batching rule, as for some recurrent kernels
            rows = [
                of_one(
                    sources[k] if own_rows else sources,
                    [output_grad[k] for output_grad in output_grads],
                    [part[k] for part in parts],
                )
                for k in range(n)
            ]
            return torch.stack(rows)

    needs = tuple(tensor for tensor in tensors_in(arguments) if tensor is not source)
    return Dense(example_gradients, own_rows=own_rows, axis=axis, needs=needs)


# Recurrent layers step by step. PyTorch runs such a layer as one call, which hides the gradients of
# single examples. Step by step, ``linear`` uses each weight: once with all inputs, and once per
# step with the state. Values agree with PyTorch's own up to rounding.

Weights = list[Tensor]  # weights of the inputs and of the state, and their biases if any
State = tuple[Tensor, ...]
Step = Callable[[Tensor, State, Weights], State]


def _linear(inputs: Tensor, weights: Weights, place: int) -> Tensor:
    bias = weights[place + 2] if len(weights) > 2 else None
    return functional.linear(inputs, weights[place], bias)


def _lstm_step(given: Tensor, state: State, weights: Weights) -> State:
    hidden, cell = state
    gates = given + _linear(hidden, weights, 1)
    keep_in, forget, new, out = gates.chunk(4, -1)
    cell = forget.sigmoid() * cell + keep_in.sigmoid() * new.tanh()
    return out.sigmoid() * cell.tanh(), cell


def _gru_step(given: Tensor, state: State, weights: Weights) -> State:
    (hidden,) = state
    given_reset, given_update, given_new = given.chunk(3, -1)
    reset, update, new = _linear(hidden, weights, 1).chunk(3, -1)
    fresh = (given_new + (given_reset + reset).sigmoid() * new).tanh()
    return (fresh + (given_update + update).sigmoid() * (hidden - fresh),)


def _tanh_step(given: Tensor, state: State, weights: Weights) -> State:
    return ((given + _linear(state[0], weights, 1)).tanh(),)


def _relu_step(given: Tensor, state: State, weights: Weights) -> State:
    return ((given + _linear(state[0], weights, 1)).relu(),)


def _cell(step: Step) -> Callable[..., Any]:
    """A version of ``torch.lstm_cell`` and its like."""

    def call(inputs: Tensor, hx: Any, *given: Tensor | None) -> Any:
        weights = [weight for weight in given if weight is not None]
        if inputs.dim() != 2 or len(weights) not in (2, 4):
            return None
        start = _one_row_per_example(hx if step is _lstm_step else (hx,), inputs)
        state = step(_linear(inputs, weights, 0), start, weights)
        return state if step is _lstm_step else state[0]

    return call


def _layers(step: Step) -> Callable[..., Any]:
    """A version of ``torch.lstm`` and its like, for several layers and one or both directions."""

    def call(inputs: Any, hx: Any, params: Any, *options: Any) -> Any:
        if not isinstance(params, list | tuple) or len(options) != 6 or inputs.dim() != 3:
            return None  # packed sequences
        has_biases, layers, dropout, train, bidirectional, batch_first = options
        size, directions = 4 if has_biases else 2, 1 + bidirectional
        if len(params) != size * layers * directions or (dropout and train):
            return None  # projections
        states = hx if step is _lstm_step else (hx,)
        steps = inputs.transpose(0, 1) if batch_first else inputs
        ends: list[State] = []
        for layer in range(layers):
            results = []
            for direction in range(directions):
                place = layer * directions + direction
                weights = [*params[size * place : size * (place + 1)]]
                state = tuple(part[place] for part in states)
                outputs, end = _one_direction(step, steps, state, weights, backwards=direction == 1)
                results.append(outputs)
                ends.append(end)
            steps = results[0] if directions == 1 else torch.cat(results, -1)
        outputs = steps.transpose(0, 1) if batch_first else steps
        last = tuple(torch.stack(parts) for parts in zip(*ends, strict=True))
        return (outputs, *last)

    return call


def _one_direction(
    step: Step, inputs: Tensor, state: State, weights: Weights, *, backwards: bool
) -> tuple[Tensor, State]:
    """One layer in one direction: the states after all steps, and the last state."""
    given = _linear(inputs, weights, 0).unbind(0)
    state = _one_row_per_example(state, inputs[0])
    found = []
    for one in reversed(given) if backwards else given:
        state = step(one, state, weights)
        found.append(state[0])
    return torch.stack(found[::-1] if backwards else found), state


def _one_row_per_example(state: State, inputs: Tensor) -> State:
    """The same state with one row per example, also for an initial state of zeros."""
    zeros = torch.zeros_like(inputs[:, :1])
    return tuple(part + zeros for part in state)


# Torch function -> its version step by step, which returns None for unknown arguments.
STEP_BY_STEP: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.lstm_cell: _cell(_lstm_step),
    torch.gru_cell: _cell(_gru_step),
    torch.rnn_tanh_cell: _cell(_tanh_step),
    torch.rnn_relu_cell: _cell(_relu_step),
    torch.lstm: _layers(_lstm_step),
    torch.gru: _layers(_gru_step),
    torch.rnn_tanh: _layers(_tanh_step),
    torch.rnn_relu: _layers(_relu_step),
}
