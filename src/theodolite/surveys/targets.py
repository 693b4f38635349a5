"""What a probe's targets are: classes, several labels at once, numbers, or nothing of use."""

from dataclasses import dataclass
from typing import Any, Literal

from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from theodolite.errors import DomainError
from theodolite.measures.representation import scaled_targets

__all__ = ["Kind", "Targets"]

Kind = Literal["classification", "regression", "multi-label", "sequence", "unlabeled"]


@dataclass(frozen=True)
class Targets:
    """Targets of all examples of a probe, read once for all families.

    Args:
        kind: what they are.
        labels: class of each example, on the CPU; None unless there are classes.
        columns: one row of numbers per example, in float64: one-hot classes, several labels as
            they are, real numbers moved to [-1, 1]; None where there is nothing to align with.
    """

    kind: Kind
    labels: Int[Tensor, " n"] | None = None
    columns: Float[Tensor, "n c"] | None = None

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
            return cls._of_labels(flat.long())
        return cls._of_numbers(flat.unsqueeze(1))

    @classmethod
    def _of_labels(cls, labels: Tensor) -> "Targets":
        if int(labels.min()) < 0:
            raise DomainError(
                f"targets: expected class labels of at least 0, got {int(labels.min())}; leave "
                "out examples that have none"
            )
        return cls("classification", labels, functional.one_hot(labels).double())

    @classmethod
    def _of_rows(cls, values: Tensor, binary: bool) -> "Targets":
        if binary and bool((values.sum(1) == 1).all()):
            return cls("classification", values.long().argmax(1), values.double())
        if binary:
            return cls("multi-label", None, values.double())
        return cls("sequence") if not values.is_floating_point() else cls._of_numbers(values)

    @classmethod
    def _of_numbers(cls, values: Tensor) -> "Targets":
        if not bool(values.isfinite().all()):
            raise DomainError("targets: expected finite numbers, got nan or inf; clean the data")
        return cls("regression", None, scaled_targets(values.double()).values)

    @property
    def num_classes(self) -> int | None:
        """Number of classes; None if there are none."""
        if self.labels is None or self.columns is None:
            return None
        return self.columns.shape[1]

    def take(self, count: int) -> "Targets":
        """The first examples only."""
        labels, columns = self.labels, self.columns
        return Targets(
            self.kind,
            None if labels is None else labels[:count],
            None if columns is None else columns[:count],
        )

    def outputs(self, count: int) -> Float[Tensor, "n c"]:
        """Targets beside outputs: as many columns as the model has.

        Raises:
            DomainError: If a label exceeds the number of outputs, or the columns do not match.
        """
        if self.columns is None:
            raise DomainError("targets: expected one per example, got none of use")
        if self.labels is not None:
            return _class_columns(self.labels, count)
        if self.columns.shape[1] != count:
            raise DomainError(
                f"targets: expected {count} numbers per example as the model's outputs, got "
                f"{self.columns.shape[1]}; pass readout="
            )
        return self.columns


def _class_columns(labels: Tensor, count: int) -> Tensor:
    highest = int(labels.max())
    if count == 1 and highest <= 1:
        return 2.0 * labels.double().unsqueeze(1) - 1.0
    if highest >= count:
        raise DomainError(
            f"targets: expected labels below {count}, the number of outputs, got {highest}; "
            "relabel, or pass readout="
        )
    return functional.one_hot(labels, count).double()
