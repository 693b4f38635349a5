"""True labels beside those that a model is trained on, for the examples of a probe."""

from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, RandomSampler

from theodolite._distributed import Processes
from theodolite.errors import DomainError, ShapeError
from theodolite.surveys._shards import Shard
from theodolite.surveys._tasks import Task

__all__ = ["require_order", "true_task"]


def require_order(data: Any, truth: Any) -> None:
    """Labels beside the data need data that come in one order.

    Raises:
        DomainError: If a loader shuffles.
    """
    if truth is None or not isinstance(data, DataLoader):
        return
    sampler = data.sampler
    if isinstance(sampler, RandomSampler) or getattr(sampler, "shuffle", False):
        raise DomainError(
            "truth: expected data in the order of the true labels, got a loader that shuffles; "
            "pass a loader with shuffle=False, or (inputs, targets)"
        )


def true_task(truth: Any, places: Tensor, shard: Shard, processes: Processes) -> Task | None:
    """True labels of some examples; None where nobody gave any.

    Args:
        truth: of this process's examples, in their order.
        places: of the examples among those of all processes.
        shard: the part of the data that this process has.
        processes: those that take part.

    Raises:
        ShapeError: If a process gave more or fewer than it has examples.
        DomainError: If they are no labels or numbers, or one process gave none.
    """
    given = any(processes.gather(truth is not None))
    if not given:
        return None
    with processes.together():
        own = _own_truth(truth, sum(shard.own))
    parts = [part for part in processes.gather(own) if part is not None]
    with processes.together():
        task = Task.of(torch.cat(parts)[places])
        if task.columns is None:
            raise DomainError(
                "truth: expected a label, or a row of numbers, for every example, got whole "
                "sequences; leave truth= out"
            )
    return task


def _own_truth(truth: Any, count: int) -> Tensor | None:
    """What this process adds to the true labels of all; None where it has no examples."""
    if count == 0:
        return None
    if truth is None:
        raise DomainError(
            f"truth: expected {count} true labels as in the other processes, got none; pass the "
            "part that goes with this process's data"
        )
    values = torch.as_tensor(truth).detach().cpu()
    if values.ndim == 0 or len(values) != count:
        raise ShapeError(
            f"truth: expected one label for each of {count} examples, got "
            f"{tuple(values.shape)}; pass them in the order of the data"
        )
    if not bool(values.isfinite().all()) or (values.ndim == 1 and _negative(values)):
        raise DomainError(
            "truth: expected class labels of at least 0 or finite numbers, got others; leave out "
            "examples that have none"
        )
    return values


def _negative(values: Tensor) -> bool:
    return not values.is_floating_point() and bool((values < 0).any())
