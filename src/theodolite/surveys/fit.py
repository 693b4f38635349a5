"""How well the model does its task: its loss, its accuracy, and what inputs and layers hold of it.

Reads features, inputs and outputs. Every example is predicted from all the others, so that nothing
needs held-out data; where there is some, the model's accuracy on it stands beside that in training.
"""

from math import sqrt
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from theodolite.engine import Loss, first_output, per_example_cross_entropy, per_example_loss
from theodolite.linalg import LeaveOneOut
from theodolite.measures import kernel, representation
from theodolite.records import Estimate
from theodolite.surveys.context import LayerFeatures, SurveyContext
from theodolite.surveys.layers import Layer
from theodolite.surveys.positions import Positions
from theodolite.surveys.record import RecordBuilder
from theodolite.surveys.targets import Targets, single_loss

__all__ = [
    "example_loss",
    "measure_fit",
    "measure_loss",
    "measure_readouts",
    "require_example_loss",
]


def measure_loss(context: SurveyContext, record: RecordBuilder) -> None:
    """Mean loss of as many examples as the gradient family takes, and of held-out sequences.

    Outputs come from the pass that reads the features, where there is one.
    """
    if context.processes.rank != 0:  # the row and the outputs are those of the first
        return
    batch, targets, held_out = (
        context.examples("gradient")[0],
        context.probe.targets,
        context.held_out,
    )
    # A label too many would stop a GPU for good.
    if targets.labels is not None and context.task is None:
        targets.require_outputs(context.layout.outputs or 1)
    with record.timed("loss"), torch.no_grad():
        losses = per_example_loss(example_loss(context))(context.outputs(batch), batch)
        value = float(losses.double().mean())
    why = "the loss of an example is not a number"
    estimate = Estimate(value)
    record.row(None, "gradient", "loss", estimate, n=len(batch), reason=why, read_at="outputs")
    if held_out is not None and held_out.positions is not None:
        with record.timed("loss"), torch.no_grad():
            others = context.forward(held_out.batch)[:, 0].double().cpu()
        _compare_losses(context, record, losses.double().cpu(), others)


def _compare_losses(
    context: SurveyContext, record: RecordBuilder, own: Tensor, others: Tensor
) -> None:
    """The loss of held-out sequences; the share of what was gained on one's own that they share.

    Gains count from the first measurement. The ratio's error is that of its two means.
    """
    count = len(others)
    estimate = Estimate(float(others.mean()), float(others.std()) / count**0.5, method="mean")
    record.row(None, "gradient", "held_out_loss", estimate, n=count, read_at="outputs")
    first = context.remembered.losses = context.remembered.losses or (own, others)
    gained, shared = first[0] - own, first[1] - others
    if not bool(gained.any()):
        return  # this is the first measurement
    spread = float(gained.std()) / len(own) ** 0.5
    value, error = float("nan"), float("nan")
    if float(gained.mean()) > 2 * spread:
        value = float(shared.mean() / gained.mean())
        error = float((shared.var() / count + value**2 * spread**2).sqrt() / gained.mean())
    why = "the loss of the sequences has not fallen clearly since the first measurement"
    estimate = Estimate(value, error, method="ratio of means")
    record.row(None, "gradient", "carried_over", estimate, n=count, reason=why, read_at="outputs")


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


def _squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets.reshape(outputs.shape).to(outputs.dtype)).square().sum(1)


def _binary_cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    values = targets.to(outputs.dtype)
    losses = functional.binary_cross_entropy_with_logits(outputs, values, reduction="none")
    return losses.sum(1)


_READOUT = 500  # examples of a layer's read-out: an eigenvalue problem of that size per layer


def measure_readouts(
    record: RecordBuilder, layer: Layer, features: LayerFeatures, targets: Targets
) -> None:
    """What neighbours and a linear read-out in a layer say of an example from all the others."""
    if not bool(features.gram.isfinite().all()) or targets.columns is None:
        return
    few = features.first(min(_READOUT, len(targets.columns)))
    if targets.labels is None:
        estimate = _readout_r2(few, targets)
        record.row(layer, "representation", "readout_r2", estimate, n=len(few))
        return
    labels = targets.labels.to(features.gram.device)
    value = representation.neighbour_accuracy_of_gram(features.gram, labels)
    estimate = _accuracy(float(value), labels)
    record.row(layer, "representation", "neighbour_accuracy", estimate, n=len(labels))
    estimate = _accuracy(float(_readout(few, labels[: len(few)]).accuracy), labels[: len(few)])
    record.row(layer, "representation", "readout_accuracy", estimate, n=len(few))


def measure_fit(context: SurveyContext, record: RecordBuilder) -> None:
    """Rows of the whole model: its accuracy, that of its inputs, and that on held-out examples.

    Of numbers and of several labels R squared and the share of labels take the place of accuracy.
    Taken where curves are, like the read-outs that it stands beside.
    """
    targets, held_out = context.row_targets("representation"), context.held_out
    if not context.plan.curves or context.processes.rank != 0 or context.layout.outputs is None:
        return
    if targets.labels is None:
        if not context.probe.by_position:  # where the model says its losses alone
            _measure_columns(context, record)
        return
    if context.task is not None and context.task.unit == "sequence":
        return  # the model does not say groups
    rows = {"accuracy": _share_right(context, targets.labels)}
    inputs = context.inputs("representation")
    if inputs is not None and bool(inputs.gram.isfinite().all()):
        labels = targets.labels.to(inputs.gram.device)
        near = representation.neighbour_accuracy_of_gram(inputs.gram, labels)
        line = _readout(inputs, labels).accuracy
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


def _measure_columns(context: SurveyContext, record: RecordBuilder) -> None:
    """The same of targets that are rows of numbers, or of several labels."""
    (batch, targets), held_out = context.examples("representation"), context.held_out
    binary = targets.kind == "multi-label"
    measure, judged = ("label_accuracy", _labels_right) if binary else ("r2", _r2)
    own = judged(context.outputs(batch), batch.targets)
    if own is not None:
        record.row(None, "representation", measure, own, n=len(batch), read_at="outputs")
    inputs = context.inputs("representation")
    if inputs is not None and bool(inputs.gram.isfinite().all()):
        few = inputs.first(min(_READOUT, len(batch)))
        line = _readout_r2(few, targets)
        record.row(None, "representation", "input_readout_r2", line, n=len(few), read_at="inputs")
    if own is not None and held_out is not None and held_out.rows.kind == targets.kind:
        other = judged(context.forward(held_out.batch), held_out.batch.targets)
        if other is not None:
            name = f"held_out_{measure}"
            record.row(None, "representation", name, other, n=len(held_out.batch))


def _readout(features: LayerFeatures, targets: Tensor) -> LeaveOneOut:
    """Regression on all other examples: with narrow features themselves, else with their kernel."""
    rows = features.rows
    if rows is not None and rows.device.type == "cpu" and 3 * features.width <= 2 * len(rows):
        return representation.leave_one_out_readout(rows.double(), targets)
    return kernel.leave_one_out_regression(features.gram, targets)


def _readout_r2(features: LayerFeatures, targets: Targets) -> Estimate:
    """Share of the variance of the targets that a linear read-out of all the others explains."""
    assert targets.columns is not None
    columns = targets.columns[: len(features)].to(features.gram.device)
    if columns.shape[1] > len(columns):  # turned into fewer, with the same lengths of all rows
        columns = torch.linalg.qr((columns - columns.mean(0)).mT).R.mT
    found = _readout(features, columns)
    low, high = found.error_interval.tolist()
    return Estimate(1 - float(found.error), (high - low) / 3.92, 0.0, None, "leave-one-out")


def _columns_of(outputs: Tensor, targets: Any) -> tuple[Tensor, Tensor] | None:
    """Outputs beside the targets that they are to say; None where they do not correspond."""
    if not isinstance(targets, Tensor) or targets.numel() != outputs.numel():
        return None
    return outputs.double().cpu(), targets.detach().double().cpu().reshape(outputs.shape)


def _r2(outputs: Tensor, targets: Any) -> Estimate | None:
    """Share of the variance of the targets that the outputs explain; below 0: less than none."""
    pair = _columns_of(outputs, targets)
    if pair is None:
        return None
    told, wanted = pair
    own, plain = (wanted - told).square().sum(1), (wanted - wanted.mean(0)).square().sum(1)
    left = float(own.sum() / plain.sum())  # nan where all targets are equal
    error = float((own - left * plain).square().sum().sqrt() / plain.sum())
    return Estimate(1 - left, error, 0.0, None, "ratio of means")


def _labels_right(outputs: Tensor, targets: Any) -> Estimate | None:
    """Share of several labels told right, beside saying the commoner value of each every time.

    Outputs that all lie between 0 and 1 are probabilities, others logits.
    """
    pair = _columns_of(outputs, targets)
    if pair is None:
        return None
    told, wanted = pair
    probable = bool(((told >= 0) & (told <= 1)).all())
    right = ((told > (0.5 if probable else 0.0)) == (wanted > 0.5)).double().mean(1)
    common = ((wanted.mean(0) > 0.5) == (wanted > 0.5)).double().mean(1)
    spread = 1 / sqrt(len(right))
    error, null_sd = (float(share.std(correction=0)) * spread for share in (right, common))
    return Estimate(float(right.mean()), error, float(common.mean()), null_sd, "binomial")


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
