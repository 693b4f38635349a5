"""Targets of examples or positions, and the losses that compare outputs with them."""

from collections.abc import Collection
from copy import copy
from dataclasses import dataclass
from enum import StrEnum
from inspect import signature
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from theodolite.engine import Loss, per_example_cross_entropy
from theodolite.errors import DomainError, DtypeError
from theodolite.linalg import target_columns
from theodolite.measures.representation import scaled_targets


class Task(StrEnum):
    """The task of an example; its value is the word in records."""

    CLASSES = "classification"
    NUMBERS = "regression"
    SEVERAL_LABELS = "multi-label"
    SEQUENCES = "sequence"  # targets of other shapes, which only a loss can use
    UNLABELED = "unlabeled"

    @property
    def loss(self) -> Loss:
        """The default loss of the task, with one number per example."""
        losses: dict[Task, Loss] = {
            Task.NUMBERS: _squared_error,
            Task.SEVERAL_LABELS: _binary_cross_entropy,
        }
        return losses.get(self, per_example_cross_entropy)


MOST_CLASSES = 1_000_000  # each class takes a column per example


@dataclass(frozen=True)
class Targets:
    """Targets of all examples of a probe set, read once for all families.

    Args:
        task: the task.
        labels: class of each example, on the CPU; None without classes.
        columns: one row of numbers per example, in float64: one-hot classes, several labels
            unchanged, real numbers scaled to [-1, 1]; None if there is nothing to align with.
        whole: whether the targets are single real numbers that could be class labels.
        unscaled: the original real numbers, if the columns were scaled to [-1, 1].
    """

    task: Task
    labels: Int[Tensor, " n"] | None = None
    columns: Float[Tensor, "n c"] | None = None
    whole: bool = False
    unscaled: Float[Tensor, "n c"] | None = None

    @classmethod
    def of(cls, targets: Any) -> "Targets":
        """Read targets of any kind.

        Raises:
            DomainError: If a class label is negative or a number is not finite.
            DtypeError: If numbers are complex.
        """
        if not isinstance(targets, Tensor) or targets.ndim == 0:
            return cls(Task.UNLABELED)
        if targets.is_complex():
            raise DtypeError(
                "targets: expected class labels or real numbers, got complex numbers; pass .real"
            )
        values = targets.detach().cpu()
        if values.ndim > 2:
            return cls(Task.SEQUENCES)
        if values.ndim == 2 and values.shape[1] == 0:
            raise DomainError(
                f"targets: expected at least one number per example, got none: shape "
                f"{tuple(values.shape)}; pass (inputs, targets), or inputs alone"
            )
        binary = bool(((values == 0) | (values == 1)).all())
        whole = not values.is_floating_point() or binary
        if values.ndim == 2 and values.shape[1] > 1:
            return cls._of_rows(values, binary)
        flat = values.reshape(len(values))
        if whole:
            return cls.of_labels(flat.long())
        return cls.of_numbers(flat.unsqueeze(1))

    @classmethod
    def of_labels(cls, labels: Tensor) -> "Targets":
        """Class labels, one per example."""
        if int(labels.min()) < 0:
            raise DomainError(
                f"targets: expected class labels of at least 0, got {int(labels.min())}; leave "
                "out examples without a label"
            )
        if int(labels.max()) >= MOST_CLASSES:
            raise DomainError(
                f"targets: expected classes below {MOST_CLASSES:,}, got {int(labels.max()):,}; "
                "number the classes from 0, or pass numbers to regress as floats"
            )
        return cls(Task.CLASSES, labels, target_columns(labels, int(labels.max()) + 1))

    @classmethod
    def _of_rows(cls, values: Tensor, binary: bool) -> "Targets":
        if binary and bool((values.sum(1) == 1).all()):
            return cls(Task.CLASSES, values.long().argmax(1), values.double())
        if binary:
            return cls(Task.SEVERAL_LABELS, None, values.double())
        return cls(Task.SEQUENCES) if not values.is_floating_point() else cls.of_numbers(values)

    @classmethod
    def of_numbers(cls, values: Tensor) -> "Targets":
        """Rows of real numbers, one per example."""
        if not bool(values.isfinite().all()):
            raise DomainError("targets: expected finite numbers, got nan or inf; clean the data")
        whole = values.shape[1] == 1 and bool(((values >= 0) & (values == values.round())).all())
        wide = values.double()
        return cls(Task.NUMBERS, None, scaled_targets(wide).values, whole, wide)

    @property
    def num_classes(self) -> int | None:
        """Number of classes; None if there are none."""
        if self.labels is None or self.columns is None:
            return None
        return self.columns.shape[1]

    def take(self, chosen: int | Tensor) -> "Targets":
        """The first examples (for a number), or the examples at these places."""
        labels, columns, unscaled = self.labels, self.columns, self.unscaled
        which = slice(0, chosen) if isinstance(chosen, int) else chosen
        return Targets(
            self.task,
            None if labels is None else labels[which],
            None if columns is None else columns[which],
            self.whole,
            None if unscaled is None else unscaled[which],
        )

    def numbers(self) -> Float[Tensor, "n c"]:
        """The columns in units that are comparable with another set of examples."""
        found = self.columns if self.unscaled is None else self.unscaled
        assert found is not None  # there would be nothing to predict
        return found

    def require_classes(self, outputs: int | None) -> None:
        """Check that several classes have several outputs.

        Raises:
            DomainError: If there is one output, and more than two whole numbers.
        """
        if outputs == 1 and self.labels is not None and int(self.labels.max()) > 1:
            raise DomainError(
                "targets: expected 0 and 1, or real numbers, since the model has one output, got"
                f" whole numbers up to {int(self.labels.max())}; for regression pass float"
                " targets, such as targets.float(); for classification give the model an output"
                " for each class"
            )

    def require_outputs(self, count: int) -> None:
        """Check that a model with this number of outputs can predict these targets.

        Raises:
            DomainError: If a label exceeds the number of outputs, or the columns do not match.
        """
        if self.columns is None:
            raise DomainError(
                "targets: expected one class or number per example, got targets that are neither; "
                "pass (inputs, targets)"
            )
        highest = -1 if self.labels is None else int(self.labels.max())
        if highest >= max(count, 2):  # a single output separates two classes
            raise DomainError(
                f"targets: expected labels below {count}, the number of outputs, got {highest}; "
                "relabel, or pass readout="
            )
        if self.labels is None and self.columns.shape[1] != count:
            raise DomainError(
                f"targets: expected {count} numbers per example, one for each output of the model,"
                f" got {self.columns.shape[1]}; use a model with as many outputs, or pass readout="
                " that selects them"
            )

    def loss(self, asked: Loss | None) -> Loss:
        """A loss with one number per example: the user's loss, or the default of the task.

        A loss of torch that averages over examples gets ``reduction="none"``; this covers modules
        with a ``reduction`` and functions that take one.
        """
        return self.task.loss if asked is None else single_loss(asked)

    def outputs(self, count: int) -> Float[Tensor, "n c"]:
        """Targets to compare with outputs: as many columns as the model has.

        Raises:
            DomainError: As :meth:`require_outputs`.
        """
        self.require_outputs(count)
        if self.labels is None:
            assert self.columns is not None
            return self.columns
        if count == 1:
            return 2.0 * self.labels.double().unsqueeze(1) - 1.0
        return target_columns(self.labels, count)


def _squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets.reshape(outputs.shape).to(outputs.dtype)).square().sum(1)


def _binary_cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    values = targets.to(outputs.dtype)
    losses = functional.binary_cross_entropy_with_logits(outputs, values, reduction="none")
    return losses.sum(1)


def in_turns(keys: Tensor, labels: Tensor | None, limit: int) -> Tensor:
    """Places of the first examples when classes alternate, each class in random order."""
    order = keys.argsort()
    if labels is not None:
        by_class = order[labels[order].argsort(stable=True)]
        order = by_class[turns_of(labels[by_class]).argsort(stable=True)]
    return order[:limit]


def turns_of(groups: Int[Tensor, " m"]) -> Int[Tensor, " m"]:
    """For each entry the number of earlier entries of the same group."""
    order = groups.argsort(stable=True)
    counts = groups.bincount()
    starts = counts.cumsum(0) - counts
    turns = torch.empty_like(groups)
    turns[order] = torch.arange(len(groups)) - starts[groups[order]]
    return turns


def single_loss(loss: Loss) -> Loss:
    """The user's loss with one number per example; losses of torch average by default."""
    if isinstance(loss, nn.Module) and hasattr(loss, "reduction"):
        single = copy(loss)
        single.reduction = "none"  # type: ignore[assignment]
        return lambda outputs, targets: _summed(single(outputs, targets))
    if not isinstance(loss, nn.Module) and "reduction" in _parameters(loss):
        function: Any = loss
        return lambda outputs, targets: _summed(function(outputs, targets, reduction="none"))
    return loss


def loss_of_maps(loss: Loss) -> Loss:
    """The user's loss for labels per position; a loss of torch averages over positions.

    It is called for one example at a time, so that class weights and ignored labels work as usual.
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
