"""How much of the time of a training may go into measuring it."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from theodolite.errors import DomainError

__all__ = ["Budget"]


class Budget:
    """Time that measuring takes, held against the time that training takes beside it.

    A measurement is put off until what was spent before is no more than a share of the training so
    far. So long runs come down to that share, and it is never predicted what a measurement costs.

    Args:
        share: of the time of the training, such as 0.05; None for any.
        clock: gives seconds; another one makes what is measured, and when, reproducible.

    Raises:
        DomainError: If the share is not positive.

    Example:
        >>> now = 0.0
        >>> budget = Budget(0.1, clock=lambda: now)
        >>> with budget.measuring():
        ...     now += 2
        >>> now += 10
        >>> budget.overhead, budget.allows()
        (0.2, False)
        >>> now += 10
        >>> budget.overhead, budget.allows()
        (0.1, True)
    """

    def __init__(
        self, share: float | None = None, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        if share is not None and not share > 0:
            raise DomainError(
                f"budget: expected a positive share of the training's time, such as 0.05, got "
                f"{share}; leave budget= out to measure at every step that is due"
            )
        self.share, self._clock = share, clock
        self._begun, self._spent = clock(), 0.0

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """What happens inside is no training."""
        start = self._clock()
        try:
            yield
        finally:
            self._spent += self._clock() - start

    @property
    def overhead(self) -> float:
        """Time spent on measuring, as a share of all other time since the start."""
        training = self._clock() - self._begun - self._spent
        return self._spent / training if training > 0 else float("inf") if self._spent else 0.0

    def allows(self) -> bool:
        """Whether there is time for a measurement."""
        return self.share is None or self.overhead <= self.share
