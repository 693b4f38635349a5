"""Recurrent layers step by step, in torch functions that have rules.

PyTorch runs a recurrent layer as one call, from whose result the gradients of single examples
cannot be read. Written out, each weight is used by ``linear``: once for all steps with the inputs,
and once per step with the state. Values agree with PyTorch's own up to rounding.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["STEP_BY_STEP"]

Weights = list[Tensor]  # of the inputs, of the state, and their biases if there are any
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
    def call(inputs: Tensor, hx: Any, *given: Tensor | None) -> Any:
        weights = [weight for weight in given if weight is not None]
        if inputs.dim() != 2 or len(weights) not in (2, 4):
            return None
        start = _of_examples(hx if step is _lstm_step else (hx,), inputs)
        state = step(_linear(inputs, weights, 0), start, weights)
        return state if step is _lstm_step else state[0]

    return call


def _layers(step: Step) -> Callable[..., Any]:
    def call(inputs: Any, hx: Any, params: Any, *options: Any) -> Any:
        if not isinstance(params, list | tuple) or len(options) != 6 or inputs.dim() != 3:
            return None  # packed sequences
        has_biases, layers, dropout, train, bidirectional, batch_first = options
        size, ways = 4 if has_biases else 2, 1 + bidirectional
        if len(params) != size * layers * ways or (dropout and train):
            return None  # projections
        states = hx if step is _lstm_step else (hx,)
        steps = inputs.transpose(0, 1) if batch_first else inputs
        ends: list[State] = []
        for layer in range(layers):
            results = []
            for way in range(ways):
                place = layer * ways + way
                weights = [*params[size * place : size * (place + 1)]]
                state = tuple(part[place] for part in states)
                outputs, end = _run(step, steps, state, weights, backwards=way == 1)
                results.append(outputs)
                ends.append(end)
            steps = results[0] if ways == 1 else torch.cat(results, -1)
        outputs = steps.transpose(0, 1) if batch_first else steps
        last = tuple(torch.stack(parts) for parts in zip(*ends, strict=True))
        return (outputs, *last)

    return call


def _run(
    step: Step, inputs: Tensor, state: State, weights: Weights, *, backwards: bool
) -> tuple[Tensor, State]:
    """One layer in one direction: its state after every step, and the last one."""
    given = _linear(inputs, weights, 0).unbind(0)
    state = _of_examples(state, inputs[0])
    found = []
    for one in reversed(given) if backwards else given:
        state = step(one, state, weights)
        found.append(state[0])
    return torch.stack(found[::-1] if backwards else found), state


def _of_examples(state: State, inputs: Tensor) -> State:
    """The same state, as something that has one row per example: zeros come from nowhere."""
    zeros = torch.zeros_like(inputs[:, :1])
    return tuple(part + zeros for part in state)


# Torch function -> the same step by step, or None for arguments that it does not know.
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
