"""From the output of a model to the functions of an example whose gradients are taken.

A readout gives one row of outputs per example. A loss turns the row into one number. A choice of
outputs selects those for a tangent kernel.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from theodolite.checks import (
    dtype_text,
    require_choice,
    require_function,
    require_tensors,
)
from theodolite.engine.batches import Batch
from theodolite.engine.positions import PositionLabels
from theodolite.errors import DomainError, DtypeError, ShapeError, TheodoliteError

Readout = Callable[[Any, Batch], Tensor]

POSITIONS = ("last", "mean", "cls")
LOSS = "loss"


def resolve_readout(readout: str | Readout | None) -> Readout:
    """The function with the name of a readout; callables are kept, None is the plain output."""
    if readout is None:
        return lambda output, _batch: main_tensor(output)
    if callable(readout):
        require_function(readout=readout)
        return readout
    require_choice((*POSITIONS, LOSS), readout=readout)
    if readout == LOSS:
        return _position_loss
    name = readout
    return lambda output, batch: _at_position(main_tensor(output), batch.mask, name)


def read_outputs(output: Any, batch: Batch, readout: Readout) -> Tensor:
    """Outputs of shape (n, c), one row per example.

    Raises:
        ShapeError: If the readout does not give one row per example.
    """
    values = readout(output, batch)
    if not isinstance(values, Tensor) or not values.dtype.is_floating_point:
        kind = values.dtype if isinstance(values, Tensor) else type(values).__name__
        raise DtypeError(f"readout: expected real outputs, got {kind}; pass readout=")
    count, shape = len(batch), values.shape  # each such call is recorded, and takes microseconds
    if len(shape) < 2 and (count == 1 or shape):
        values = values.reshape(1, -1) if count == 1 else values.unsqueeze(1)  # squeezed
        shape = values.shape
    if len(shape) != 2 or shape[0] != count or shape[1] == 0:
        raise ShapeError(
            f"readout: expected outputs of shape (n, c) with n = {len(batch)}, got "
            f"{tuple(values.shape)}; pass readout='last', 'mean' or 'cls' for (n, T, c), 'loss' "
            "for labels per position, or a function of (output, batch) that returns (n, c)"
        )
    return values


def main_tensor(output: Any) -> Tensor:
    """The tensor itself, ``.logits``, or the first entry of a tuple."""
    if isinstance(output, Tensor):
        return output
    logits = getattr(output, "logits", None)
    if isinstance(logits, Tensor):
        return logits
    if isinstance(output, Mapping):
        if "logits" in output:
            return main_tensor(output["logits"])
        keys = ", ".join(repr(key) for key in output)
        advice = "pass readout= a function of (output, batch) that returns the tensor to measure"
        if "last_hidden_state" in output:
            advice = (
                "load the model with a head for its task, such as AutoModelForCausalLM, or pass "
                "readout= a function of (output, batch) that returns (n, c)"
            )
        raise DtypeError(
            f"readout: expected an output with 'logits', got a mapping with {keys or 'nothing'}; "
            f"{advice}"
        )
    if isinstance(output, (tuple, list)) and output:
        return main_tensor(output[0])
    raise DtypeError(
        f"readout: expected a tensor, an object with .logits or a tuple, got "
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


def _position_loss(output: Any, batch: Batch) -> Float[Tensor, "n 1"]:
    """Mean loss of each example over its labels per position."""
    values = main_tensor(output)
    labels = PositionLabels.of(values, batch)
    if labels is None:
        shape = tuple(batch.targets.shape) if isinstance(batch.targets, Tensor) else None
        raise ShapeError(
            "readout='loss': expected a label for every position of the outputs, got outputs "
            f"{tuple(values.shape)} and targets {shape}; pass labels (n, T) beside outputs "
            "(n, T, c), or (n, H, W) beside (n, c, H, W)"
        )
    return labels.loss(values, batch).unsqueeze(1)


Loss = Callable[[Tensor, Any], Tensor]


def first_output(outputs: Tensor, _targets: Any) -> Float[Tensor, " n"]:
    """The loss for a readout that returns losses."""
    return outputs[:, 0]


def per_example_loss(loss: Loss | None) -> Callable[[Tensor, Batch], Tensor]:
    """The loss as a function of outputs and batch that returns ``(n,)``, or an error with advice.

    Raises:
        ShapeError: When called, if the loss is reduced or has further axes.
        DomainError: When called, if the batch has no targets.
    """
    if loss is not None:
        require_function(loss=loss)
    function = per_example_cross_entropy if loss is None else loss

    def checked(outputs: Tensor, batch: Batch) -> Tensor:
        if batch.targets is None:
            raise DomainError(
                "targets: expected one per example for the loss, got none; pass targets="
            )
        targets = batch.targets  # a copy, because a loss may overwrite what it gets
        targets = targets.clone() if isinstance(targets, Tensor) else targets
        try:
            values = function(outputs, targets)
        except Exception as error:
            if not isinstance(error, TheodoliteError):
                shape = tuple(targets.shape) if isinstance(targets, Tensor) else type(targets)
                error.add_note(
                    f"raised by loss(outputs, targets) for {len(batch)} examples, with outputs of "
                    f"shape {tuple(outputs.shape)} and targets of shape {shape}"
                )
            raise
        if not isinstance(values, Tensor) or values.shape != (len(batch),):
            shape = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
            raise ShapeError(
                f"loss: expected one number per example, shape ({len(batch)},), got {shape}; "
                "build it with reduction='none' and sum over further axes"
            )
        return values

    return checked


def per_example_cross_entropy(
    outputs: Float[Tensor, "n c"], targets: Tensor
) -> Float[Tensor, " n"]:
    """Cross-entropy of each example, where the model's outputs are logits.

    Targets are class indices ``(n,)`` or ``(n, 1)``, probabilities ``(n, c)``, or 0 and 1 for a
    single output.

    Returns:
        One loss per example.
    """
    require_tensors(outputs=outputs, targets=targets)
    if outputs.shape[1] == 1:
        values = outputs.squeeze(1)
        targets = targets.reshape(values.shape).to(values.dtype)
        return functional.binary_cross_entropy_with_logits(values, targets, reduction="none")
    if targets.ndim == 2 and targets.shape[1] == 1:
        targets = targets.squeeze(1)
    count = outputs.shape[1]
    if targets.ndim == 2 and targets.shape[1] == count:
        targets = targets.to(outputs.dtype)
    elif targets.ndim == 1 and not targets.is_floating_point():
        targets = targets.long()
    else:
        raise ShapeError(
            f"targets: expected class indices (n,) or probabilities (n, {count}) for {count} "
            f"outputs, got {dtype_text(targets.dtype)} of shape {tuple(targets.shape)}; pass loss= "
            "for other targets"
        )
    try:
        return functional.cross_entropy(outputs, targets, reduction="none")
    except IndexError as error:
        raise DomainError(
            f"targets: expected classes from 0 to {count - 1}, one for each output of the model, "
            f"got {int(targets.min())} to {int(targets.max())}; relabel them, or give the model "
            "more outputs"
        ) from error


Mode = Literal["full", "trace"]
Outputs = str | int | Loss


@dataclass(frozen=True)
class OutputChoice:
    """How rows of outputs become the functions whose gradients are compared."""

    mode: Mode  # a single function uses "trace"
    index: int | None = None  # the one output that counts, or None
    loss: Loss | None = None  # a loss with one value per example, or None

    def select(self, outputs: Tensor, batch: Batch) -> Tensor:
        """The chosen functions of every example, (n, c)."""
        if self.loss is not None:
            return per_example_loss(self.loss)(outputs, batch).unsqueeze(1)
        if self.index is None:
            return outputs
        count = outputs.shape[1]
        if not -count <= self.index < count:
            raise DomainError(
                f"outputs: expected an index below the number of outputs {count}, got {self.index}"
            )
        return outputs[:, self.index % count, None]


def resolve_outputs(outputs: Outputs) -> OutputChoice:
    """Turn the keyword ``outputs`` into a choice."""
    if isinstance(outputs, str):
        require_choice(("full", "trace"), outputs=outputs)
        return OutputChoice("full" if outputs == "full" else "trace")
    if isinstance(outputs, int) and not isinstance(outputs, bool):
        return OutputChoice("trace", index=outputs)
    if callable(outputs):
        return OutputChoice("trace", loss=outputs)
    raise DomainError(
        "outputs: expected 'full', 'trace', an index or a loss with one value per example, got "
        f"{outputs!r}"
    )
