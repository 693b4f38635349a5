"""The examples that all families share: drawn once, balanced over classes, hashed."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten

from theodolite._survey._settings import Settings
from theodolite._survey._tasks import Task
from theodolite.capture.batches import Batch, iterate_batches, single_batch
from theodolite.errors import ShapeError

__all__ = ["Probe", "draw_probe", "reusable"]


@dataclass(frozen=True)
class Probe:
    """Examples for every family; each takes as many as it needs from the front.

    Classes take turns, so that the first examples are balanced, however many are taken.

    Args:
        batch: the examples.
        task: their targets.
        given: number of examples that the data has.
        digest: SHA-256 over inputs and targets.
    """

    batch: Batch
    task: Task
    given: int
    digest: str

    def __len__(self) -> int:
        return len(self.batch)

    def take(self, count: int) -> tuple[Batch, Task]:
        """The first examples and their targets."""
        return self.batch.take(slice(0, count)), self.task.take(count)


def reusable(data: Any) -> Any:
    """Data that can be gone through more than once: an iterator is read into a list."""
    return list(data) if isinstance(data, Iterator) else data


def draw_probe(
    data: Any, settings: Settings, targets: Any = None, device: torch.device | None = None
) -> Probe:
    """Draw examples at random, as many of each class as possible.

    Goes through the data once. What is kept never exceeds twice what is asked for and a batch.

    Args:
        data: anything that ``iterate_batches`` accepts.
        settings: how many examples the families want, and the seed.
        targets: of the same examples, where the data holds none.
        device: where the probe should lie.

    Raises:
        ShapeError: If there is no example.
    """
    generator = settings.seeded()
    limit = settings.largest()
    kept: list[tuple[Batch, Tensor]] = []
    waiting = given = 0
    for batch in iterate_batches(data, targets=targets, batch_fn=settings.batch_fn):
        keys = torch.rand(len(batch), generator=generator, device=generator.device).cpu()
        kept.append((batch, keys))
        given, waiting = given + len(batch), waiting + len(batch)
        if limit is not None and waiting >= 2 * limit:
            kept = [_selected(kept, limit)]
            waiting = limit
    if not kept:
        raise ShapeError("data: expected at least one example, got none; the data set is empty")
    batch, _ = _selected(kept, limit or given)
    return Probe(batch.to(device), Task.of(batch.targets), given, _digest(batch))


def _selected(kept: list[tuple[Batch, Tensor]], limit: int) -> tuple[Batch, Tensor]:
    """The examples that come first when classes take turns, each class in random order."""
    batch = single_batch([part for part, _ in kept])
    keys = torch.cat([part for _, part in kept])
    labels = Task.of(batch.targets).labels
    order = keys.argsort()
    if labels is not None:
        by_class = order[labels[order].argsort(stable=True)]
        counts = labels.bincount()
        starts = counts.cumsum(0) - counts
        turns = torch.arange(len(labels)) - starts[labels[by_class]]
        order = by_class[turns.argsort(stable=True)]
    chosen = order[:limit]
    return batch.take(chosen), keys[chosen]


def _digest(batch: Batch) -> str:
    total = hashlib.sha256()
    for leaf in tree_flatten((batch.args, dict(batch.kwargs), batch.targets))[0]:
        if isinstance(leaf, Tensor):
            parts = leaf.unbind() if leaf.is_nested else (leaf,)
            for part in parts:
                plain = part.detach().cpu().contiguous()
                total.update(f"{plain.dtype}{tuple(plain.shape)}".encode())
                total.update(plain.flatten().view(torch.uint8).numpy().tobytes())
    return total.hexdigest()
