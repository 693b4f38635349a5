"""From whatever a model returns to one row of outputs per example."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from theodolite.checks import require_choice
from theodolite.engine.batches import Batch
from theodolite.errors import DtypeError, ShapeError

__all__ = ["Readout", "read_outputs", "resolve_readout"]

Readout = Callable[[Any, Batch], Tensor]

POSITIONS = ("last", "mean", "cls")


def resolve_readout(readout: str | Readout | None) -> Readout:
    """The function behind a readout's name; a callable is kept, None takes the plain outputs."""
    if readout is None:
        return lambda output, _batch: main_tensor(output)
    if callable(readout):
        return readout
    require_choice(POSITIONS, readout=readout)
    name = readout
    return lambda output, batch: _at_position(main_tensor(output), batch.mask, name)


def read_outputs(output: Any, batch: Batch, readout: Readout) -> Tensor:
    """Outputs of shape (n, c), one row per example.

    Raises:
        ShapeError: If the readout does not give one row per example.
    """
    values = readout(output, batch)
    if not isinstance(values, Tensor) or not values.is_floating_point():
        kind = values.dtype if isinstance(values, Tensor) else type(values).__name__
        raise DtypeError(f"readout: expected real outputs, got {kind}; pass readout=")
    if values.dim() == 1:
        values = values.unsqueeze(1)
    if values.dim() != 2 or len(values) != len(batch) or values.shape[1] == 0:
        raise ShapeError(
            f"readout: expected outputs of shape (n, c) with n = {len(batch)}, got "
            f"{tuple(values.shape)}; pass readout='last', 'mean' or 'cls' for (n, T, c), or a "
            "function of (output, batch) that returns (n, c)"
        )
    return values


def main_tensor(output: Any) -> Tensor:
    """The tensor itself, ``.logits``, or the first entry of a tuple or mapping."""
    if isinstance(output, Tensor):
        return output
    logits = getattr(output, "logits", None)
    if isinstance(logits, Tensor):
        return logits
    if isinstance(output, Mapping) and output:
        return main_tensor(output.get("logits", next(iter(output.values()))))
    if isinstance(output, (tuple, list)) and output:
        return main_tensor(output[0])
    raise DtypeError(
        f"readout: expected a tensor, an object with .logits, a tuple or a mapping, got "
        f"{type(output).__name__}; pass readout="
    )


def _at_position(values: Tensor, mask: Tensor | None, name: str) -> Tensor:
    if values.dim() != 3:
        raise ShapeError(
            f"readout={name!r}: expected outputs of shape (n, T, c), got {tuple(values.shape)}; "
            "leave readout out for (n, c)"
        )
    if name == "cls":
        return values[:, 0]
    if mask is None:
        return values[:, -1] if name == "last" else values.mean(1)
    valid = mask.to(values.dtype)
    if name == "mean":
        return (values * valid[:, :, None]).sum(1) / valid.sum(1, keepdim=True)
    positions = torch.arange(values.shape[1], device=values.device)
    last = (positions * mask.long()).argmax(1)
    return values[torch.arange(len(values), device=values.device), last]
