"""Spaces of settings: grids, and random draws from distributions."""

import hashlib
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from theodolite.errors import DomainError

__all__ = ["LogUniform", "Point", "Space", "Uniform", "point_name"]

Point = Mapping[str, Any]  # setting -> value; plain data


@dataclass(frozen=True)
class Uniform:
    """A real number between two bounds."""

    low: float
    high: float

    def draw(self, generator: np.random.Generator) -> float:
        """One value."""
        return float(generator.uniform(self.low, self.high))


@dataclass(frozen=True)
class LogUniform:
    """A positive real number whose logarithm is uniform."""

    low: float
    high: float

    def draw(self, generator: np.random.Generator) -> float:
        """One value."""
        return float(math.exp(generator.uniform(math.log(self.low), math.log(self.high))))


@dataclass(frozen=True)
class Space:
    """The settings of a sweep.

    Every combination of ``grid`` is used. With ``draws`` each combination gets ``samples`` random
    draws. A setting in both is an error, and so is an empty list of values.

    Args:
        grid: setting -> its values.
        draws: setting -> a distribution, or a list to choose from.
        samples: number of random draws for each point of the grid.
        seed: seed of the draws; equal spaces give equal points.

    Examples:
        >>> [dict(point) for point in Space({"depth": [2, 4], "width": [8]}).points()]
        [{'depth': 2, 'width': 8}, {'depth': 4, 'width': 8}]
    """

    grid: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    draws: Mapping[str, Uniform | LogUniform | Sequence[Any]] = field(default_factory=dict)
    samples: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        both = sorted(set(self.grid) & set(self.draws))
        if both:
            raise DomainError(f"space: expected each setting once, got {both} in grid and draws")
        empty = sorted(name for name, values in self.grid.items() if not len(values))
        if empty:
            raise DomainError(f"space: expected at least one value for {empty}, got none")

    def points(self) -> list[Point]:
        """All points, in a fixed order."""
        generator = np.random.default_rng(self.seed)
        combinations = itertools.product(*self.grid.values())
        grid = [dict(zip(self.grid, values, strict=True)) for values in combinations]
        if not self.draws:
            return list(grid)
        return [
            {**point, **{name: _drawn(law, generator) for name, law in self.draws.items()}}
            for point in grid
            for _ in range(self.samples)
        ]


def point_name(point: Point) -> str:
    """A short name that equal points share; "" for a point without settings.

    Examples:
        >>> point_name({}), point_name({"b": 1, "a": 2}) == point_name({"a": 2, "b": 1})
        ('', True)
    """
    if not point:
        return ""
    text = json.dumps(point, sort_keys=True, allow_nan=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def _drawn(law: Uniform | LogUniform | Sequence[Any], generator: np.random.Generator) -> Any:
    if isinstance(law, (Uniform, LogUniform)):
        return law.draw(generator)
    return law[int(generator.integers(len(law)))]
