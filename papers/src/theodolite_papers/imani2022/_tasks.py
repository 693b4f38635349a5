"""Labelled inputs of the figures by name: rows of unit length, targets +1/-1 or in [-1, 1]."""

from dataclasses import dataclass

import torch
from torch import Tensor

from theodolite.data import Dataset, digits, disjoint_rows, scaled
from theodolite.errors import DomainError, UnknownNameError
from theodolite.measures.representation import scaled_targets
from theodolite_papers.lab.data import balanced_rows, load_ct_position, load_image_set

__all__ = ["TASKS", "Task", "load_task"]

# name -> (data set, what is told apart)
TASKS = {
    "digits-pair": ("digits", "pair"),
    "digits-parity": ("digits", "parity"),
    "digits-value": ("digits", "value"),
    "mnist-pair": ("mnist", "pair"),
    "mnist-parity": ("mnist", "parity"),
    "cifar10-pair": ("cifar10", "pair"),
    "ct_position": ("ct_position", "value"),
}


@dataclass(frozen=True)
class Task:
    """Training and test examples of one task.

    Args:
        name: a key of ``TASKS``.
        x_train: unit rows.
        y_train: +1 and -1, or numbers in [-1, 1].
        x_test: unit rows.
        y_test: as ``y_train``, by the same map.
        regression: whether the targets are numbers rather than classes.
    """

    name: str
    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor
    regression: bool

    @property
    def width(self) -> int:
        """Number of inputs."""
        return self.x_train.shape[1]


def load_task(name: str, train: int, test: int, generator: torch.Generator) -> Task:
    """Random training and test examples.

    Args:
        name: a key of ``TASKS``; a pair is the first two classes, parity even against odd, value
            the class or the target as a number.
        train: number of training examples.
        test: number of test examples.
        generator: draws both.

    Raises:
        UnknownNameError: If there is no such task.
        DataError: If the data set cannot be read.
        DomainError: If there are too few examples.
    """
    if name not in TASKS:
        raise UnknownNameError("task", name, TASKS)
    source, kind = TASKS[name]
    if source == "ct_position":
        data = scaled(load_ct_position(train, test, generator=generator), "unit_rows")
    else:
        data = _images(source, kind, (train, test), generator)
    y_train, y_test = _targets(data, kind)
    return Task(
        name,
        data.x_train.float(),
        y_train.float(),
        data.x_test.float(),
        y_test.float(),
        regression=kind == "value",
    )


def _images(source: str, kind: str, sizes: tuple[int, int], generator: torch.Generator) -> Dataset:
    """A sample of an image set, flattened; of a pair, as many examples of either class."""
    if source == "digits":
        # Two classes have only 360 images: nearly all of them are for training.
        whole = digits(test_size=97 if kind == "pair" else 797, generator=generator)
    else:
        whole = load_image_set(source)
    rows = [
        _rows(labels, kind, size, generator)
        for labels, size in zip((whole.y_train, whole.y_test), sizes, strict=True)
    ]
    part = whole.take(*rows)
    return scaled(scaled(part, "unit_interval").flat(), "unit_rows")


def _rows(labels: Tensor, kind: str, size: int, generator: torch.Generator) -> Tensor:
    if kind == "pair":
        smallest = int(labels.bincount()[:2].min())
        return balanced_rows(labels, min(size, 2 * smallest), (0, 1), generator)
    if size > len(labels):
        raise DomainError(f"sizes: expected at most {len(labels)} examples, got {size}")
    return disjoint_rows(len(labels), size, generator=generator)[0]


def _targets(data: Dataset, kind: str) -> tuple[Tensor, Tensor]:
    if kind == "value":
        fitted = scaled_targets(data.y_train.double())
        return fitted.values, fitted.apply(data.y_test.double())
    sign = 2 * (data.y_train % 2) - 1, 2 * (data.y_test % 2) - 1
    return sign[0].double(), sign[1].double()
