"""How well the model fits, and how much of that its inputs and layers hold without it.

Reads features, inputs and outputs. Every example is predicted from all the others, so that nothing
needs held-out data; where there is some, the model's accuracy on it stands beside that in training.
"""

from math import sqrt

import torch
from torch import Tensor

from theodolite.measures import kernel, representation
from theodolite.records import Estimate
from theodolite.surveys.context import LayerFeatures, SurveyContext
from theodolite.surveys.layers import Layer
from theodolite.surveys.positions import Positions
from theodolite.surveys.probe import Probe
from theodolite.surveys.record import RecordBuilder

__all__ = ["measure_fit", "measure_readouts"]

_READOUT = 500  # examples of a layer's read-out: an eigenvalue problem of that size per layer


def measure_readouts(
    record: RecordBuilder, layer: Layer, features: LayerFeatures, labels: Tensor
) -> None:
    """What neighbours and a linear read-out in a layer say of an example from all the others."""
    if not bool(features.gram.isfinite().all()):
        return
    labels = labels.to(features.gram.device)
    value = representation.neighbour_accuracy_of_gram(features.gram, labels)
    estimate = _accuracy(float(value), labels)
    record.row(layer, "representation", "neighbour_accuracy", estimate, n=len(labels))
    few = features.first(min(_READOUT, len(labels)))
    value = kernel.regression_accuracy(few.gram, labels[: len(few)])
    estimate = _accuracy(float(value), labels[: len(few)])
    record.row(layer, "representation", "readout_accuracy", estimate, n=len(few))


def measure_fit(context: SurveyContext, record: RecordBuilder, held_out: Probe | None) -> None:
    """Rows of the whole model: its accuracy, that of its inputs, and that on held-out examples."""
    targets = context.row_targets("representation")
    if context.processes.rank != 0 or targets.labels is None or context.layout.outputs is None:
        return
    if context.task is not None and context.task.unit == "sequence":
        return  # the model does not say groups
    rows = {"accuracy": _share_right(context, targets.labels)}
    inputs = context.inputs("representation")
    if inputs is not None and bool(inputs.gram.isfinite().all()):
        labels = targets.labels.to(inputs.gram.device)
        near = representation.neighbour_accuracy_of_gram(inputs.gram, labels)
        line = kernel.regression_accuracy(inputs.gram, labels)
        rows |= {"input_neighbour_accuracy": float(near), "input_readout_accuracy": float(line)}
    for measure, value in rows.items():
        read_at = "outputs" if measure == "accuracy" else "inputs"
        estimate = _accuracy(value, targets.labels)
        record.row(
            None, "representation", measure, estimate, n=len(targets.labels), read_at=read_at
        )
    if held_out is not None and held_out.rows.labels is not None:
        labels = held_out.rows.labels
        value = _right(context.forward(held_out.batch), labels, held_out.positions)
        estimate = _accuracy(value, labels)
        record.row(None, "representation", "held_out_accuracy", estimate, n=len(labels))


def _share_right(context: SurveyContext, labels: Tensor) -> float:
    """Share of the examples, or positions, of which the model says the class."""
    positions = context.probe.positions
    batch = context.probe.batch if positions else context.examples("representation")[0]
    return _right(context.outputs(batch), labels, positions)


def _right(outputs: Tensor, labels: Tensor, positions: Positions | None = None) -> float:
    """Share of examples whose largest output, or the sign of the only one, is their class.

    Of positions the outputs say it themselves, after the loss of their example.
    """
    if positions is not None:
        return positions.rows(outputs[:, 1:], len(labels)).double().mean().item()
    told = outputs.argmax(1) if outputs.shape[1] > 1 else (outputs[:, 0] > 0).long()
    return (told.cpu() == labels).double().mean().item()


def _accuracy(value: float, labels: Tensor) -> Estimate:
    """A share of examples with its standard error, beside guessing the largest class."""
    n = len(labels)
    chance = float(torch.unique(labels, return_counts=True)[1].max()) / n
    spread = sqrt(chance * (1 - chance) / n)
    return Estimate(value, sqrt(max(value * (1 - value), 0.0) / n), chance, spread, "binomial")
