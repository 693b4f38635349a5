"""Rows for a task: class pairs, balanced samples, splits that share no example.

Functions return row indices, so that two representations of the same examples can be read at the
same rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from warnings import warn

import torch
from jaxtyping import Float, Integer
from torch import Tensor

from theodolite.checks import require_count, require_labels
from theodolite.errors import DomainError

__all__ = [
    "PairTask",
    "balanced_rows",
    "class_pairs",
    "one_vs_one_tasks",
    "pair_task",
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
    members = range(classes) if isinstance(classes, int) else classes
    if len(set(members)) != len(members) or len(members) < 2:
        raise DomainError(f"classes: expected at least two distinct classes, got {classes}")
    return list(combinations(members, 2))


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
        [imani2022], section 6.
    """
    require_labels(labels)
    require_count(1, size=size)
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


def pair_task(
    labels: Integer[Tensor, " n"],
    pair: tuple[int, int],
    size: int | None = None,
    generator: torch.Generator | None = None,
) -> PairTask:
    """The task of telling two classes apart.

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
            stacklevel=2,
        )
    return PairTask(pair, rows, first.float() * 2 - 1)


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
