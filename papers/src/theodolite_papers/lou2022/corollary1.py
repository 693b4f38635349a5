"""Corollary 1: forward and backward loss balance at a layer of order L^(3/5), for very large L."""

from dataclasses import replace
from math import isnan, nan

import numpy as np

from theodolite.theory.infinite_width import asymptotic_equilibrium_layer, equilibrium_layer
from theodolite_papers.ledger import (
    Claim,
    Line,
    Measured,
    Outcome,
    Panel,
    Points,
    Results,
    Study,
    Trial,
    outcome,
)
from theodolite_papers.lou2022._hierarchy import as_array
from theodolite_papers.lou2022._random_nets import (
    CONFIGS,
    LITE,
    RandomNets,
    finite_cosines,
    log_slope,
)

__all__ = ["STUDY"]

_COSINES = (-1.0, 0.0, 0.3, 0.6)
_PRACTICAL = np.arange(10, 101, 10)


def measure(config: RandomNets, trial: Trial) -> Measured:
    """Slopes of the exact balance at practical and great depths; crossings in finite networks."""
    numbers = {}
    for cosine in _COSINES:
        balance = np.asarray([equilibrium_layer(int(d), cosine) for d in _PRACTICAL])
        numbers[f"slope {cosine:g}"] = log_slope(_PRACTICAL, balance)
    great = np.asarray([config.recursion // 10, config.recursion])
    layers = np.asarray([equilibrium_layer(int(d), 0.3) for d in great])
    numbers["great_slope"] = log_slope(great, layers)
    numbers["over_law"] = float(layers[-1] / asymptotic_equilibrium_layer(int(great[-1])))
    forward = finite_cosines(config, trial, "forward")
    backward = finite_cosines(config, trial, "backward")
    cosines = np.asarray(config.cosines)
    crossings = np.asarray([_crossing(1 - forward[c], backward[c]) for c in config.cosines])
    # Inputs of squared length d have q* = 2: the loss of information is 1 - c.
    exact = np.asarray([equilibrium_layer(config.depth, c, q_star=2.0) for c in config.cosines])
    numbers["finite_error"] = float(np.nanmax(np.abs(crossings / exact - 1)))
    arrays = {"cosines": cosines, "crossings": crossings, "exact": exact}
    return Measured(numbers, {name: as_array(values) for name, values in arrays.items()})


def _crossing(falling: np.ndarray, rising: np.ndarray) -> float:
    """Layer at which a falling curve meets a rising one, between layers on the logarithms."""
    excess = np.log(np.clip(falling, 1e-12, None)) - np.log(np.clip(rising, 1e-12, None))
    crossed = np.flatnonzero(excess <= 0)
    if not len(crossed):
        return nan
    first = int(crossed[0])
    if first == 0:
        return 1.0
    before, after = excess[first - 1], excess[first]
    return float(first + before / (before - after))


def _practical(runs: Results) -> Outcome:
    found = {name: runs[name][0] for name in runs.runs[0].numbers if name.startswith("slope")}
    return outcome(all(0.7 <= value <= 1.0 for value in found.values()), **found)


def _law_at_practical(runs: Results) -> Outcome:
    found = {name: runs[name][0] for name in runs.runs[0].numbers if name.startswith("slope")}
    return outcome(all(abs(value - 0.6) <= 0.05 for value in found.values()), **found)


def _great(runs: Results) -> Outcome:
    slope, ratio = runs["great_slope"][0], runs["over_law"][0]
    return outcome(abs(slope - 0.6) <= 0.02, slope=slope, over_law=ratio)


def _finite(runs: Results) -> Outcome:
    error = runs["finite_error"][0]
    return outcome(None if isnan(error) else error <= 1 / 3, largest_relative_error=error)


def draw(runs: Results) -> list[Panel]:
    """The exact balance beside the law, and the crossings of finite networks."""
    depths = np.unique(np.geomspace(10, 2_000, 13).astype(int))
    lines = [
        Line(f"exact, cosine {c:g}", depths, [equilibrium_layer(int(d), c) for d in depths])
        for c in (0.0, 0.6)
    ]
    law = [asymptotic_equilibrium_layer(int(d)) for d in depths]
    lines.append(Line("3/5 law", depths, law, dashed=True))
    x = runs.array("cosines").flatten()
    points = [
        Points("finite networks", x, runs.array("crossings").flatten()),
        Points("exact", x, runs.array("exact").flatten()),
    ]
    return [
        Panel("Corollary 1", lines, "depth", "layer of the balance", "xy"),
        Panel("finite networks", points, "cosine of the inputs", "layer of the balance"),
    ]


STUDY = Study(
    id="lou2022.corollary1",
    title="The layer where both losses of information balance",
    shows=("Corollary 1",),
    measure=measure,
    configs={**CONFIGS, "paper": replace(CONFIGS["paper"], recursion=300_000)},
    seeds={"paper": (101, 102, 103)},
    claims=(
        Claim(
            "lou2022.corollary1.great",
            "at depths of 10,000 to 100,000 the balance grows with exponent 3/5 (within 0.02)",
            _great,
        ),
        Claim(
            "lou2022.corollary1.practical",
            "over depths 10 to 100 it grows with exponents of 0.7 to 1.0, by the inputs' cosine",
            _practical,
            fragile="not in the paper: worked out from its own recursion",
        ),
        Claim(
            "lou2022.corollary1.law-at-practical",
            "over depths 10 to 100 the exponent is 3/5 (within 0.05)",
            _law_at_practical,
            fragile="how the paper uses the corollary in Figure 3; 3/5 is asymptotic",
        ),
        Claim(
            "lou2022.corollary1.finite",
            "in finite networks the two losses cross within a third of the exact balance",
            _finite,
        ),
    ),
    draw=draw,
    stand_in={"lite": LITE},
)
