"""Layers with one row of weights per neuron, in the order in which they run, and their filters."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from theodolite.checks import require_kind
from theodolite.engine.batches import iterate_batches
from theodolite.engine.hooks import capture_inputs
from theodolite.engine.layers import CONVOLUTIONS, Layers, is_transposed_linear, select_layers
from theodolite.engine.state import evaluating
from theodolite.errors import DomainError, ShapeError


def is_matrix_layer(module: nn.Module) -> bool:
    """Linear, convolutional, or any other module of its own weight matrix (NTK, GPT-2's Conv1D)."""
    weight = module._parameters.get("weight")
    excluded = isinstance(module, (nn.Embedding, nn.EmbeddingBag)) or hasattr(module, "transposed")
    if isinstance(module, (nn.Linear, *CONVOLUTIONS)):
        return True
    return isinstance(weight, nn.Parameter) and weight.ndim >= 2 and not excluded


def matrix_layers(model: nn.Module, layers: Layers | None = None) -> dict[str, nn.Module]:
    """Linear and convolutional layers by name, in order of registration.

    Args:
        model: any module.
        layers: which of them; None takes all.

    Raises:
        DomainError: If a chosen layer is none of these, or the model has none.
    """
    require_kind(nn.Module, model=model)
    modules = dict(model.named_modules())
    if layers is None:
        found = {name: module for name, module in modules.items() if is_matrix_layer(module)}
        if not found:
            raise DomainError(
                "model: expected linear or convolutional layers, but "
                f"{type(model).__name__} has none"
            )
        return found
    chosen = {name: modules[name] for name in select_layers(model, layers)}
    for name, module in chosen.items():
        if not is_matrix_layer(module):
            raise DomainError(
                f"layers: expected linear or convolutional layers, got {name!r}, a "
                f"{type(module).__name__}; choose the layers inside it"
            )
    return chosen


def head_name(model: nn.Module, head: str | None = None) -> str:
    """The last linear or convolutional layer in order of registration, unless one is named."""
    return list(matrix_layers(model, head))[-1]


def running_order(
    model: nn.Module, inputs: Any, names: list[str]
) -> dict[str, list[tuple[int, ...]]]:
    """Shapes of the inputs of each layer, in the order of the first calls.

    Only layers that are called appear; one that is called twice has two shapes.
    """
    called: dict[str, list[tuple[int, ...]]] = {}

    def note(name: str, value: Tensor) -> Tensor:
        called.setdefault(name, []).append(tuple(value.shape))
        return value.new_empty(0)

    device = next(model.parameters()).device
    batch = next(iterate_batches(inputs, batch_size=2, device=device), None)
    if batch is None:
        raise ShapeError(
            "images: expected at least one batch, got none; pass data that can be read again"
        )
    with torch.no_grad(), evaluating(model), capture_inputs(model, names, note):
        batch.run(model)
    return called


def filter_rows(module: nn.Module) -> Float[Tensor, "F d"]:
    """The weight as a matrix with one row per neuron or filter.

    Raises:
        DomainError: If the weight is computed from other parameters.
    """
    weight = module._parameters.get("weight")
    if weight is None:
        raise DomainError(
            f"layers: expected a layer with a weight of its own, got a re-parametrised "
            f"{type(module).__name__}; remove the parametrisation first and apply it again "
            "afterwards"
        )
    return weight.detach().mT if is_transposed_linear(module) else weight.detach().flatten(1)


def set_filters_(module: nn.Module, rows: Float[Tensor, "F d"]) -> None:
    """Write the rows into the weight; the bias becomes zero."""
    weight = module._parameters["weight"]
    assert weight is not None
    with torch.no_grad():
        values = rows.mT if is_transposed_linear(module) else rows.reshape(weight.shape)
        weight.copy_(values)
        bias = module._parameters.get("bias")
        if bias is not None:
            bias.zero_()
