"""Tangent kernels and moments that several processes compute together."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from theodolite._distributed import Processes
from theodolite.engine._tangents import TangentKernels, tangent_kernels
from theodolite.engine.batches import Batch
from theodolite.engine.layers import Layers
from theodolite.linalg import Moments


def shared_tangent_kernels(
    model: nn.Module,
    batch: Batch,
    layers: Layers,
    owners: Mapping[str, int],
    processes: Processes,
    **options: Any,
) -> TangentKernels:
    """Tangent kernels of all examples, each layer's at the process that owns it.

    Examples are dealt out in consecutive parts. A process computes the kernel of its part with
    itself and with the parts of the processes that follow, half of the way around: every pair of
    parts once. Tiles go to the owners of the layers, which put them together and mirror them.

    Args:
        model: the same everywhere.
        batch: all examples, the same everywhere.
        layers: as for :func:`tangent_kernels`.
        owners: layer -> process that gets its kernel; the same everywhere.
        processes: those that take part.
        options: of :func:`tangent_kernels`.

    Returns:
        The kernels of this process's layers; coverage is that of all layers, outputs are those of
        its part of the examples.
    """
    if processes.alone:
        return tangent_kernels(model, batch, layers, **options)
    ring = _Ring(processes, len(batch))
    own = other = None
    with processes.together():
        if ring.own:
            own = tangent_kernels(model, batch.take(ring.own), layers, **options)
        if ring.own and ring.following:
            second = batch.take(ring.following)
            options |= {"check": False}  # the same passes were compared with autograd before
            other = tangent_kernels(model, batch.take(ring.own), layers, other=second, **options)
    known = processes.gather(None if own is None else (list(own), own.coverage))
    names, coverage = next(entry for entry in known if entry is not None)
    empty = next(model.parameters()).new_empty(0)
    found: dict[str, Tensor] = {}
    for name in names:
        diagonal = processes.collect(empty if own is None else own[name], owners[name])
        following = processes.collect(empty if other is None else other[name], owners[name])
        if owners[name] == processes.rank:
            found[name] = ring.assemble(diagonal, following)
    outputs = empty if own is None else own.outputs
    return TangentKernels(found, coverage, outputs, 0 if own is None else own.predicted_bytes)


@dataclass(frozen=True)
class _Ring:
    """Which pairs of examples each process sees."""

    processes: Processes
    count: int

    @property
    def own(self) -> list[int]:
        return self._part(self.processes.rank)

    @property
    def following(self) -> list[int]:
        return self._following(self.processes.rank)

    def _part(self, rank: int) -> list[int]:
        part = self.processes.part(self.count, rank)
        return list(range(part.start, part.stop))

    def _following(self, rank: int) -> list[int]:
        """Examples of the next half of the ring; of two opposite parts one looks at the other."""
        size = self.processes.size
        last = size // 2 if size % 2 or rank < size // 2 else size // 2 - 1
        return [index for step in range(1, last + 1) for index in self._part((rank + step) % size)]

    def assemble(self, diagonal: list[Tensor], following: list[Tensor]) -> Tensor:
        """One kernel from everybody's tiles."""
        tiles = [*self._placed(diagonal, following)]
        shape = list(tiles[0][2].shape)
        axis = len(shape) // 2  # (n, n) or (n, c, n, c)
        shape[0] = shape[axis] = self.count
        kernel = tiles[0][2].new_empty(shape)
        for rows, columns, tile in tiles:
            span, where = (rows[0], len(rows)), torch.tensor(columns, device=tile.device)
            kernel.narrow(0, *span).index_copy_(axis, where, tile)
            mirrored = tile.movedim(tuple(range(axis)), tuple(range(axis, 2 * axis)))
            kernel.narrow(axis, *span).index_copy_(0, where, mirrored)
        return kernel

    def _placed(
        self, diagonal: list[Tensor], following: list[Tensor]
    ) -> Iterator[tuple[list[int], list[int], Tensor]]:
        for rank in range(self.processes.size):
            rows, columns = self._part(rank), self._following(rank)
            if rows:
                yield rows, rows, diagonal[rank]
            if rows and columns:
                yield rows, columns, following[rank]


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
