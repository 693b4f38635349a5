"""Accuracy of the model, and of linear probes of the inputs and the layers.

It reads features, inputs and outputs. Linear probes are fitted to examples of the probe set.
They are judged on held-out examples if there are any; otherwise each example is left out once.
"""

from dataclasses import dataclass
from math import sqrt
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from theodolite.advice.reasons import reason
from theodolite.engine import per_example_loss
from theodolite.errors import ShapeError, TheodoliteError
from theodolite.linalg import LeaveOneOut, double_center, expected_right
from theodolite.measures import kernel, representation
from theodolite.records import CHANCE, Estimate, Note
from theodolite.surveys.context import LayerFeatures, SurveyContext
from theodolite.surveys.copies import first_copies, input_keys
from theodolite.surveys.positions import Positions
from theodolite.surveys.probe import Probe
from theodolite.surveys.progress import EIGEN, Cost
from theodolite.surveys.record import RecordBuilder
from theodolite.surveys.targets import Targets, Task

_FEWEST, _MOST = 20, 512  # examples of each side, and of both, for a probe that separates them
# Accuracy is averaged over classes if always guessing the largest class gains this share of what
# lies between guessing one of equal classes and 100 %, or if the share of a class differs by more
# than _RESAMPLED from its share of all the data.
_UNEQUAL = 1 / 3
_RESAMPLED = 0.03


def measure_loss(context: SurveyContext, record: RecordBuilder) -> None:
    """Mean loss of the examples of the gradient family, and of held-out sequences.

    Outputs come from the pass that reads the features, if there is one.
    """
    batch, targets, held_out = (
        context.examples("gradient")[0],
        context.probe.targets,
        context.held_out,
    )
    # A label beyond the outputs would crash a GPU permanently.
    if targets.labels is not None and context.task is None:
        targets.require_outputs(context.layout.outputs or 1)
    with record.timed("loss"), torch.no_grad():
        losses = per_example_loss(context.loss)(context.outputs(batch), batch)
        value = float(losses.double().mean())
    _add_up_losses(context, record, losses.double().cpu())
    why = reason(Note.LOSS_NOT_FINITE)
    estimate = Estimate(value)
    record.row(None, "gradient", "loss", estimate, n=len(batch), reason=why, read_at="outputs")
    if held_out is not None and held_out.positions is not None:
        with record.timed("loss"), torch.no_grad():
            others = context.held_out_outputs()[:, 0].double().cpu()
        _compare_losses(context, record, losses.double().cpu(), others)


def _add_up_losses(context: SurveyContext, record: RecordBuilder, losses: Tensor) -> None:
    """The mean loss of every example over the measurements of a training so far."""
    memory = context.earlier
    if not memory.watching:
        return
    total, count = memory.loss_sums or (torch.zeros_like(losses), 0)
    if len(total) == len(losses):
        memory.loss_sums = total + losses, count + 1
        record.keep_example_losses((total + losses) / (count + 1), count + 1)


def _compare_losses(
    context: SurveyContext, record: RecordBuilder, own: Tensor, others: Tensor
) -> None:
    """The loss of held-out sequences, and the share of the training gain that carries over to them.

    The gain is the fall of the loss since the first measurement. The ratio has the error of two
    means.
    """
    count = len(others)
    estimate = Estimate(float(others.mean()), float(others.std()) / count**0.5, method="mean")
    record.row(None, "gradient", "held_out_loss", estimate, n=count, read_at="outputs")
    first = context.earlier.losses = context.earlier.losses or (own, others)
    gained, shared = first[0] - own, first[1] - others
    if not bool(gained.any()):
        return  # this is the first measurement
    spread = float(gained.std()) / len(own) ** 0.5
    value, error = float("nan"), float("nan")
    if float(gained.mean()) > CHANCE * spread:
        value = float(shared.mean() / gained.mean())
        error = float((shared.var() / count + value**2 * spread**2).sqrt() / gained.mean())
    why = reason(Note.NO_GAIN)
    estimate = Estimate(value, error, method="ratio of means")
    record.row(None, "gradient", "carried_over", estimate, n=count, reason=why, read_at="outputs")


def require_example_loss(context: SurveyContext) -> None:
    """Check that the loss gives one number for each of the few examples of the trial pass.

    Raises:
        ShapeError: If it gives other numbers, or fails.
    """
    outputs = context.layout.sample
    if outputs is None or context.probe.positions is not None:
        return
    few = context.probe.batch.take(slice(0, len(outputs)))
    try:
        with torch.no_grad():
            per_example_loss(context.loss)(outputs, few)
    except TheodoliteError:
        raise
    except Exception as error:
        raise ShapeError(
            f"loss: expected one that takes outputs of shape (n, {outputs.shape[1]}) and these "
            f"targets, got {type(error).__name__}: {error}; pass loss= as in training, or families "
            "without the gradient"
        ) from error


@dataclass(frozen=True)
class _Probed:
    """The value of a linear probe: the mean score of the examples on which it is judged."""

    scores: Float[Tensor, " m"]  # 0 or 1 for classes, parts of R squared for numbers
    error: float

    @property
    def value(self) -> float:
        return float(self.scores.mean())


def measure_probes(context: SurveyContext, record: RecordBuilder) -> None:
    """Linear probes of the raw inputs and of every layer, all on the same examples.

    The score of each example is kept, so that layers can be compared in pairs. For class labels the
    accuracy of the nearest neighbour is measured too.
    """
    targets, held_out_targets = context.row_targets("representation"), context.held_out_targets
    if targets.columns is None or not context.plan.curves:
        return
    read = len(targets.columns)
    few = targets.take(context.plan.size("probes", read))
    measure = "probe_r2" if targets.labels is None else "probe_accuracy"
    scores: dict[str, Tensor] = {}
    inputs = context.raw_inputs()
    rows = [] if inputs is None else [(context.layout.raw_input, inputs)]
    rows += [(context.layout[name], entry) for name, entry in context.collected.items()]
    for layer, features in rows:
        with context.step("probes", layer):
            own = features.first(read)
            if not bool(own.gram.isfinite().all()):
                continue
            if own.constant:  # only rounding is left, which may separate classes by accident
                features = LayerFeatures(1, torch.zeros(len(features), 1))
                own = features.first(read)
            if targets.labels is not None:
                labels = targets.labels.to(own.gram.device)
                near = float(representation.neighbour_accuracy_of_gram(own.gram, labels))
                estimate = _accuracy(near, labels)
                record.row(layer, "representation", "neighbour_accuracy", estimate, n=read)
            if held_out_targets is None:
                found = _left_out(own, few)
            else:
                found = _held_out(features, few, context.rows_read, held_out_targets)
            scores[layer.name] = found.scores.cpu()
            labels_of = few.labels if held_out_targets is None else held_out_targets.labels
            if labels_of is not None:
                estimate = _accuracy(found.value, labels_of)
            else:
                estimate = Estimate(found.value, found.error, 0.0, None, "mean over examples")
            record.row(layer, "representation", measure, estimate, n=len(found.scores))
    if scores:
        judged_on = "left-out" if held_out_targets is None else "held-out"
        fitted = context.plan.size("probes", read)
        record.keep_probes(
            measure, judged_on, fitted, list(scores), torch.stack(list(scores.values()))
        )


def probe_cost(context: SurveyContext, n: int) -> Cost:
    """A decomposition for every layer, and distances of all pairs."""
    few, layers = min(n, context.plan.sizes["probes"] or n), len(context.layout.with_features()) + 1
    return Cost((), layers * (EIGEN * few**3 + 3 * n**2))


def _left_out(features: LayerFeatures, targets: Targets) -> _Probed:
    """Predict each example from all the others."""
    assert targets.columns is not None
    few = features.first(len(targets.columns))
    if targets.labels is not None:
        found = _probe(few, targets.labels.to(few.gram.device))
        assert found.classes is not None
        classes = (targets.labels.to(few.gram.device).unsqueeze(1) == found.classes).double()
        return _Probed(expected_right(found.predictions, classes).double().cpu(), 0.0)
    columns = _fewer(targets.columns.to(few.gram.device))
    found, n = _probe(few, columns), len(columns)
    plain = columns - (columns.sum(0) - columns) / (n - 1)
    return _shares(columns - found.predictions, plain)


def _held_out(
    features: LayerFeatures, targets: Targets, read: int, held_out_targets: Targets
) -> _Probed:
    """Fit to examples of the probe set, with the ridge of the smallest leave-one-out error.

    Args:
        features: features of the probe set, followed by those of held-out examples.
        targets: targets of the examples that the probe is fitted to.
        read: number of examples of the probe set.
        held_out_targets: targets of the held-out examples.
    """
    assert targets.columns is not None
    gram, n = features.gram, len(targets.columns)
    own, cross = gram[:n, :n], gram[read:, :n]
    if targets.labels is not None:
        found = _probe(features.first(n), targets.labels.to(gram.device))
        assert found.classes is not None
        assert held_out_targets.labels is not None
        columns = (targets.labels.to(gram.device).unsqueeze(1) == found.classes).double()
        guesses = found.classes[_predicted(own, cross, columns, found.ridge).argmax(1)]
        return _Probed((guesses.cpu() == held_out_targets.labels).double(), 0.0)
    assert held_out_targets.columns is not None
    columns, wanted = (part.numbers().to(gram.device) for part in (targets, held_out_targets))
    found = _probe(features.first(n), _fewer(columns))
    return _shares(wanted - _predicted(own, cross, columns, found.ridge), wanted - columns.mean(0))


def _predicted(own: Tensor, cross: Tensor, columns: Tensor, ridge: Tensor) -> Tensor:
    """Kernel ridge regression with intercept; the ridge is in units of the mean eigenvalue."""
    n, mean = len(own), columns.mean(0)
    centred = double_center(own)
    unit = centred.diagonal().sum() / n
    unit = torch.where(unit > 0, unit, 1.0)  # constant features predict the mean only
    matrix = centred + ridge.to(unit) * unit * torch.eye(n, dtype=own.dtype, device=own.device)
    weights = torch.linalg.solve(matrix, columns - mean)  # each column adds up to zero
    return (cross - own.mean(0)) @ weights + mean


def _fewer(columns: Tensor) -> Tensor:
    """Target columns; if more than examples, fewer columns with the same inner products."""
    if columns.shape[1] <= len(columns):
        return columns
    return torch.linalg.qr((columns - columns.mean(0)).mT).R.mT


def _shares(missed: Tensor, plain: Tensor) -> _Probed:
    """R squared as a mean over examples, from the squared errors of a probe and of the mean."""
    own, base = missed.square().sum(1), plain.square().sum(1)
    left = own.sum() / base.sum()
    error = (own - left * base).square().sum().sqrt() / base.sum()
    return _Probed(1 - own / base.mean(), float(error))


def measure_fit(context: SurveyContext, record: RecordBuilder) -> None:
    """Rows of the whole model: its accuracy, that of its inputs, and that on held-out examples.

    For numbers R squared replaces accuracy, for several labels the share of right labels. These
    rows are measured together with curves and linear probes.
    """
    targets, held_out = context.row_targets("representation"), context.held_out
    if not context.plan.curves or context.layout.outputs is None:
        return
    if targets.labels is None:
        if not context.probe.by_position:  # such a model only returns losses
            _measure_columns(context, record)
        return
    if context.task is not None and context.task.unit == "sequence":
        return  # the model does not predict groups
    right = _examples_right(context, targets.labels)
    rows = {"accuracy": float(right.mean())}
    inputs = context.inputs("representation")
    if inputs is not None and bool(inputs.gram.isfinite().all()):
        labels = targets.labels.to(inputs.gram.device)
        near = representation.neighbour_accuracy_of_gram(inputs.gram, labels)
        few = min(len(labels), context.plan.size("probes", len(labels)))
        line = _probe(inputs.first(few), labels[:few]).accuracy
        rows |= {"input_neighbour_accuracy": float(near), "input_probe_accuracy": float(line)}
    for measure, value in rows.items():
        read_at = "outputs" if measure == "accuracy" else "inputs"
        estimate = _accuracy(value, targets.labels)
        record.row(
            None, "representation", measure, estimate, n=len(targets.labels), read_at=read_at
        )
    parts = {"": (right, targets.labels)}
    given = [context.probe]
    if held_out is not None and held_out.rows.labels is not None:
        labels = held_out.rows.labels
        others = _right(context.held_out_outputs(), labels, held_out.positions)
        parts["held_out_"] = others, labels
        given.append(held_out)
        estimate = _accuracy(float(others.mean()), labels)
        record.row(None, "representation", "held_out_accuracy", estimate, n=len(labels))
    pairs = zip(given, parts.values(), strict=True)
    if context.task is None and any(_unequal(labels, probe) for probe, (_, labels) in pairs):
        for prefix, (rights, labels) in parts.items():
            name, estimate = f"{prefix}balanced_accuracy", _balanced(rights, labels)
            record.row(None, "representation", name, estimate, n=len(labels), read_at="outputs")


def measure_shift(context: SurveyContext, record: RecordBuilder) -> None:
    """Accuracy of a linear probe that separates held-out from training inputs.

    It reads the raw inputs and their squares, without copies, and as many examples of each class on
    both sides. Examples that are drawn alike give one half.
    """
    held_out_targets = context.held_out_targets
    inputs = None if held_out_targets is None else context.raw_inputs()
    if held_out_targets is None or inputs is None or inputs.rows is None:
        return
    read = context.rows_read
    most = min(_MOST, context.plan.size("probes", read)) // 2
    keys = input_keys(context.probe.take(read)[0])
    own = torch.arange(read) if keys is None else first_copies(keys)
    other = torch.arange(len(inputs) - read)
    labels = context.probe.rows.labels
    if labels is not None and held_out_targets.labels is not None:
        own, other = _same_classes(own, labels[own], other, held_out_targets.labels)
    few = min(len(own), len(other), most)
    if few < _FEWEST:
        return
    rows = inputs.rows[torch.cat([own[:few], read + other[:few]]).to(inputs.rows.device)].double()
    rows = (rows - rows.mean()) / rows.std().clamp(min=1e-12)
    both = LayerFeatures(2 * rows.shape[1], torch.cat([rows, rows.square()], 1))
    if both.constant or not bool(both.gram.isfinite().all()):
        return
    sides = torch.arange(2).repeat_interleave(few)
    value = float(_probe(both, sides.to(rows.device)).accuracy)
    estimate = _accuracy(value, sides)
    record.row(None, "representation", "shift_accuracy", estimate, n=2 * few, read_at="inputs")


def _same_classes(
    own: Tensor, labels: Tensor, other: Tensor, others: Tensor
) -> tuple[Tensor, Tensor]:
    """Places on both sides, as many of every class; classes take turns."""
    pairs = []
    for name in torch.unique(labels).tolist():
        some, more = own[labels == name], other[others == name]
        count = min(len(some), len(more))
        turns = torch.arange(count)
        pairs.append(torch.stack([turns, some[:count], more[:count]]))
    turns, first, second = torch.cat(pairs, 1)
    order = turns.argsort(stable=True)
    return first[order], second[order]


def _unequal(labels: Tensor, probe: Probe) -> bool:
    """Whether accuracy says little: of one large class, or of other shares than the data have.

    Classes take turns in the probe set, so that rare ones are more frequent there.
    """
    own = labels.bincount().double()
    shares, even = own / own.sum(), 1 / max(int((own > 0).sum()), 1)
    if float(shares.max()) - even > (1 - even) * _UNEQUAL:
        return even < 1
    counts = probe.class_counts
    if counts is None or len(counts) < len(own):
        return False
    shares = functional.pad(shares, (0, len(counts) - len(own)))
    return float((shares - counts.double() / counts.sum()).abs().max()) > _RESAMPLED


def _balanced(rights: Tensor, labels: Tensor) -> Estimate:
    """Mean over classes of the share that is right; errors of few examples after Agresti."""
    _, places, counts = torch.unique(labels, return_inverse=True, return_counts=True)
    found = torch.zeros(len(counts), dtype=torch.float64).scatter_add_(0, places, rights.double())
    shares = (found + 2) / (counts + 4)
    error = float((shares * (1 - shares) / (counts + 4)).sum().sqrt()) / len(counts)
    even = 1 / len(counts)
    spread = sqrt(even * (1 - even) / len(labels))
    return Estimate(float((found / counts).mean()), error, even, spread, "mean over classes")


def _measure_columns(context: SurveyContext, record: RecordBuilder) -> None:
    """The same for targets that are rows of numbers, or several labels."""
    (batch, targets), held_out = context.examples("representation"), context.held_out
    binary = targets.task is Task.SEVERAL_LABELS
    measure, judged = ("label_accuracy", _labels_right) if binary else ("r2", _r2)
    own = judged(context.outputs(batch), batch.targets)
    if own is not None:
        record.row(None, "representation", measure, own, n=len(batch), read_at="outputs")
    inputs = context.inputs("representation")
    if inputs is not None and bool(inputs.gram.isfinite().all()):
        few = inputs.first(context.plan.size("probes", len(batch)))
        found = _left_out(few, targets.take(len(few)))
        line = Estimate(found.value, found.error, 0.0, None, "leave-one-out")
        record.row(None, "representation", "input_probe_r2", line, n=len(few), read_at="inputs")
    if own is not None and held_out is not None and held_out.rows.task is targets.task:
        other = judged(context.held_out_outputs(), held_out.batch.targets)
        if other is not None:
            name = f"held_out_{measure}"
            record.row(None, "representation", name, other, n=len(held_out.batch))


def _probe(features: LayerFeatures, targets: Tensor) -> LeaveOneOut:
    """Leave-one-out regression, with narrow features themselves, otherwise with their kernel."""
    rows = features.rows
    if rows is not None and rows.device.type == "cpu" and 3 * features.width <= 2 * len(rows):
        return representation.leave_one_out_probe(rows.double(), targets)
    return kernel.leave_one_out_regression(features.gram, targets)


def _columns_of(outputs: Tensor, targets: Any) -> tuple[Tensor, Tensor] | None:
    """Outputs beside the targets that they predict; None if their shapes do not match."""
    if not isinstance(targets, Tensor) or targets.numel() != outputs.numel():
        return None
    return outputs.double().cpu(), targets.detach().double().cpu().reshape(outputs.shape)


def _r2(outputs: Tensor, targets: Any) -> Estimate | None:
    """Share of the variance of the targets that the outputs explain; it may be negative."""
    pair = _columns_of(outputs, targets)
    if pair is None:
        return None
    predicted, wanted = pair
    found = _shares(wanted - predicted, wanted - wanted.mean(0))  # nan if all targets are equal
    return Estimate(found.value, found.error, 0.0, None, "ratio of means")


def _labels_right(outputs: Tensor, targets: Any) -> Estimate | None:
    """Share of right labels, for several labels per example, and that of the most frequent value.

    Outputs are probabilities if all are between 0 and 1, otherwise logits.
    """
    pair = _columns_of(outputs, targets)
    if pair is None:
        return None
    predicted, wanted = pair
    probable = bool(((predicted >= 0) & (predicted <= 1)).all())
    right = ((predicted > (0.5 if probable else 0.0)) == (wanted > 0.5)).double().mean(1)
    common = ((wanted.mean(0) > 0.5) == (wanted > 0.5)).double().mean(1)
    spread = 1 / sqrt(len(right))
    error, null_sd = (float(share.std(correction=0)) * spread for share in (right, common))
    return Estimate(float(right.mean()), error, float(common.mean()), null_sd, "binomial")


def _examples_right(context: SurveyContext, labels: Tensor) -> Tensor:
    """1 for every example or position whose class the model predicts, 0 for the others."""
    positions = context.probe.positions
    batch = context.probe.batch if positions else context.examples("representation")[0]
    return _right(context.outputs(batch), labels, positions)


def _right(outputs: Tensor, labels: Tensor, positions: Positions | None = None) -> Tensor:
    """1 where the largest output (the sign of a single output) is the class, else 0.

    For labels per position the outputs hold the result already, after the loss of each example.
    """
    if positions is not None:
        return positions.rows(outputs[:, 1:], len(labels)).double()
    predicted = outputs.argmax(1) if outputs.shape[1] > 1 else (outputs[:, 0] > 0).long()
    return (predicted.cpu() == labels).double()


def _accuracy(value: float, labels: Tensor) -> Estimate:
    """A share of examples with its standard error and its chance level, the largest class."""
    n = len(labels)
    chance = float(torch.unique(labels, return_counts=True)[1].max()) / n
    spread = sqrt(chance * (1 - chance) / n)
    return Estimate(value, sqrt(max(value * (1 - value), 0.0) / n), chance, spread, "binomial")
