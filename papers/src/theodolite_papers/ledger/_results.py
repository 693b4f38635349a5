"""Runs of a study: their numbers, seeds and settings."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from theodolite.errors import UnknownNameError

__all__ = ["LARGE", "Measured", "Number", "Numbers", "Result", "Results", "counted", "run_label"]

Number = float | int | np.number[Any]
Numbers = Sequence[float] | np.ndarray
LARGE = ("reduced", "published")  # sizes on the paper's own data


@dataclass(frozen=True)
class Measured:
    """The result of a study's function: named numbers, and arrays for its figure.

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
    """A run: its numbers, seed and settings.

    Args:
        point: settings of a sweep; empty if nothing was swept.
        seed: of the run.
        size: "smoke", "lite", "reduced" or "published".
        seconds: how long it took by the clock.
        processor_seconds: how long its process computed on the CPU; nan if not known.
        config: every setting, as plain data.
        claims: digest of the study's claims when it was made. This and what follows is empty in
            records before version 0.2.0.
        commit: of the code.
        device: where networks were trained, with its name.
        threads: of the process.
    """

    point: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    size: str = ""
    seconds: float = 0.0
    processor_seconds: float = math.nan
    config: Mapping[str, Any] = field(default_factory=dict)
    claims: str = ""
    commit: str = ""
    device: str = ""
    threads: int = 0

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

    @property
    def first(self) -> Result:
        """The first run; the only one where a claim is about single runs."""
        return self.runs[0]

    def array(self, name: str) -> np.ndarray:
        """One array of every run, stacked along a new first axis."""
        return np.stack([run.arrays[name] for run in self.runs])

    def mean(self, name: str) -> float:
        """One number averaged over the runs."""
        return float(self[name].mean())

    def means(self, names: Mapping[str, str]) -> dict[str, float]:
        """Label -> mean over the runs, from label -> name of a number."""
        return {label: self.mean(name) for label, name in names.items()}

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

    def without_each(self, networks: bool = False) -> list["Results"]:
        """The runs without those of one seed, for every seed; or without one run, for every run."""
        if networks:
            runs = self.runs
            return [Results(runs[:k] + runs[k + 1 :]) for k in range(len(runs))]
        seeds = sorted({run.seed for run in self.runs})
        return [Results(tuple(run for run in self.runs if run.seed != s)) for s in seeds]


def run_label(seed: int, point: Mapping[str, object]) -> str:
    """The name of a run in messages: its seed, and its settings if any."""
    settings = ", ".join(f"{name} {value}" for name, value in point.items())
    return f"seed {seed}, {settings}" if settings else f"seed {seed}"


def counted(number: int, noun: str) -> str:
    """``1 seed``, ``5 seeds``."""
    return f"{number} {noun}{'s' if number != 1 else ''}"
