"""Part of a data set: some of its classes, some of its examples."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from theodolite.data import Dataset
from theodolite.errors import DomainError, UnknownNameError
from theodolite_papers.lab.data.tasks import balanced_rows

__all__ = ["class_subset", "probe_rows"]


def class_subset(dataset: Dataset, classes: Sequence[int | str]) -> Dataset:
    """Only the examples of some classes, which become 0, 1, 2, ... in the order given.

    Args:
        dataset: with class labels.
        classes: names or indices, e.g. the natural classes of CIFAR-10.

    Raises:
        DomainError: If the data set has no classes or a class repeats.
        UnknownNameError: If a class does not exist.

    Example:
        >>> x, y = torch.arange(4.0).unsqueeze(1), torch.tensor([0, 1, 2, 1])
        >>> pets = Dataset("pets", x, y, x, y, classes=("cat", "dog", "owl"))
        >>> part = class_subset(pets, ["owl", "dog"])
        >>> part.classes, part.y_train
        (('owl', 'dog'), tensor([1, 0, 1]))
    """
    if not dataset.classes:
        raise DomainError(f"dataset: expected class labels, but {dataset.name} is a regression")
    indices = [_index(dataset, item) for item in classes]
    if len(set(indices)) != len(indices) or not indices:
        raise DomainError(f"classes: expected distinct classes, got {list(classes)}")
    lookup = torch.full((dataset.num_classes,), -1)
    lookup[indices] = torch.arange(len(indices))
    train, y_train = _relabelled(dataset.y_train, lookup)
    test, y_test = _relabelled(dataset.y_test, lookup)
    return replace(
        dataset,
        x_train=dataset.x_train[train],
        y_train=y_train,
        x_test=dataset.x_test[test],
        y_test=y_test,
        classes=tuple(dataset.classes[index] for index in indices),
    )


def _index(dataset: Dataset, item: int | str) -> int:
    if isinstance(item, str) and item in dataset.classes:
        return dataset.classes.index(item)
    if isinstance(item, int) and 0 <= item < dataset.num_classes:
        return item
    raise UnknownNameError(f"class of {dataset.name}", str(item), dataset.classes)


def _relabelled(labels: Tensor, lookup: Tensor) -> tuple[Tensor, Tensor]:
    """Rows whose class is kept, and their new labels."""
    fresh = lookup.to(labels.device)[labels]
    kept = (fresh >= 0).nonzero().flatten()
    return kept, fresh[kept]


def probe_rows(dataset: Dataset, size: int, generator: torch.Generator | None = None) -> Tensor:
    """Training rows of a fixed probe set: class-balanced, or uniform for regression.

    Example:
        >>> x, y = torch.zeros(6, 1), torch.tensor([0, 0, 0, 0, 1, 1])
        >>> y[probe_rows(Dataset("toy", x, y, x, y), 4)]
        tensor([0, 0, 1, 1])
    """
    if dataset.classes:
        return balanced_rows(dataset.y_train, size, generator=generator)
    if not 1 <= size <= len(dataset.x_train):
        raise DomainError(f"size: expected 1..{len(dataset.x_train)} training rows, got {size}")
    return torch.randperm(len(dataset.x_train), generator=generator)[:size].sort().values
