"""Tasks on a data set: some of its classes, pairs of them, random and corrupted labels.

Balanced samples and pairs are row indices, so that two representations of the same examples can be
read at the same rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from warnings import warn

import torch
from jaxtyping import Float, Integer
from torch import Tensor

from theodolite.checks import require_between, require_count, require_kind, require_labels
from theodolite.data import Dataset
from theodolite.errors import DomainError, UnknownNameError
from theodolite.linalg import checks_classes

__all__ = [
    "CorruptedLabels",
    "PairTask",
    "balanced_rows",
    "class_pairs",
    "class_subset",
    "corrupted_labels",
    "one_vs_one_tasks",
    "pair_task",
    "random_labels",
]

_FEW = 10  # rows per class below which an alignment curve says little


@dataclass(frozen=True)
class PairTask:
    """One class against another: the rows to read, and +1 (first class) or -1 for each."""

    classes: tuple[int, int]
    rows: Integer[Tensor, " n"]
    targets: Float[Tensor, " n"]


def class_pairs(classes: int | Sequence[int]) -> list[tuple[int, int]]:
    """All unordered pairs of distinct classes.

    Args:
        classes: how many classes there are, or which of them to pair.

    Example:
        >>> class_pairs(3)
        [(0, 1), (0, 2), (1, 2)]
        >>> len(class_pairs(31))
        465
    """
    require_kind((int, Sequence), classes=classes)
    members = range(classes) if isinstance(classes, int) else classes
    if len(set(members)) != len(members) or len(members) < 2:
        raise DomainError(f"classes: expected at least two distinct classes, got {classes}")
    return list(combinations(members, 2))


@checks_classes
def balanced_rows(
    labels: Integer[Tensor, " n"],
    size: int,
    classes: Sequence[int] | None = None,
    generator: torch.Generator | None = None,
) -> Integer[Tensor, " size"]:
    """Rows of a sample with equally many examples of every class, without replacement.

    Args:
        labels: class of every example.
        size: rows in all; a multiple of the number of classes (even for a pair).
        classes: which classes take part; all that occur if left out.
        generator: source of randomness.

    Returns:
        Ascending row indices.

    Raises:
        DomainError: If the size does not divide evenly or a class has too few examples.

    Example:
        >>> balanced_rows(torch.tensor([0, 1, 2, 1, 0]), 4, classes=[0, 1])
        tensor([0, 1, 3, 4])

    References:
        [imani2022], sections 7.2 and 7.3.
    """
    require_labels(labels)
    require_count(1, size=size)
    require_kind((Sequence, type(None)), classes=classes)
    if classes is not None and len(classes) == 0:
        raise DomainError("classes: expected at least one class, got none")
    chosen = sorted(set(labels.tolist())) if classes is None else list(classes)
    if size % len(chosen):
        raise DomainError(
            f"size: expected a multiple of the {len(chosen)} classes, got {size}; "
            f"the next is {size + len(chosen) - size % len(chosen)}"
        )
    each = size // len(chosen)
    picked = [_rows_of(labels, int(label), each, generator) for label in chosen]
    return torch.cat(picked).sort().values


def _rows_of(
    labels: Tensor, label: int, count: int, generator: torch.Generator | None
) -> Integer[Tensor, " count"]:
    rows = (labels == label).nonzero().flatten().cpu()
    if len(rows) < count:
        raise DomainError(
            f"labels: expected at least {count} examples of class {label}, got {len(rows)}; "
            "ask for a smaller size"
        )
    return rows[torch.randperm(len(rows), generator=generator)[:count]]


@checks_classes
def pair_task(
    labels: Integer[Tensor, " n"],
    pair: tuple[int, int],
    size: int | None = None,
    generator: torch.Generator | None = None,
) -> PairTask:
    """The task of separating two classes.

    Args:
        labels: class of every example.
        pair: two distinct classes; the first becomes +1.
        size: rows of a balanced sample; all rows of both classes if left out.
        generator: source of randomness of the sample.

    Raises:
        DomainError: If the classes are equal, one is absent, or the sample cannot be balanced.

    Warns:
        UserWarning: If a class has fewer than ten rows: the task is legal but says little.

    Example:
        >>> pair_task(torch.tensor([2, 0, 1] * 10), (0, 2)).targets[:2]
        tensor([-1.,  1.])
    """
    require_labels(labels)
    if pair[0] == pair[1]:
        raise DomainError(f"pair: expected two distinct classes, got {pair}")
    if size is not None:
        rows = balanced_rows(labels, size, pair, generator)
    else:
        member = (labels == pair[0]) | (labels == pair[1])
        rows = member.nonzero().flatten().cpu()
    first = labels.cpu()[rows] == pair[0]
    counts = int(first.sum()), int((~first).sum())
    if min(counts) == 0:
        raise DomainError(f"pair: expected classes that occur, got {pair} with {counts} rows")
    if min(counts) < _FEW:
        warn(
            f"classes {pair} have {counts} rows; below {_FEW} an alignment says little",
            stacklevel=3,
        )
    return PairTask(pair, rows, first.float() * 2 - 1)


@checks_classes
def one_vs_one_tasks(
    labels: Integer[Tensor, " n"],
    classes: Sequence[int] | None = None,
    size: int | None = None,
    generator: torch.Generator | None = None,
) -> list[PairTask]:
    """Every class against every other, one task per unordered pair.

    Args:
        labels: class of every example.
        classes: which classes take part; all that occur if left out.
        size: rows of each balanced sample; all rows of both classes if left out.
        generator: source of randomness of the samples.

    Example:
        >>> tasks = one_vs_one_tasks(torch.arange(4).repeat(10))
        >>> len(tasks), tasks[0].classes
        (6, (0, 1))
    """
    require_labels(labels)
    members = sorted(set(labels.tolist())) if classes is None else classes
    return [pair_task(labels, pair, size, generator) for pair in class_pairs(members)]


@checks_classes
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


@dataclass(frozen=True)
class CorruptedLabels:
    """Labels of which some were redrawn, and the rows where that happened, ascending."""

    labels: Integer[Tensor, " n"]
    rows: Integer[Tensor, " k"]


@checks_classes
def random_labels(
    count: int, num_classes: int, generator: torch.Generator | None = None
) -> Integer[Tensor, " n"]:
    """Independent uniform class labels, drawn once and then fixed.

    Args:
        count: number of examples.
        num_classes: labels are drawn from ``0 .. num_classes - 1``.
        generator: source of randomness.

    Example:
        >>> random_labels(5, 3, torch.Generator().manual_seed(0)).shape
        torch.Size([5])

    References:
        [maennel2020], appendix A.1; [imani2022], section 6.
    """
    require_count(1, count=count, num_classes=num_classes)
    return torch.randint(num_classes, (count,), generator=generator)


@checks_classes
def corrupted_labels(
    labels: Integer[Tensor, " n"],
    fraction: float,
    num_classes: int | None = None,
    generator: torch.Generator | None = None,
) -> CorruptedLabels:
    r"""Replace an exact share of the labels by uniform draws.

    :math:`\operatorname{round}(fn)` rows, picked without replacement, get a fresh uniform label.
    The old label may recur, so about :math:`f(1 - 1/k)n` labels differ afterwards.

    Args:
        labels: true class labels.
        fraction: :math:`f`, share of rows that are redrawn.
        num_classes: :math:`k`; one more than the largest label if left out.
        generator: source of randomness.

    Raises:
        DomainError: If the fraction lies outside [0, 1] or a label outside the classes.

    Example:
        >>> noisy = corrupted_labels(torch.zeros(10, dtype=torch.long), 0.2, num_classes=4)
        >>> len(noisy.rows)
        2

    References:
        [lou2022], Figures 19 and 20.
    """
    classes = require_labels(labels, num_classes)
    require_between(0.0, 1.0, fraction=fraction)
    count = round(fraction * len(labels))
    rows = torch.randperm(len(labels), generator=generator)[:count].sort().values
    fresh = torch.randint(classes, (count,), generator=generator)
    answer = labels.clone()
    answer[rows.to(labels.device)] = fresh.to(labels)
    return CorruptedLabels(answer, rows)
