"""The loss of the probe: one number per example, whatever the user passes."""

from collections.abc import Collection
from copy import copy
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from theodolite.engine import Batch, per_example_loss
from theodolite.records import Estimate
from theodolite.surveys.context import SurveyContext
from theodolite.surveys.options import Loss
from theodolite.surveys.record import RecordBuilder
from theodolite.surveys.targets import Kind

__all__ = ["example_loss", "measure_loss", "require_example_loss"]


def measure_loss(context: SurveyContext, record: RecordBuilder) -> None:
    """Mean loss of the gradient family's examples, from the pass that reads the features."""
    if context.processes.rank != 0:  # the row and the outputs are those of the first
        return
    batch, _ = context.examples("gradient")
    with record.timed("loss"), torch.no_grad():
        losses = per_example_loss(context.loss)(context.outputs(batch), batch)
        value = float(losses.double().mean())
    why = "the loss of an example is not a number"
    estimate = Estimate(value)
    record.row(None, "gradient", "loss", estimate, n=len(batch), reason=why, read_at="outputs")


def require_example_loss(loss: Loss, outputs: Tensor, batch: Batch) -> None:
    """A loss gives one number for each of a few examples.

    Raises:
        ShapeError: If it gives others.
    """
    few = batch.take(slice(0, len(outputs)))
    with torch.no_grad():
        per_example_loss(loss)(outputs, few)


def example_loss(kind: Kind, loss: Loss | None) -> Loss:
    """A loss with one number per example: the user's, or the one that goes with the targets.

    A loss of torch that averages over examples is asked not to: modules with a ``reduction`` and
    functions that take one.
    """
    if loss is None:
        defaults = {"regression": _squared_error, "multi-label": _binary_cross_entropy}
        return defaults.get(kind, _cross_entropy)
    if isinstance(loss, nn.Module) and hasattr(loss, "reduction"):
        single = copy(loss)
        single.reduction = "none"  # type: ignore[assignment]
        return lambda outputs, targets: _summed(single(outputs, targets))
    if not isinstance(loss, nn.Module) and "reduction" in _parameters(loss):
        function: Any = loss
        return lambda outputs, targets: _summed(function(outputs, targets, reduction="none"))
    return loss


def _parameters(function: Any) -> Collection[str]:
    try:
        return signature(function).parameters
    except (TypeError, ValueError):  # built-in functions may have none
        return ()


def _summed(losses: Tensor) -> Tensor:
    return losses.flatten(1).sum(1) if losses.ndim > 1 else losses


def _cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Labels are class indices, probabilities, or 0 and 1 for a single output."""
    if outputs.shape[1] == 1:
        values = targets.reshape(outputs.shape).to(outputs.dtype)
        logits = functional.binary_cross_entropy_with_logits(outputs, values, reduction="none")
        return logits.squeeze(1)
    labels = targets.to(outputs.dtype) if targets.ndim == 2 else targets.long()
    return functional.cross_entropy(outputs, labels, reduction="none")


def _squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets.reshape(outputs.shape).to(outputs.dtype)).square().sum(1)


def _binary_cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    values = targets.to(outputs.dtype)
    losses = functional.binary_cross_entropy_with_logits(outputs, values, reduction="none")
    return losses.sum(1)
