"""The loss of the probe: one number per example, whatever the user passes."""

from collections.abc import Collection
from copy import copy
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from theodolite.engine import Loss, first_output, per_example_cross_entropy, per_example_loss
from theodolite.records import Estimate
from theodolite.surveys.context import SurveyContext
from theodolite.surveys.record import RecordBuilder

__all__ = ["example_loss", "loss_of_maps", "measure_loss", "require_example_loss", "single_loss"]


def measure_loss(context: SurveyContext, record: RecordBuilder) -> None:
    """Mean loss of as many examples as the gradient family takes.

    Outputs come from the pass that reads the features, where there is one.
    """
    if context.processes.rank != 0:  # the row and the outputs are those of the first
        return
    batch, targets = context.examples("gradient")[0], context.probe.targets
    # A label too many would stop a GPU for good.
    if targets.labels is not None and context.task is None:
        targets.outputs(context.layout.outputs or 1)
    with record.timed("loss"), torch.no_grad():
        losses = per_example_loss(example_loss(context))(context.outputs(batch), batch)
        value = float(losses.double().mean())
    why = "the loss of an example is not a number"
    estimate = Estimate(value)
    record.row(None, "gradient", "loss", estimate, n=len(batch), reason=why, read_at="outputs")


def require_example_loss(context: SurveyContext) -> None:
    """The loss gives one number for each of the few examples that have shown the layers.

    Raises:
        ShapeError: If it gives others.
    """
    outputs = context.layout.sample
    if outputs is not None and context.probe.positions is None:
        few = context.probe.batch.take(slice(0, len(outputs)))
        with torch.no_grad():
            per_example_loss(example_loss(context))(outputs, few)


def example_loss(context: SurveyContext) -> Loss:
    """A loss with one number per example: the user's, or the one that goes with the targets.

    A loss of torch that averages over examples is asked not to: modules with a ``reduction`` and
    functions that take one.
    """
    loss = context.options.loss
    if context.probe.positions is not None:
        return first_output  # of a readout that gives losses
    if loss is None:
        defaults = {"regression": _squared_error, "multi-label": _binary_cross_entropy}
        return defaults.get(context.probe.targets.kind, per_example_cross_entropy)
    return single_loss(loss)


def single_loss(loss: Loss) -> Loss:
    """The user's loss with one number per example, where torch would average over examples."""
    if isinstance(loss, nn.Module) and hasattr(loss, "reduction"):
        single = copy(loss)
        single.reduction = "none"  # type: ignore[assignment]
        return lambda outputs, targets: _summed(single(outputs, targets))
    if not isinstance(loss, nn.Module) and "reduction" in _parameters(loss):
        function: Any = loss
        return lambda outputs, targets: _summed(function(outputs, targets, reduction="none"))
    return loss


def loss_of_maps(loss: Loss) -> Loss:
    """The user's loss where labels come per position; one of torch averages over positions.

    It is called for one example at a time, so that its weights and what it ignores count as ever.
    """
    if not (hasattr(loss, "reduction") or "reduction" in _parameters(loss)):
        return loss

    def each(outputs: Tensor, targets: Tensor) -> Tensor:
        pairs = [(outputs[n : n + 1], targets[n : n + 1]) for n in range(len(outputs))]
        return torch.stack([loss(*pair).mean() for pair in pairs])

    return each


def _parameters(function: Any) -> Collection[str]:
    try:
        return signature(function).parameters
    except (TypeError, ValueError):  # built-in functions may have none
        return ()


def _summed(losses: Tensor) -> Tensor:
    return losses.flatten(1).sum(1) if losses.ndim > 1 else losses


def _squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets.reshape(outputs.shape).to(outputs.dtype)).square().sum(1)


def _binary_cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    values = targets.to(outputs.dtype)
    losses = functional.binary_cross_entropy_with_logits(outputs, values, reduction="none")
    return losses.sum(1)
