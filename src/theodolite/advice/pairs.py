"""Similarities of all pairs of layers of two models: the most similar pair, and chance."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from theodolite.advice.captions import layer_words
from theodolite.advice.findings import LEVEL
from theodolite.records import CHANCE, plain, shown

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class LayerSimilarity:
    """One similarity of every pair of layers, also for permuted examples.

    Args:
        values: layers of the first model in rows, of the second in columns.
        chance_mean: mean over permutations, of the same shape.
        chance_sd: standard deviation over permutations.
        permuted_largest: the largest of all pairs in each permutation.
    """

    values: "pd.DataFrame"
    chance_mean: np.ndarray = field(repr=False)
    chance_sd: np.ndarray = field(repr=False)
    permuted_largest: np.ndarray = field(repr=False)

    @property
    def largest(self) -> tuple[str, str, float]:
        """The most similar pair and its value."""
        numbers = self.values.to_numpy(dtype=float)
        i, j = map(int, np.unravel_index(np.nanargmax(numbers), numbers.shape))
        return str(self.values.index[i]), str(self.values.columns[j]), float(numbers[i, j])

    @property
    def p_value(self) -> float:
        """Share of permutations whose largest pair is as large; nan without permutations.

        The largest of many pairs is large by chance alone, so it is compared with the largest of
        permuted pairs.
        """
        if not len(self.permuted_largest):
            return float("nan")
        larger = int((self.permuted_largest >= self.largest[2]).sum())
        return (1 + larger) / (1 + len(self.permuted_largest))

    @property
    def beyond_chance(self) -> int:
        """Pairs more than two standard deviations above chance."""
        return int((self.values.to_numpy() > self.chance_mean + CHANCE * self.chance_sd).sum())

    def sentence(self, names: tuple[str, str]) -> str:
        """The most similar pair and its chance level."""
        if not np.isfinite(self.values.to_numpy(dtype=float)).any():
            return "Undefined for every pair of layers."
        first, second, value = self.largest
        ends = zip((first, second), names, strict=True)
        pair = " and ".join(f"{layer_words(layer)} of {plain(name)}" for layer, name in ends)
        if not len(self.permuted_largest):
            return f"{pair} are most similar ({shown(value)}). No chance level was measured."
        most = shown(float(self.permuted_largest.max()))
        drawn = f"the largest of {len(self.permuted_largest)} permutations is {most}"
        if self.p_value > 1 - LEVEL:
            return f"No pair is more similar than chance: at most {shown(value)}; {drawn}."
        beyond = f"{self.beyond_chance} of {self.values.size} pairs are beyond chance"
        return f"{pair} are most similar ({shown(value)}; {drawn}). {beyond}."


@dataclass(frozen=True)
class LayerPairs:
    """Debiased CKA and mutual nearest neighbours of every pair of layers.

    Args:
        cka: 1 if the same examples are similar in both layers; wide layers have high values.
        neighbours: share of the nearest neighbours of an example that two layers have in common.
        nearest: number of neighbours.
    """

    cka: LayerSimilarity
    neighbours: LayerSimilarity
    nearest: int

    @property
    def neighbours_reading(self) -> str:
        """How to read a map of mutual nearest neighbours."""
        return (
            f"Share of the {self.nearest} nearest neighbours of an example that both layers have "
            "in common."
        )
