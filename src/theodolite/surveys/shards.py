"""The data of several processes as one data set: parts in the order of ranks, or equal copies.

Separate labels and groups are joined in the same order.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from theodolite._distributed import Processes
from theodolite.engine import Batch, tensors_in
from theodolite.errors import DomainError, DtypeError, ShapeError
from theodolite.surveys.targets import Targets, Task


@dataclass(frozen=True)
class Shard:
    """The part of the data that one process has; parts follow each other in the order of ranks.

    Args:
        before: lengths of the batches of earlier processes.
        own: lengths of its batches.
        after: lengths of the batches of later processes.
        copies: whether all processes got the same data, which then count once.
        classes: whether all targets are class labels; None if the examples decide.
    """

    before: tuple[int, ...] = ()
    own: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    copies: bool = False
    classes: bool | None = None

    @property
    def total(self) -> int:
        """Examples of all processes."""
        return sum(self.before) + sum(self.own) + sum(self.after)


def find_shard(processes: Processes, batches: Callable[[], Iterable[Batch]]) -> Shard:
    """Count the examples of all processes; this reads the data once."""
    with processes.together():
        found = _DataSummary.of(batches())
    everybody: list[_DataSummary] = processes.gather(found)
    rank = processes.rank
    kinds = {kind for summary in everybody for kind in summary.kinds}
    classes = kinds == {Task.CLASSES}
    first = everybody[0]
    if first.lengths and all(summary == first for summary in everybody):
        before = () if rank == 0 else first.lengths
        return Shard(before, first.lengths if rank == 0 else (), (), True, classes)
    before, after = (
        tuple(length for summary in some for length in summary.lengths)
        for some in (everybody[:rank], everybody[rank + 1 :])
    )
    return Shard(before, found.lengths, after, False, classes)


@dataclass(frozen=True)
class _DataSummary:
    """The description of their data that processes exchange."""

    lengths: tuple[int, ...]
    kinds: tuple[str, ...]
    digest: str  # digest of the first batch, to recognise equal data

    @classmethod
    def of(cls, batches: Iterable[Batch]) -> "_DataSummary":
        lengths: list[int] = []
        kinds: set[str] = set()
        mark = ""
        for batch in batches:
            mark = mark or probe_digest(batch)
            lengths.append(len(batch))
            kinds.add(Targets.of(batch.targets).task)
        return cls(tuple(lengths), tuple(sorted(kinds)), mark)


def probe_digest(batch: Batch) -> str:
    """SHA-256 over inputs and targets."""
    total = hashlib.sha256()
    for tensor in _tensors(batch):
        plain = tensor.detach().cpu().contiguous()
        total.update(f"{plain.dtype}{tuple(plain.shape)}".encode())
        total.update(plain.flatten().view(torch.uint8).numpy().data)  # without a copy
    return total.hexdigest()


def _tensors(batch: Batch) -> Iterator[Tensor]:
    for tensor in tensors_in((batch.inputs, batch.targets)):
        yield from tensor.unbind() if tensor.is_nested else (tensor,)


def true_targets(truth: Any, places: Tensor, shard: Shard, processes: Processes) -> Targets | None:
    """True labels of some examples; None if none were given.

    Args:
        truth: true labels of this process's examples, in their order.
        places: places of the examples among those of all processes.
        shard: the part of the data that this process has.
        processes: the processes that take part.

    Raises:
        ShapeError: If a process gave more or fewer labels than it has examples.
        DomainError: If they are neither labels nor numbers, or one process gave none.
    """
    given = any(processes.gather(truth is not None))
    if not given:
        return None
    with processes.together():
        own = _own_truth(truth, sum(shard.own))
    parts = [part for part in processes.gather(own) if part is not None]
    with processes.together():
        found = Targets.of(torch.cat(parts)[places])
        if found.columns is None:
            raise DomainError(
                "truth: expected a label, or a row of numbers, for every example, got whole "
                "sequences; leave truth= out"
            )
    return found


def _own_truth(truth: Any, count: int) -> Tensor | None:
    """This process's part of the true labels; None if it has no examples."""
    if count == 0:
        return None
    if truth is None:
        raise DomainError(
            f"truth: expected {count} true labels as in the other processes, got none; pass the "
            "part that goes with this process's data"
        )
    try:
        values = torch.as_tensor(truth).detach().cpu()
    except (TypeError, ValueError, RuntimeError):
        raise DtypeError(
            "truth: expected class numbers or real numbers, got "
            f"{type(truth).__name__}; number the classes as in the targets"
        ) from None
    if values.ndim == 0 or len(values) != count:
        raise ShapeError(
            f"truth: expected one label for each of {count} examples, got "
            f"{tuple(values.shape)}; pass them in the order of the data"
        )
    if not bool(values.isfinite().all()) or (values.ndim == 1 and _negative(values)):
        raise DomainError(
            "truth: expected class labels of at least 0 or finite numbers, got others; leave out "
            "examples without a label"
        )
    return values


def _negative(values: Tensor) -> bool:
    return not values.is_floating_point() and bool((values < 0).any())


def grouped_targets(
    groups: Any, places: Tensor, shard: Shard, processes: Processes
) -> tuple[Targets | None, tuple[str, ...]]:
    """Groups of some examples, numbered in the order of their names; None without groups.

    Raises:
        ShapeError: If a process gave more or fewer groups than it has examples.
    """
    if not any(processes.gather(groups is not None)):
        return None, ()
    count = sum(shard.own)
    listed: list[Any] = []
    with processes.together():
        if groups is not None and count:
            if isinstance(groups, str) or not isinstance(groups, Iterable):
                raise DtypeError(
                    "groups: expected a list with a number or a name for each example, got "
                    f"{groups!r}"
                )
            listed = groups.tolist() if hasattr(groups, "tolist") else list(groups)
        wrong = [entry for entry in listed if not isinstance(entry, (str, Real)) or entry != entry]
        if wrong or len({isinstance(entry, str) for entry in listed}) > 1:
            got = repr(wrong[0]) if wrong else "numbers and names"
            raise DtypeError(
                f"groups: expected a number or a name for each example, and one kind, got {got}"
            )
        if len(listed) != count:
            raise ShapeError(
                f"groups: expected one for each of {count} examples, got {len(listed)}; pass them "
                "in the order of the data"
            )
    known = [name for part in processes.gather(listed) for name in part]
    names = sorted(set(known))
    numbers = {name: number for number, name in enumerate(names)}
    labels = torch.tensor([numbers[name] for name in known])[places]
    return Targets.of_labels(labels), tuple(map(str, names))
