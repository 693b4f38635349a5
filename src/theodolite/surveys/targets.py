"""What examples, or their positions, should give, and the losses that hold outputs against it."""

from collections.abc import Collection
from copy import copy
from dataclasses import dataclass
from inspect import signature
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from theodolite.engine import Loss
from theodolite.errors import DomainError
from theodolite.linalg import target_columns
from theodolite.measures.representation import scaled_targets

__all__ = ["Kind", "Targets", "in_turns", "loss_of_maps", "single_loss"]

Kind = Literal["classification", "regression", "multi-label", "sequence", "unlabeled"]


@dataclass(frozen=True)
class Targets:
    """Targets of all examples of a probe, read once for all families.

    Args:
        kind: what they are.
        labels: class of each example, on the CPU; None unless there are classes.
        columns: one row of numbers per example, in float64: one-hot classes, several labels as
            they are, real numbers moved to [-1, 1]; None where there is nothing to align with.
        whole: whether they are single real numbers that could be class labels.
    """

    kind: Kind
    labels: Int[Tensor, " n"] | None = None
    columns: Float[Tensor, "n c"] | None = None
    whole: bool = False

    @classmethod
    def of(cls, targets: Any) -> "Targets":
        """Read targets of any kind.

        Raises:
            DomainError: If a class label is negative or a number is not finite.
        """
        if not isinstance(targets, Tensor) or targets.ndim == 0:
            return cls("unlabeled")
        values = targets.detach().cpu()
        if values.ndim > 2:
            return cls("sequence")
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
                "out examples that have none"
            )
        return cls("classification", labels, target_columns(labels, int(labels.max()) + 1))

    @classmethod
    def _of_rows(cls, values: Tensor, binary: bool) -> "Targets":
        if binary and bool((values.sum(1) == 1).all()):
            return cls("classification", values.long().argmax(1), values.double())
        if binary:
            return cls("multi-label", None, values.double())
        return cls("sequence") if not values.is_floating_point() else cls.of_numbers(values)

    @classmethod
    def of_numbers(cls, values: Tensor) -> "Targets":
        """Rows of real numbers, one per example."""
        if not bool(values.isfinite().all()):
            raise DomainError("targets: expected finite numbers, got nan or inf; clean the data")
        whole = values.shape[1] == 1 and bool(((values >= 0) & (values == values.round())).all())
        return cls("regression", None, scaled_targets(values.double()).values, whole)

    @property
    def num_classes(self) -> int | None:
        """Number of classes; None if there are none."""
        if self.labels is None or self.columns is None:
            return None
        return self.columns.shape[1]

    def take(self, chosen: int | Tensor) -> "Targets":
        """So many of the first examples, or those at these places."""
        labels, columns = self.labels, self.columns
        which = slice(0, chosen) if isinstance(chosen, int) else chosen
        return Targets(
            self.kind,
            None if labels is None else labels[which],
            None if columns is None else columns[which],
            self.whole,
        )

    def require_outputs(self, count: int) -> None:
        """A model with so many outputs can be asked for these targets.

        Raises:
            DomainError: If a label exceeds the number of outputs, or the columns do not match.
        """
        if self.columns is None:
            raise DomainError("targets: expected one per example, got none of use")
        highest = -1 if self.labels is None else int(self.labels.max())
        if highest >= max(count, 2):  # a single output tells two classes apart
            raise DomainError(
                f"targets: expected labels below {count}, the number of outputs, got {highest}; "
                "relabel, or pass readout="
            )
        if self.labels is None and self.columns.shape[1] != count:
            raise DomainError(
                f"targets: expected {count} numbers per example as the model's outputs, got "
                f"{self.columns.shape[1]}; pass readout="
            )

    def outputs(self, count: int) -> Float[Tensor, "n c"]:
        """Targets beside outputs: as many columns as the model has.

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


def in_turns(keys: Tensor, labels: Tensor | None, limit: int) -> Tensor:
    """Places of the examples that come first when classes take turns, each in random order."""
    order = keys.argsort()
    if labels is not None:
        by_class = order[labels[order].argsort(stable=True)]
        counts = labels.bincount()
        starts = counts.cumsum(0) - counts
        turns = torch.arange(len(labels)) - starts[labels[by_class]]
        order = by_class[turns.argsort(stable=True)]
    return order[:limit]


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
