"""Moments of layers' inputs when every process has seen some of the examples."""

from collections.abc import Mapping, Sequence

import torch

from theodolite._distributed import Processes
from theodolite.linalg import Moments

__all__ = ["shared_moments"]


def shared_moments(
    processes: Processes,
    moments: Mapping[str, Moments],
    owners: Mapping[str, int],
    device: torch.device,
) -> dict[str, Moments]:
    """Moments of all examples, each layer's at the process that owns it.

    Everybody moves the sums to the shift of the first process that has any, then they add up:
    O(d²) numbers per layer and process, whatever the number of examples.

    Args:
        processes: those that take part.
        moments: of this process's examples; empty if it has none.
        owners: layer -> process that gets its moments; the same everywhere.
        device: where the moments should lie.
    """
    if processes.alone:
        return dict(moments)
    seen: Sequence[list[str]] = processes.gather(list(moments))
    first = next(rank for rank, names in enumerate(seen) if names)
    shifts = {name: found.shift.cpu() for name, found in moments.items()}
    common = processes.spread(shifts, first)
    added = {
        name: _added(processes, moments.get(name), common[name].to(device), owner)
        for name, owner in owners.items()
    }
    return {name: total for name, total in added.items() if total is not None}


def _added(
    processes: Processes, part: Moments | None, shift: torch.Tensor, owner: int
) -> Moments | None:
    """Sums of everybody about one shift, at the owner."""
    width = len(shift)
    if part is None:
        packed = shift.new_zeros(1 + width + width * width)
    else:
        moved = part.rebase(shift)
        packed = torch.cat([moved.count.reshape(1), moved.total, moved.scatter.flatten()])
    total = processes.sum(packed, owner)
    if processes.rank != owner:
        return None
    count, sums, scatter = torch.split(total, [1, width, width * width])
    return Moments(count.squeeze(0), shift, sums, scatter.reshape(width, width))
