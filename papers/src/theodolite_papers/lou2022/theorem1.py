"""Theorem 1: what a layer has lost of the input's geometry falls as its number to the power -2."""

from math import pi

import numpy as np

from theodolite.theory.infinite_width import forward_losses
from theodolite_papers.ledger import Claim, Measured, Outcome, Panel, Results, Study, Trial, outcome
from theodolite_papers.lou2022._random_nets import (
    CONFIGS,
    LITE,
    RandomNets,
    finite_cosines,
    largest_error,
    log_slope,
    pair_arrays,
    pair_lines,
    within_limits,
)

__all__ = ["STUDY"]

_LIMIT = 4.5 * pi**2  # of l^2 (1 - c_l)


def measure(config: RandomNets, trial: Trial) -> Measured:
    """Rate and constant on the recursion; losses of finite networks beside it."""
    layers = np.arange(1, config.recursion + 1)
    numbers = {}
    for cosine in (-1.0, 0.0, 0.5):
        loss = 2 * forward_losses(config.recursion, cosine).numpy()
        far = layers >= config.recursion // 10
        numbers[f"exponent {cosine:g}"] = log_slope(layers[far], loss[far])
        numbers[f"constant {cosine:g}"] = float(layers[-1] ** 2 * loss[-1])
    measured = finite_cosines(config, trial, "forward")
    theory = {c: 1 - 2 * forward_losses(config.depth, c).numpy() for c in measured}
    slopes = [_late_slope(measured[c]) - _late_slope(theory[c]) for c in measured]
    numbers["finite_error"] = largest_error(measured, theory)
    numbers["finite_slope"] = float(np.abs(slopes).max())
    return Measured(numbers, pair_arrays(measured, theory))


def _late_slope(cosines: np.ndarray) -> float:
    """Exponent of the loss over all but the first quarter of the layers."""
    first = len(cosines) // 4
    return log_slope(np.arange(first + 1, len(cosines) + 1), 1 - cosines[first:])


def _rate(runs: Results) -> Outcome:
    found = {name: runs[name][0] for name in runs.runs[0].numbers if name.startswith("exponent")}
    return outcome(all(abs(value + 2) <= 0.02 for value in found.values()), **found)


def _constant(runs: Results) -> Outcome:
    found = {name: runs[name][0] for name in runs.runs[0].numbers if name.startswith("constant")}
    holds = all(0.99 * _LIMIT <= value < _LIMIT for value in found.values())
    return outcome(holds, limit=_LIMIT, **found)


def _finite_rate(runs: Results) -> Outcome:
    return outcome(runs["finite_slope"][0] <= 0.5, difference_of_slopes=runs["finite_slope"][0])


def draw(runs: Results) -> list[Panel]:
    """Losses of finite networks and of the recursion, one color per pair of inputs."""
    lines = pair_lines(runs, lambda cosines: 1 - cosines)
    return [Panel("Theorem 1", lines, "layer", "1 - cosine", "xy")]


STUDY = Study(
    id="lou2022.theorem1",
    title="Loss of forward information",
    shows=("Theorem 1",),
    measure=measure,
    configs=CONFIGS,
    seeds={"paper": (101, 102, 103)},
    claims=(
        Claim(
            "lou2022.theorem1.rate",
            "on the recursion the loss falls with exponent -2 (within 0.02, from a tenth of the "
            "depth on), whatever the cosine of the inputs",
            _rate,
        ),
        Claim(
            "lou2022.theorem1.constant",
            "l^2 (1 - c_l) approaches 9 pi^2 / 2 from below, for all inputs (within 1 %)",
            _constant,
        ),
        Claim(
            "lou2022.theorem1.finite",
            "cosines in finite networks are within 0.15 of the recursion in every layer",
            within_limits,
        ),
        Claim(
            "lou2022.theorem1.finite-rate",
            "the exponent over the layers of finite networks is within 0.5 of that of the "
            "recursion over the same layers",
            _finite_rate,
        ),
    ),
    draw=draw,
    stand_in={"lite": LITE},
)
