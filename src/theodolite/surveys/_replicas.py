"""One model in several processes: the same weights, and for a while the same buffers."""

from collections.abc import Iterator
from contextlib import contextmanager
from math import isnan

import torch
from torch import Tensor, nn

from theodolite._distributed import Processes
from theodolite.errors import DomainError

__all__ = ["alike"]

_ROUNDING = 1e-9  # of a norm: sums may be taken in another order on another device


@contextmanager
def alike(model: nn.Module, processes: Processes) -> Iterator[None]:
    """Require equal weights everywhere, and run a block with the buffers of the first process.

    Running statistics of batch norm differ between the replicas of data-parallel training; a
    measurement takes those of the first process, which is the one that saves checkpoints. Own
    buffers are put back.

    Raises:
        DomainError: If the weights differ between processes.
    """
    if processes.alone:
        yield
        return
    _require_equal(model, processes)
    buffers = dict(model.named_buffers())
    first = processes.spread({name: buffer.detach().cpu() for name, buffer in buffers.items()})
    saved = {name: buffer.detach().clone() for name, buffer in buffers.items()}
    try:
        _put(buffers, first)
        yield
    finally:
        _put(buffers, saved)


def _put(buffers: dict[str, Tensor], values: dict[str, Tensor]) -> None:
    with torch.no_grad():
        for name, buffer in buffers.items():
            buffer.copy_(values[name])


def _require_equal(model: nn.Module, processes: Processes) -> None:
    with processes.together():
        own = {name: _fingerprint(value) for name, value in model.named_parameters()}
    first = processes.spread(own)
    with processes.together():
        missing = set(own) ^ set(first)
        different = missing or {name for name in own if not _same(own[name], first[name])}
        if different:
            raise DomainError(
                f"model: expected the same weights in every process, {min(different)!r} differs "
                "from that of process 0; load one checkpoint everywhere, or gather a sharded "
                "model first"
            )


def _fingerprint(value: Tensor) -> tuple[tuple[int, ...], float, float]:
    """Shape, norm, and a sum that notices an exchange of entries."""
    wide = value.detach().double().flatten()
    return tuple(value.shape), float(wide.norm()), float(wide[::2].sum() - wide[1::2].sum())


def _same(
    own: tuple[tuple[int, ...], float, float], first: tuple[tuple[int, ...], float, float]
) -> bool:
    pairs = zip(own[1:], first[1:], strict=True)
    near = (abs(mine - theirs) <= _ROUNDING * first[1] for mine, theirs in pairs)
    diverged = isnan(first[1]) and isnan(own[1])  # the measures have better words for it
    return own[0] == first[0] and (diverged or all(near))
