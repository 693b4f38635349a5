"""Losses with one number per example, whatever the user passes."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from theodolite.engine.batches import Batch
from theodolite.errors import DomainError, ShapeError

__all__ = ["Loss", "per_example_loss"]

Loss = Callable[[Tensor, Any], Tensor]


def per_example_loss(loss: Loss | None) -> Callable[[Tensor, Batch], Tensor]:
    """The loss as a function of outputs and batch that gives ``(n,)``, and says so if it cannot.

    Raises:
        ShapeError: When called, if the loss is reduced or has further axes.
        DomainError: When called, if the batch has no targets.
    """
    function = loss or _cross_entropy

    def checked(outputs: Tensor, batch: Batch) -> Tensor:
        if batch.targets is None:
            raise DomainError(
                "targets: expected one per example for the loss, got none; pass targets="
            )
        values = function(outputs, batch.targets)
        if not isinstance(values, Tensor) or values.shape != (len(batch),):
            shape = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
            raise ShapeError(
                f"loss: expected one number per example, shape ({len(batch)},), got {shape}; "
                "build it with reduction='none' and sum over further axes"
            )
        return values

    return checked


def _cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Labels are class indices, probabilities, or 0 and 1 for a single output."""
    if outputs.shape[1] == 1:
        values = outputs.squeeze(1)
        targets = targets.reshape(values.shape).to(values.dtype)
        return functional.binary_cross_entropy_with_logits(values, targets, reduction="none")
    if not torch.is_floating_point(targets):
        targets = targets.long()
    return functional.cross_entropy(outputs, targets, reduction="none")
