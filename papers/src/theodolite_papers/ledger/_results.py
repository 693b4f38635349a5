"""What a run of a study leaves behind, and several of them together."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from theodolite.errors import UnknownNameError

__all__ = ["Measured", "Number", "Result", "Results"]

Number = float | int | np.number[Any]


@dataclass(frozen=True)
class Measured:
    """What the function of a study returns: named numbers, and arrays for its figure.

    Args:
        numbers: name -> value; nan where it is undefined.
        arrays: name -> small array (float32 is enough for a picture).
        notes: name -> text, such as which data set stood in.
    """

    numbers: Mapping[str, Number]
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Result(Measured):
    """A run: what was measured, and where.

    Args:
        point: settings of a sweep; empty if nothing was swept.
        seed: of the run.
        size: "smoke", "lite" or "paper".
        seconds: how long it took by the clock.
        processor_seconds: how long its process computed on the CPU; nan if not known.
        config: every setting, as plain data.
    """

    point: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    size: str = ""
    seconds: float = 0.0
    processor_seconds: float = math.nan
    config: Mapping[str, Any] = field(default_factory=dict)

    def __getitem__(self, name: str) -> float:
        """One number."""
        if name not in self.numbers:
            raise UnknownNameError("number", name, self.numbers)
        return float(self.numbers[name])


@dataclass(frozen=True)
class Results:
    """Runs of one study, in order of point and seed."""

    runs: tuple[Result, ...]

    def __iter__(self) -> Iterator[Result]:
        return iter(self.runs)

    def __len__(self) -> int:
        return len(self.runs)

    def __getitem__(self, name: str) -> np.ndarray:
        """One number of every run."""
        return np.array([run[name] for run in self.runs], dtype=np.float64)

    def array(self, name: str) -> np.ndarray:
        """One array of every run, stacked along a new first axis."""
        return np.stack([run.arrays[name] for run in self.runs])

    def mean(self, name: str) -> float:
        """One number averaged over the runs."""
        return float(self[name].mean())

    def where(self, **settings: Any) -> "Results":
        """The runs whose point has these settings."""
        return self.chosen(lambda run: all(run.point.get(k) == v for k, v in settings.items()))

    def chosen(self, keep: Callable[[Result], bool]) -> "Results":
        """The runs that ``keep`` accepts."""
        return Results(tuple(run for run in self.runs if keep(run)))

    def by_seed(self) -> Mapping[int, "Results"]:
        """The runs of each seed."""
        seeds: Sequence[int] = sorted({run.seed for run in self.runs})
        return {s: Results(tuple(run for run in self.runs if run.seed == s)) for s in seeds}
