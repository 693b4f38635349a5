"""From the tables to one number per network: a measure at a place of the network and a moment."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from theodolite_papers.alignment_zoo.tables import Zoo

__all__ = [
    "ABOVE_CHANCE",
    "FACTORS",
    "PLACES",
    "Predictor",
    "Predictors",
    "factor_codes",
    "has_fitted",
    "with_sources",
]

# The first layer, the last hidden one, the outputs, the mean over layers; one number of a network.
PLACES = ("first", "hidden", "output", "mean", "whole")
ABOVE_CHANCE = " above chance"  # suffix of a measure: its value minus its chance level
FACTORS = (
    "depth", "width", "activation", "normalisation", "optimiser", "rate", "batch", "decay", "noise",
    "examples", "scale",
)  # fmt: skip


@dataclass(frozen=True)
class Predictor:
    """A number of a network that may predict an outcome.

    Args:
        measure: its name in the tables; with ``ABOVE_CHANCE`` its excess over chance.
        place: one of ``PLACES``.
        moment: one of ``design.MOMENTS``.
        rises: whether a larger number predicts a larger outcome, as the pilot half has it.
        baseline: whether a user has it without this library.
    """

    measure: str
    place: str
    moment: str
    rises: bool = True
    baseline: bool = False

    @property
    def key(self) -> str:
        """``cka_target.first.final``: its column in a sample."""
        return f"{self.measure}.{self.place}.{self.moment}"

    @property
    def name(self) -> str:
        """``cka_target, first layer``, for a reader."""
        where = {"mean": "mean of layers", "whole": "", "hidden": "last hidden layer"}
        place = where.get(self.place, f"{self.place} layer")
        return f"{self.measure}, {place}" if place else self.measure

    @property
    def sign(self) -> float:
        """1 where a larger number predicts a larger outcome, else -1."""
        return 1.0 if self.rises else -1.0


# Baselines in addition to those of the tables: linear probes and nearest neighbours.
_LINEAR_PROBES = (
    "probe_accuracy", "neighbour_accuracy", "input_probe_accuracy", "input_neighbour_accuracy",
)  # fmt: skip
# Rows of a survey that are baselines already, or that only describe another row.
_NOT_JUDGED = (
    "accuracy", "loss", "subspace", "misalignment_floor", "random_basis_misalignment",
)  # fmt: skip
_LARGE = 1e30  # replaces infinity: larger than all other values, and finite


@dataclass(frozen=True)
class Predictors:
    """Numbers of the networks of a zoo, on training examples with the labels as given."""

    zoo: Zoo

    @cached_property
    def _moments(self) -> Mapping[str, pd.DataFrame]:
        rows = self.zoo.measurements
        rows = rows[rows["probe"] == "train"]
        return {str(m): part for m, part in rows.groupby("moment", observed=True)}

    def at(self, moment: str) -> pd.DataFrame:
        """Networks by (measure, place), in the order of ``zoo.networks``.

        A measure with a chance level stands there twice, also as its excess over it.
        """
        names = self.zoo.networks["network"].astype(str)
        if moment not in self._moments:
            return pd.DataFrame(index=names)
        rows = self._moments[moment].astype({"network": str, "measure": str})
        if "null_mean" in rows:
            known = rows[rows["null_mean"].notna()]
            excess = known["value"] - known["null_mean"]
            known = known.assign(value=excess, measure=known["measure"] + ABOVE_CHANCE)
            rows = pd.concat([rows, known])
        whole, layered = rows[rows["layer"] < 0], rows[rows["layer"] >= 0]
        top = layered.groupby("network")["layer"].transform("max")
        parts = {
            "whole": whole,
            "first": layered[layered["layer"] == 0],
            "hidden": layered[layered["layer"] == (top - 1).clip(lower=0)],
            "output": layered[layered["layer"] == top],
            "mean": layered,
        }
        columns = {
            (measure, place): values
            for place, part in parts.items()
            for measure, values in _by_measure(part)
        }
        return pd.DataFrame(columns, index=names)

    def values(self, predictors: Sequence[Predictor]) -> np.ndarray:
        """(networks, predictors): signed so that a larger number predicts a larger outcome."""
        tables = {moment: self.at(moment) for moment in {p.moment for p in predictors}}
        columns = []
        for one in predictors:
            table, key = tables[one.moment], (one.measure, one.place)
            known = key in table
            values = table[key].to_numpy(np.float64) if known else np.full(len(table), np.nan)
            columns.append(one.sign * np.clip(values, -_LARGE, _LARGE))
        return np.array(columns).reshape(len(predictors), -1).T

    def candidates(self, moments: Sequence[str]) -> list[Predictor]:
        """Every measure at every place and moment that a fifth of the networks have."""
        family = self.zoo.measurements.astype({"measure": str, "family": str})
        baselines = set(family[family["family"] == "baseline"]["measure"]) | set(_LINEAR_PROBES)
        return [
            Predictor(
                measure, place, moment, baseline=measure.removesuffix(ABOVE_CHANCE) in baselines
            )
            for moment in moments
            for table in (self.at(moment),)
            for measure, place in map(tuple, table.columns)
            if measure.removesuffix(ABOVE_CHANCE) not in _NOT_JUDGED
            and table[measure, place].notna().mean() > 0.2
        ]


def _by_measure(part: pd.DataFrame) -> Iterator[tuple[str, "pd.Series[float]"]]:
    table = part.groupby(["measure", "network"])["value"].mean()  # of several layers: their mean
    for measure in table.index.get_level_values(0).unique():
        yield str(measure), table[measure]


def factor_codes(networks: pd.DataFrame) -> dict[str, np.ndarray]:
    """Factor -> 0, 1, ... for its values; data set and architecture are factors too."""
    levels = {"rate": "rate_level", "decay": "decay_level"}  # values depend on the optimiser
    columns = {name: levels.get(name, name) for name in ("data", "family", *FACTORS)}
    return {
        name: np.unique(networks[column].astype(str).to_numpy().astype(str), return_inverse=True)[1]
        for name, column in columns.items()
    }


def has_fitted(networks: pd.DataFrame) -> np.ndarray:
    """Which networks went most of the way from guessing to all right on their training set."""
    return ~networks["outcome"].astype(str).isin(["not fitted", "diverged"]).to_numpy()


def with_sources(zoo: Zoo) -> pd.DataFrame:
    """The transfers with the factors of their sources, and ``source_`` test and train accuracy."""
    networks = zoo.networks.assign(network=zoo.networks["network"].astype(str))
    networks = networks.rename(
        columns={name: f"source_{name}" for name in ("test_accuracy", "train_accuracy")}
    )
    transfers = zoo.transfers.assign(network=zoo.transfers["network"].astype(str))
    return transfers.merge(networks, on="network", how="left", suffixes=("", "_source"))
