"""The examples that all families share: drawn once, balanced over classes, hashed."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from theodolite._distributed import Processes
from theodolite.engine.batches import Batch, iterate_batches, single_batch
from theodolite.errors import ShapeError
from theodolite.surveys._settings import Settings
from theodolite.surveys._shards import Shard, digest, find_shard
from theodolite.surveys._tasks import Task
from theodolite.surveys._truth import require_order, true_task

__all__ = ["Probe", "draw_probe", "reusable"]


class _Drawn(NamedTuple):
    """Examples, with a random number for each and its place among all that were given."""

    batch: Batch
    keys: Tensor
    places: Tensor

    def take(self, chosen: Tensor) -> "_Drawn":
        """Some of the examples."""
        return _Drawn(self.batch.take(chosen), self.keys[chosen], self.places[chosen])


@dataclass(frozen=True)
class Probe:
    """Examples for every family; each takes as many as it needs from the front.

    Classes take turns, so that the first examples are balanced, however many are taken.

    Args:
        batch: the examples.
        task: their targets.
        given: number of examples that the data has.
        digest: SHA-256 over inputs and targets.
        shard: the part of the data that this process has, where there are several.
        truth: true labels of the same examples, where the targets are others.
    """

    batch: Batch
    task: Task
    given: int
    digest: str
    shard: Shard = field(default_factory=Shard)
    truth: Task | None = None

    def __len__(self) -> int:
        return len(self.batch)

    def take(self, count: int) -> tuple[Batch, Task]:
        """The first examples and their targets."""
        return self.batch.take(slice(0, count)), self.task.take(count)

    def label_columns(self, count: int) -> dict[str, Tensor]:
        """Labels of the first examples as columns: the targets, and true labels beside them."""
        known = {"target": self.task, "truth": self.truth}
        taken = {name: task.take(count).columns for name, task in known.items() if task is not None}
        return {name: columns for name, columns in taken.items() if columns is not None}


def reusable(data: Any) -> Any:
    """Data that can be gone through more than once: an iterator is read into a list."""
    return list(data) if isinstance(data, Iterator) else data


def draw_probe(
    data: Any,
    settings: Settings,
    targets: Any = None,
    device: torch.device | None = None,
    truth: Any = None,
) -> Probe:
    """Draw examples at random, as many of each class as possible.

    Goes through the data once. What is kept never exceeds twice what is asked for and a batch.
    With several processes, of which each has some of the data, all get the probe that one process
    with all the data would draw; a loader is gone through twice.

    Args:
        data: anything that ``iterate_batches`` accepts.
        settings: how many examples the families want, the seed, and the processes.
        targets: of the same examples, where the data holds none.
        device: where the probe should lie.
        truth: true labels of the examples that this process has, in their order.

    Raises:
        ShapeError: If there is no example, or there are more or fewer true labels.
        DomainError: If true labels are given for data in random order.
    """
    require_order(data, truth)
    generator = settings.seeded()
    limit = settings.largest()

    def batches() -> Iterator[Batch]:
        several = not settings.processes.alone
        return iterate_batches(data, targets=targets, batch_fn=settings.batch_fn, empty=several)

    if settings.processes.alone:
        kept, given = _kept(batches(), generator, limit)
        shard = Shard(own=(given,))
    else:
        kept, shard = _kept_by_all(batches, settings, generator, limit)
    if not kept:
        raise ShapeError("data: expected at least one example, got none; the data set is empty")
    batch, _, places = _selected(kept, limit or shard.total, shard.classes)
    task, true = Task.of(batch.targets), true_task(truth, places, shard, settings.processes)
    return Probe(batch.to(device), task, shard.total, digest(batch), shard, true)


def _kept(
    batches: Iterator[Batch],
    generator: torch.Generator,
    limit: int | None,
    shard: Shard | None = None,
) -> tuple[list[_Drawn], int]:
    """Examples that may be selected, each with a random number; and how many there were."""
    kept: list[_Drawn] = []
    waiting = given = 0
    start, classes = (0, None) if shard is None else (sum(shard.before), shard.classes)
    for batch in batches:
        places = start + given + torch.arange(len(batch))
        kept.append(_Drawn(batch, _keys(len(batch), generator), places))
        given, waiting = given + len(batch), waiting + len(batch)
        if limit is not None and waiting >= 2 * limit:
            kept = [_selected(kept, limit, classes)]
            waiting = limit
    return kept, given


def _kept_by_all(
    batches: Callable[[], Iterator[Batch]],
    settings: Settings,
    generator: torch.Generator,
    limit: int | None,
) -> tuple[list[_Drawn], Shard]:
    """The same for the data of all processes, with the random numbers of a single one."""
    processes = settings.processes
    shard = find_shard(processes, batches)
    generator.set_state(processes.spread(generator.get_state()))
    for length in shard.before:
        _keys(length, generator)
    with processes.together():
        own, _ = _kept(batches() if shard.own else iter(()), generator, limit, shard)
        chosen = [_selected(own, limit or shard.total, shard.classes)] if own else []
    for length in shard.after:
        _keys(length, generator)
    return _exchanged(chosen, processes, limit or shard.total, shard), shard


def _exchanged(own: list[_Drawn], processes: Processes, limit: int, shard: Shard) -> list[_Drawn]:
    """The examples that are selected among those of all processes, and no others, everywhere."""
    known = [(part.keys, _labels(part.batch, shard.classes)) for part in own]
    offered = processes.gather(known)
    pairs = [pair for part in offered for pair in part]
    if not pairs:
        return []
    keys = torch.cat([part for part, _ in pairs])
    labels = None if pairs[0][1] is None else torch.cat([part for _, part in pairs])
    wanted = torch.zeros(len(keys), dtype=torch.bool)
    wanted[_first(keys, labels, limit)] = True
    found, start = [], 0
    for rank, part in enumerate(offered):
        count = sum(len(keys) for keys, _ in part)
        chosen = wanted[start : start + count].nonzero().flatten()
        start += count
        if len(chosen):
            picked = own[0].take(chosen) if rank == processes.rank else None
            sent = None if picked is None else picked._replace(batch=picked.batch.to("cpu"))
            found.append(processes.spread(sent, rank))
    return found


def _keys(count: int, generator: torch.Generator) -> Tensor:
    return torch.rand(count, generator=generator, device=generator.device).cpu()


def _selected(kept: list[_Drawn], limit: int, classes: bool | None = None) -> _Drawn:
    """The examples that come first when classes take turns, each class in random order.

    Any process may leave out what is not among its own first ones: an example's turn among all
    examples is never before its turn among some of them.
    """
    batch = single_batch([part.batch for part in kept])
    keys, places = (torch.cat(parts) for parts in list(zip(*kept, strict=True))[1:])
    return _Drawn(batch, keys, places).take(_first(keys, _labels(batch, classes), limit))


def _labels(batch: Batch, classes: bool | None) -> Tensor | None:
    return None if classes is False else Task.of(batch.targets).labels


def _first(keys: Tensor, labels: Tensor | None, limit: int) -> Tensor:
    """Places of the examples that come first."""
    order = keys.argsort()
    if labels is not None:
        by_class = order[labels[order].argsort(stable=True)]
        counts = labels.bincount()
        starts = counts.cumsum(0) - counts
        turns = torch.arange(len(labels)) - starts[labels[by_class]]
        order = by_class[turns.argsort(stable=True)]
    return order[:limit]
