"""When a monitor measures."""

from collections.abc import Callable, Collection
from typing import Any

from theodolite.checks import require_count
from theodolite.errors import DomainError

__all__ = ["Every", "described", "draws_curves", "schedule"]

_LAST_DOUBLING = 2**8  # with the last step in full that makes eleven steps with curves

Every = int | Collection[int] | Callable[[int], bool] | str


def schedule(every: Every) -> Callable[[int], bool]:
    """Whether a step is due."""
    if callable(every):
        return lambda step: bool(every(step))
    if isinstance(every, str):
        if every != "log":
            raise DomainError(
                f'every: expected a number, steps, a function or "log", got {every!r}'
            )
        return _is_logarithmic
    if isinstance(every, int):
        require_count(1, every=every)
        return lambda step: step % every == 0
    steps = frozenset(every)
    return lambda step: step in steps


def _is_logarithmic(step: int) -> bool:
    """0 to 4, and then steps that grow by a quarter: 5, 6, 7, 8, 10, 12, 15, 18, ..."""
    due = 5
    while due < step:
        due = max(due + 1, due * 5 // 4)
    return step < 5 or step == due


def described(every: Every) -> Any:
    """The schedule as plain data for the record."""
    if callable(every):
        return str(getattr(every, "__name__", type(every).__name__))
    return every if isinstance(every, (int, str)) else sorted(every)


def draws_curves(index: int) -> bool:
    """Whether the measurement of this index keeps curves: 0, 1, 2, 4, ..., ten at most."""
    return index < 2 or (index & (index - 1) == 0 and index <= _LAST_DOUBLING)
