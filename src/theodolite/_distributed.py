"""Processes that measure together, and the few collective operations that they use.

Before every exchange the processes confirm that none has failed. A process that fails takes part in
one such confirmation from its error handler. So all of them raise, and none waits for an answer
that will not come.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import isnan
from typing import Any

import torch
from torch import Tensor, nn

from theodolite.errors import (
    CaptureError,
    DomainError,
    MemoryLimitError,
    NotFiniteError,
    ProcessError,
    TheodoliteError,
)

__all__ = ["ALONE", "Group", "Processes", "alike"]

Group = Any  # "auto", None or a torch.distributed.ProcessGroup, a class that may not exist

# Errors that callers handle; the other processes raise the same class.
_HANDLED: tuple[type[TheodoliteError], ...] = (CaptureError, MemoryLimitError, NotFiniteError)
_ROUNDING = 1e-9  # relative; another device may add sums in another order


class Processes:
    """A group of processes, seen from one of them; a single process exchanges nothing.

    Args:
        group: a group of ``torch.distributed``; None for this process alone.
    """

    def __init__(self, group: Group = None) -> None:
        self._group = group
        self.rank, self.size = 0, 1
        self._agreed: BaseException | None = None
        if group is not None:
            self.rank = torch.distributed.get_rank(group)
            self.size = torch.distributed.get_world_size(group)
        self.alone = self.size == 1  # a single process exchanges nothing

    @classmethod
    def of(cls, group: Group = "auto") -> "Processes":
        """The processes that the user's argument names.

        Args:
            group: ``"auto"`` for all processes if a process group is initialised, None for this
                process alone, or a group that contains it.

        Raises:
            DomainError: If this process is not in the group, or it is not a group.
        """
        named = group is None or (isinstance(group, str) and group == "auto")
        if not named and not _is_group(group):
            raise DomainError(
                'group: expected "auto", None or a process group of torch.distributed, got '
                f"{group!r}"
            )
        distributed = torch.distributed
        if group is None or not (distributed.is_available() and distributed.is_initialized()):
            return ALONE
        found = distributed.group.WORLD if isinstance(group, str) else group
        if distributed.get_rank(found) < 0:
            raise DomainError(
                "group: expected a group that this process belongs to, got a group without it; "
                "make the call only in processes of the group"
            )
        return cls(found) if distributed.get_world_size(found) > 1 else ALONE

    def part(self, count: int, rank: int | None = None) -> slice:
        """The consecutive items that a process, by default this one, works on."""
        which = self.rank if rank is None else rank
        return slice(count * which // self.size, count * (which + 1) // self.size)

    def owner(self, index: int) -> int:
        """The process that owns the item of this number."""
        return index % self.size

    @contextmanager
    def together(self) -> Iterator[None]:
        """Leave a block together: all succeed, or all raise the error of the first failure."""
        if self.alone:
            yield
            return
        try:
            yield
        except Exception as error:
            if not self._is_agreed(error):
                self._agree(error)
            raise
        self._agree(None)

    def gather(self, value: Any) -> list[Any]:
        """Small objects of all processes, in order of rank."""
        if self.alone:
            return [value]
        self._agree(None)
        return self._gathered(value)

    def sum(self, tensor: Tensor, to: int | None = None) -> Tensor:
        """Sum of the tensors of all processes, equal in shape and dtype, in all or one process."""
        if self.alone:
            return tensor
        self._agree(None)
        total = tensor.detach().to(self._device, copy=True).contiguous()
        distributed = torch.distributed
        if to is None:
            self._run(lambda: distributed.all_reduce(total, group=self._group))
        else:
            place = distributed.get_global_rank(self._group, to)
            self._run(lambda: distributed.reduce(total, place, group=self._group))
        return total.to(tensor.device)

    def collect(self, tensor: Tensor, to: int) -> list[Tensor]:
        """Tensors of all processes, of any shape, at one process in order of rank."""
        if self.alone:
            return [tensor]
        shapes = self.gather((tuple(tensor.shape), tensor.dtype))
        sizes = [torch.Size(shape).numel() * dtype.itemsize for shape, dtype in shapes]
        # Backends need equal lengths and do not send every dtype, so bytes are sent.
        sent = torch.zeros(max(sizes), dtype=torch.uint8, device=self._device)
        flat = tensor.detach().contiguous().flatten()
        sent[: sizes[self.rank]] = flat.view(torch.uint8).to(self._device)
        here = self.rank == to
        received = [torch.empty_like(sent) for _ in sizes] if here else None
        distributed = torch.distributed
        place = distributed.get_global_rank(self._group, to)
        self._run(lambda: distributed.gather(sent, received, place, group=self._group))
        parts = zip(received or (), sizes, shapes, strict=False)
        return [
            data[:size].view(dtype).reshape(shape).to(tensor.device)
            for data, size, (shape, dtype) in parts
        ]

    def spread(self, value: Any, source: int = 0) -> Any:
        """The object of one process, in every process; the objects of others are ignored."""
        if self.alone:
            return value
        self._agree(None)
        held = [value if self.rank == source else None]
        distributed = torch.distributed
        place = distributed.get_global_rank(self._group, source)
        self._run(
            lambda: distributed.broadcast_object_list(
                held, place, group=self._group, device=self._device
            )
        )
        return held[0]

    def share_failure(self, error: Exception | None) -> None:
        """All raise the error of the first process, if it has one; the others pass None."""
        if self.alone:
            if error is not None:
                raise error
            return
        failure = self.spread(
            None if error is None else (_described(error), self._is_agreed(error))
        )
        if failure is None:
            return
        if error is None and failure[1] and self._agreed is not None:
            raise self._agreed
        if error is None:
            kind, unexpected, text = failure[0]
            error = kind(f"process 0 of {self.size} failed: {text}")
            if isinstance(error, ProcessError):
                error.unexpected = unexpected
        self._agreed = error
        raise error

    def _agree(self, error: Exception | None) -> None:
        """Take part in the confirmation before every exchange; raise if a process failed."""
        flag = torch.tensor([int(error is not None)], device=self._device)
        distributed = torch.distributed
        largest = distributed.ReduceOp.MAX
        self._run(lambda: distributed.all_reduce(flag, largest, group=self._group))
        if not int(flag):
            return
        own = None if error is None else _described(error)
        failures = self._gathered(own)
        rank, first = next(item for item in enumerate(failures) if item[1] is not None)
        if error is not None and own == first:  # its own error, or one that several share
            self._agreed = error
            raise error
        kind, unexpected, text = first
        self._agreed = kind(f"process {rank} of {self.size} failed: {text}")
        if isinstance(self._agreed, ProcessError):
            self._agreed.unexpected = unexpected
        raise self._agreed from error

    def _gathered(self, value: Any) -> list[Any]:
        found: list[Any] = [None] * self.size
        distributed = torch.distributed
        self._run(lambda: distributed.all_gather_object(found, value, group=self._group))
        return found

    def _run(self, exchange: Callable[[], Any]) -> None:
        """Make an exchange; a broken exchange is not reported to the others."""
        try:
            exchange()
        except RuntimeError as error:
            self._agreed = ProcessError(
                f"expected all {self.size} processes of the group to take part, but the exchange "
                f"broke ({error}); a process has ended, or does not make this call: call it in "
                "every process, or pass group=None to measure in one alone"
            )
            raise self._agreed from error

    def _is_agreed(self, error: BaseException | None) -> bool:
        """Whether all processes know of this error, or of its cause."""
        while error is not None:
            if error is self._agreed:
                return True
            error = error.__cause__
        return False

    @property
    def _device(self) -> torch.device:
        if torch.distributed.get_backend(self._group) == "nccl":
            return torch.device("cuda", torch.cuda.current_device())
        return torch.device("cpu")


def _described(error: Exception) -> tuple[type[TheodoliteError], bool, str]:
    """The error that other processes raise, whether it is unexpected, and its message."""
    kind = next((kind for kind in _HANDLED if isinstance(error, kind)), ProcessError)
    return kind, not isinstance(error, TheodoliteError), f"{type(error).__name__}: {error}"


ALONE = Processes()


def _is_group(value: Any) -> bool:
    kind = getattr(torch.distributed, "ProcessGroup", None)
    if kind is None or isinstance(value, kind):
        return kind is not None
    return value is torch.distributed.GroupMember.NON_GROUP_MEMBER


@contextmanager
def alike(model: nn.Module, processes: Processes) -> Iterator[None]:
    """Require equal weights in all processes; run a block with the buffers of the first process.

    Running statistics of batch norm differ between the replicas of data-parallel training. A
    measurement uses those of the first process, which also saves checkpoints. Afterwards each
    process gets its own buffers back.

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
                "model: expected the same weights in every process, but here "
                f"{min(different)!r} differs from process 0; load one checkpoint everywhere, or "
                "gather a sharded model first"
            )


def _fingerprint(value: Tensor) -> tuple[tuple[int, ...], float, float]:
    """Shape, norm, and a sum that changes if entries are exchanged."""
    wide = value.detach().double().flatten()
    return tuple(value.shape), float(wide.norm()), float(wide[::2].sum() - wide[1::2].sum())


def _same(
    own: tuple[tuple[int, ...], float, float], first: tuple[tuple[int, ...], float, float]
) -> bool:
    pairs = zip(own[1:], first[1:], strict=True)
    near = (abs(mine - theirs) <= _ROUNDING * first[1] for mine, theirs in pairs)
    diverged = isnan(first[1]) and isnan(own[1])  # the measures report this better
    return own[0] == first[0] and (diverged or all(near))
