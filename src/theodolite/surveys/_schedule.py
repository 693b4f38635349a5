"""When a monitor measures, and how much of it."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from theodolite.checks import require_count
from theodolite.errors import DomainError, UnknownNameError
from theodolite.surveys._settings import FAMILIES

__all__ = ["SPARSE", "Cadence", "Every", "described", "schedule"]

_LAST_DOUBLING = 2**8  # with the last step in full that makes eleven steps with curves

# What takes most of the time of a measurement: decompositions, backward passes, and curves.
SPARSE: Mapping[str, int] = {"representation": 8, "tangent": 8, "gradient": 8, "curves": 16}
_PARTS = (*FAMILIES, "curves")

Every = int | Collection[int] | Callable[[int], bool] | str


def schedule(every: Every) -> Callable[[int], bool]:
    """Whether a step is due."""
    if callable(every):
        return lambda step: bool(every(step))
    if isinstance(every, str) and every == "log":
        return _is_logarithmic
    if isinstance(every, str) or not isinstance(every, (int, Iterable)):
        raise DomainError(
            f'every: expected a whole number, steps, a function or "log", got {every!r}'
        )
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


@dataclass(frozen=True)
class Cadence:
    """Which parts of a measurement are due: a part of k at measurements 0, k, 2 k, ...

    Args:
        parts: family, or "curves", -> k; 1 for those that are not named.
    """

    parts: Mapping[str, int]

    @classmethod
    def of(
        cls, cadence: int | Mapping[str, int] | None, every: Every, families: Sequence[str]
    ) -> "Cadence":
        """What the user asked for, or the default.

        The default is sparse only for all families at a fixed distance: there the number of
        measurements grows with the training, and nobody has asked for a family by name.

        Raises:
            DomainError: If a number is below 1.
            UnknownNameError: If a part does not exist.
        """
        if cadence is None:
            everything = isinstance(every, int) and set(families) == set(FAMILIES)
            return cls(dict(SPARSE) if everything else {})
        if not isinstance(cadence, Mapping):
            require_count(1, cadence=cadence)
        chosen = dict(cadence) if isinstance(cadence, Mapping) else dict.fromkeys(_PARTS, cadence)
        for part, distance in chosen.items():
            if part not in _PARTS:
                raise UnknownNameError("part of cadence", part, _PARTS)
            require_count(1, **{f"cadence[{part!r}]": distance})
        return cls(chosen)

    def resting(self, index: int, families: Sequence[str]) -> dict[str, str]:
        """Families that are not due at the measurement of this index, with the reason."""
        distances = {family: self.parts.get(family, 1) for family in families}
        return {
            family: f"taken at one measurement in {distance}, and at the last"
            for family, distance in distances.items()
            if index % distance
        }

    def draws_curves(self, index: int) -> bool:
        """Whether the measurement of this index keeps curves: k times 0, 1, 2, 4, ..., 256."""
        turn, rest = divmod(index, self.parts.get("curves", 1))
        return not rest and (turn < 2 or (turn & (turn - 1) == 0 and turn <= _LAST_DOUBLING))

    def describe(self) -> dict[str, int]:
        """Plain data for the record: every part that is not always due."""
        return {part: distance for part, distance in self.parts.items() if distance > 1}
