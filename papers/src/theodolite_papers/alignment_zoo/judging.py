"""Judging many predictors of one outcome: the same statistics for every question.

A :class:`Sample` is a table of numbers with a row per network. It also names the group of each
network, and the factor in which the network differs from the base of that group.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import numpy as np
import pandas as pd
from scipy.stats import kendalltau

from theodolite_papers.alignment_zoo.alarms import HARM
from theodolite_papers.alignment_zoo.predictors import FACTORS, factor_codes
from theodolite_papers.alignment_zoo.statistics import (
    area_under_curve,
    bootstrap_weights,
    granulated_tau,
    interval,
    kendall_tau,
    sign_errors,
    smallest_information,
)
from theodolite_papers.ledger import CORRELATION, SHARE

__all__ = [
    "ANSWERS",
    "CONTEXT",
    "DATA",
    "FAMILIES",
    "NOISE",
    "STATISTICS",
    "TRUTHS",
    "WRONG",
    "Sample",
    "Statistic",
    "area_table",
    "context",
    "possible_values",
    "rank_table",
    "wrong_answers",
]

DATA = ("digits", "mnist", "cifar10", "fashion_mnist", "cancer", "parity", "addition", "text")
FAMILIES = ("mlp", "cnn", "resnet", "transformer")
CHANGED = ("base", *FACTORS)
# Columns of every sample: numbers, so that a record can hold them.
CONTEXT = ("group", "changed", "data", "family", "noise")
ANSWERS = ("undecided", "learning", "memorising")
TRUTHS = ("not fitted", "learned", "between", "memorised", "diverged")


@dataclass(frozen=True)
class Sample:
    """Numbers of networks, by name.

    Args:
        names: of the columns; the first are ``CONTEXT``.
        table: (networks, columns); nan where a number is undefined.
    """

    names: tuple[str, ...]
    table: np.ndarray

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, name: str) -> np.ndarray:
        return self.table[:, self.names.index(name)]

    def where(self, keep: np.ndarray) -> "Sample":
        """The networks that are kept."""
        return Sample(self.names, self.table[keep])

    @cached_property
    def weights(self) -> np.ndarray:
        """(400, n): how often each network is drawn when whole groups are, with replacement."""
        return bootstrap_weights(self["group"], draws=400)

    @cached_property
    def stars(self) -> Mapping[str, Sequence[np.ndarray]]:
        """Factor -> sets of networks that differ in it alone: the base of a group and others."""
        found: dict[str, list[np.ndarray]] = {factor: [] for factor in FACTORS}
        group, changed = self["group"], self["changed"].astype(int)
        bases = dict(zip(group[changed == 0], np.flatnonzero(changed == 0), strict=True))
        others: dict[tuple[float, int], list[int]] = {}
        for row in np.flatnonzero(changed > 0):
            others.setdefault((group[row], int(changed[row])), []).append(int(row))
        for (name, code), rows in others.items():
            if name in bases:
                found[CHANGED[code]].append(np.array([bases[name], *rows]))
        return found

    @cached_property
    def environments(self) -> Mapping[str, np.ndarray]:
        """Pairs that differ in one factor: by factor, by data set and by architecture."""
        pairs = {
            factor: np.array([p for rows in sets for p in combinations(rows, 2)], int)
            for factor, sets in self.stars.items()
        }
        every = np.concatenate([p.reshape(-1, 2) for p in pairs.values()])
        of = every[:, 0]
        for column, words in (("data", DATA), ("family", FAMILIES)):
            codes = self[column][of]
            pairs |= {f"{column} {word}": every[codes == k] for k, word in enumerate(words)}
        return {name: found.reshape(-1, 2) for name, found in pairs.items() if len(found)}


def context(networks: pd.DataFrame) -> np.ndarray:
    """The columns ``CONTEXT`` of a sample."""
    columns = [networks["group"].to_numpy(np.float64)]
    for name, words in (("changed", CHANGED), ("data", DATA), ("family", FAMILIES)):
        columns.append(np.array([words.index(str(word)) for word in networks[name]], np.float64))
    return np.stack([*columns, networks["noise"].to_numpy(np.float64)], axis=1)


# Statistics that hypotheses are about: (sample, column) -> number. Every sample has its outcome in
# the column "outcome"; predictors are signed so that more predicts more.
Statistic = Callable[[Sample, str], float]
# Test accuracies differ by chance: two standard errors with 500 test examples.
NOISE = 0.04


def _mean(values: Sequence[float] | np.ndarray) -> float:
    """Mean of those that are defined."""
    known = np.asarray(values, np.float64)
    known = known[np.isfinite(known)]
    return float(known.mean()) if len(known) else float("nan")


def _tau(sample: Sample, name: str) -> float:
    x, y = sample[name], sample["outcome"]
    keep = np.isfinite(x) & np.isfinite(y)
    if keep.sum() < 50:
        return float(kendall_tau(x, y))
    return float(kendalltau(x[keep], y[keep], method="asymptotic").statistic)  # n log n


def _tau_clean(sample: Sample, name: str) -> float:
    return _tau(sample.where(sample["noise"] == 0), name)


def _granulated(sample: Sample, name: str) -> float:
    found = granulated_tau(sample[name], sample["outcome"], sample.stars)
    return _mean(list(found.values()))


def _worst(sample: Sample, name: str) -> float:
    errors = sign_errors(sample[name], sample["outcome"], sample.environments, NOISE)
    return max((v for v in errors.values() if np.isfinite(v)), default=float("nan"))


def _within_data(sample: Sample, name: str) -> float:
    """Mean over data sets of the rank correlation within one."""
    parts = [sample.where(sample["data"] == code) for code in np.unique(sample["data"])]
    return _mean([_tau(part, name) for part in parts])


def _area(sample: Sample, name: str) -> float:
    return float(area_under_curve(sample[name], sample["outcome"] > 0))


def _area_within_data(sample: Sample, name: str) -> float:
    parts = [sample.where(sample["data"] == code) for code in np.unique(sample["data"])]
    return _mean([_area(part, name) for part in parts])


# Of rules that stop training: columns "best", "end", and "kept:RULE", "alarm:RULE" of each.


def _lost(sample: Sample, rule: str) -> float:
    return _mean(sample["best"] - sample[f"kept:{rule}"])


def _lost_harmed(sample: Sample, rule: str) -> float:
    return _lost(sample.where(sample["best"] - sample["end"] > HARM), rule)


def _false_alarms(sample: Sample, rule: str) -> float:
    unharmed = sample.where(sample["best"] - sample["end"] <= HARM)
    return _mean(unharmed[f"alarm:{rule}"])


# Of the verdict: columns "answer" and "truth" as codes of ANSWERS and TRUTHS.


WRONG = {
    "wrong_learning": ("learning", "memorised"),
    "wrong_memorising": ("memorising", "learned"),
}


def wrong_answers(sample: Sample, statistic: str) -> np.ndarray:
    """Of every network with an answer whether it is wrong, for a statistic of ``WRONG``."""
    answer, truth = WRONG[statistic]
    said = sample.where(sample["answer"] == ANSWERS.index(answer))
    return np.asarray(said["truth"] == TRUTHS.index(truth))


def _share_of_wrong(statistic: str) -> Statistic:
    return lambda sample, _: _mean(wrong_answers(sample, statistic))


def _undecided(sample: Sample, _: str) -> float:
    return float(np.mean(sample["answer"] == ANSWERS.index("undecided")))


def _regret(sample: Sample, name: str) -> float:
    """Outcome lost by taking, of the sources of a group, the one with the best score."""
    lost = []
    for group in np.unique(sample["group"] * len(DATA) + sample["data"]):
        part = sample.where(sample["group"] * len(DATA) + sample["data"] == group)
        part = part.where(np.isfinite(part["outcome"]))
        if len(part) > 1 and np.isfinite(part[name]).any():
            best = part["outcome"][np.nanargmax(part[name])]
            lost.append(float(part["outcome"].max() - best))
    return _mean(lost)


STATISTICS: Mapping[str, Statistic] = {
    "tau": _tau,
    "tau_clean": _tau_clean,
    "granulated": _granulated,
    "worst": _worst,
    "tau_within_data": _within_data,
    "area": _area,
    "area_within_data": _area_within_data,
    "lost": _lost,
    "lost_harmed": _lost_harmed,
    "false_alarms": _false_alarms,
    **{statistic: _share_of_wrong(statistic) for statistic in WRONG},
    "undecided": _undecided,
    "regret": _regret,
}
_CORRELATIONS = ("tau", "tau_clean", "granulated", "tau_within_data")
_UNBOUNDED = ("lost", "lost_harmed", "regret")


def possible_values(statistic: str) -> tuple[float, float]:
    """Between which values a statistic always lies: a correlation, a share, or neither."""
    if statistic in _UNBOUNDED:
        return -math.inf, math.inf
    return CORRELATION if statistic in _CORRELATIONS else SHARE


def rank_table(
    sample: Sample, names: Sequence[str], networks: pd.DataFrame | None = None
) -> pd.DataFrame:
    """Every predictor of a continuous outcome, judged in every way.

    Args:
        sample: with the column "outcome".
        names: columns of the predictors, signed.
        networks: rows of the sample in the table of networks; their factors are what the
            conditional information is given. None leaves it out.

    Returns:
        By predictor: ``tau`` with ``low`` and ``high``, ``tau_clean`` (networks with true labels),
        ``within_data``, ``granulated`` and one ``granulated:FACTOR`` each, ``information`` with
        ``given`` (the two factors that leave least), ``worst`` and ``worst_90`` sign errors with
        ``worst_in``, and ``known``, the number of networks where it is defined.
    """
    codes = {} if networks is None else factor_codes(networks)
    outcome, rows = sample["outcome"], {}
    for name in names:
        values = sample[name]
        taus = granulated_tau(values, outcome, sample.stars)
        errors = sign_errors(values, outcome, sample.environments, NOISE)
        known = {k: v for k, v in errors.items() if np.isfinite(v)}
        low, high = interval(lambda w, v=values: kendall_tau(v, outcome, w), sample.weights)  # type: ignore[misc]
        rows[name] = {
            "tau": _tau(sample, name),
            "low": low,
            "high": high,
            "tau_clean": _tau_clean(sample, name),
            "within_data": _within_data(sample, name),
            "granulated": _mean(list(taus.values())),
            **{f"granulated:{factor}": value for factor, value in taus.items()},
            "worst": max(known.values(), default=float("nan")),
            "worst_in": max(known, key=lambda k: known[k], default=""),
            "worst_90": float(np.quantile(list(known.values()), 0.9)) if known else float("nan"),
            "known": int(np.isfinite(values).sum()),
        }
        if codes:
            information, given = smallest_information(values, outcome, codes)
            rows[name] |= {"information": information, "given": ", ".join(given)}
    return pd.DataFrame.from_dict(rows, orient="index")


def area_table(sample: Sample, names: Sequence[str]) -> pd.DataFrame:
    """Every predictor of a property (outcome 1 or 0): area under the curve, with its interval.

    Returns:
        By predictor: ``area`` with ``low`` and ``high``, ``within_data`` (mean over data sets),
        ``worst`` data set or architecture with ``worst_in``, and ``known``.
    """
    positive, rows = sample["outcome"] > 0, {}
    for name in names:
        values = sample[name]
        parts = {
            f"{column} {word}": _area(sample.where(sample[column] == code), name)
            for column, words in (("data", DATA), ("family", FAMILIES))
            for code, word in enumerate(words)
        }
        known = {k: v for k, v in parts.items() if np.isfinite(v)}
        low, high = interval(lambda w, v=values: area_under_curve(v, positive, w), sample.weights)  # type: ignore[misc]
        rows[name] = {
            "area": _area(sample, name),
            "low": low,
            "high": high,
            "within_data": _area_within_data(sample, name),
            "worst": min(known.values(), default=float("nan")),
            "worst_in": min(known, key=lambda k: known[k], default=""),
            "known": int(np.isfinite(values).sum()),
        }
    return pd.DataFrame.from_dict(rows, orient="index")
