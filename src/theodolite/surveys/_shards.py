"""Where the examples of one process stand among those of all."""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten

from theodolite._distributed import Processes
from theodolite.engine.batches import Batch
from theodolite.surveys._tasks import Task

__all__ = ["Shard", "digest", "find_shard"]


@dataclass(frozen=True)
class Shard:
    """The part of the data that one process has: all processes' examples follow each other by rank.

    Args:
        before: lengths of the batches of the processes before this one.
        own: lengths of its batches.
        after: lengths of the batches of the processes that follow.
        copies: whether every process was given the same data, which then counts once.
        classes: whether all targets are class labels; None where the examples decide.
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
    """Count everybody's examples; goes through the data once, which for tensors is nothing.

    Args:
        processes: those that take part.
        batches: gives this process's batches, anew at every call.
    """
    with processes.together():
        found = _Outline.of(batches())
    everybody: list[_Outline] = processes.gather(found)
    rank = processes.rank
    kinds = {kind for outline in everybody for kind in outline.kinds}
    classes = kinds == {"classification"}
    first = everybody[0]
    if first.lengths and all(outline == first for outline in everybody):
        before = () if rank == 0 else first.lengths
        return Shard(before, first.lengths if rank == 0 else (), (), True, classes)
    before, after = (
        tuple(length for outline in some for length in outline.lengths)
        for some in (everybody[:rank], everybody[rank + 1 :])
    )
    return Shard(before, found.lengths, after, False, classes)


@dataclass(frozen=True)
class _Outline:
    """What processes tell each other about their data."""

    lengths: tuple[int, ...]
    kinds: tuple[str, ...]
    digest: str  # of the first batch: the same data everywhere, or not

    @classmethod
    def of(cls, batches: Iterable[Batch]) -> "_Outline":
        lengths: list[int] = []
        kinds: set[str] = set()
        mark = ""
        for batch in batches:
            mark = mark or digest(batch)
            lengths.append(len(batch))
            kinds.add(Task.of(batch.targets).kind)
        return cls(tuple(lengths), tuple(sorted(kinds)), mark)


def digest(batch: Batch) -> str:
    """SHA-256 over inputs and targets."""
    total = hashlib.sha256()
    for tensor in _tensors(batch):
        plain = tensor.detach().cpu().contiguous()
        total.update(f"{plain.dtype}{tuple(plain.shape)}".encode())
        total.update(plain.flatten().view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def _tensors(batch: Batch) -> Iterator[Tensor]:
    for leaf in tree_flatten((batch.args, dict(batch.kwargs), batch.targets))[0]:
        if isinstance(leaf, Tensor):
            yield from leaf.unbind() if leaf.is_nested else (leaf,)
