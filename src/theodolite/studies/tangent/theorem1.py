"""Theorem 1: what a layer has lost of the input's geometry falls as its number to the power -2."""

from math import pi

import numpy as np

from theodolite.studies import (
    Claim,
    Judgment,
    Line,
    Measured,
    Panel,
    Results,
    Study,
    Trial,
    judge,
    mean_and_error,
)
from theodolite.studies.tangent._hierarchy import as_array
from theodolite.studies.tangent._random_nets import RandomNets, finite_cosines, log_slope
from theodolite.theory.infinite_width import forward_losses

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
    arrays: dict[str, np.ndarray] = {}
    errors, slopes = [], []
    for index, (cosine, values) in enumerate(measured.items()):
        theory = 1 - 2 * forward_losses(config.depth, cosine).numpy()
        arrays[f"measured_{index}"], arrays[f"theory_{index}"] = as_array(values), as_array(theory)
        errors.append(float(np.abs(values - theory).max()))
        late = slice(config.depth // 4, None)
        x = np.arange(1, config.depth + 1)[late]
        slopes.append(log_slope(x, 1 - values[late]) - log_slope(x, 1 - theory[late]))
    numbers |= {"finite_error": max(errors), "finite_slope": float(np.abs(slopes).max())}
    return Measured(numbers, arrays)


def _rate(runs: Results) -> Judgment:
    found = {name: runs[name][0] for name in runs.runs[0].numbers if name.startswith("exponent")}
    return judge(all(abs(value + 2) <= 0.02 for value in found.values()), **found)


def _constant(runs: Results) -> Judgment:
    found = {name: runs[name][0] for name in runs.runs[0].numbers if name.startswith("constant")}
    holds = all(0.99 * _LIMIT <= value < _LIMIT for value in found.values())
    return judge(holds, limit=_LIMIT, **found)


def _finite(runs: Results) -> Judgment:
    return judge(runs["finite_error"][0] < 0.15, largest_error=runs["finite_error"][0])


def _finite_rate(runs: Results) -> Judgment:
    return judge(runs["finite_slope"][0] <= 0.5, difference_of_slopes=runs["finite_slope"][0])


def draw(runs: Results) -> list[Panel]:
    """Losses of finite networks and of the recursion, one color per pair of inputs."""
    lines = []
    pairs = sum(name.startswith("theory") for name in runs.runs[0].arrays)
    for index in range(pairs):
        mean, error = mean_and_error(1 - runs.array(f"measured_{index}"))
        x = np.arange(1, len(mean) + 1)
        lines.append(Line(f"finite networks, pair {index + 1}", x, mean, error, color=index))
        theory = 1 - runs.runs[0].arrays[f"theory_{index}"]
        lines.append(Line(f"recursion, pair {index + 1}", x, theory, dashed=True, color=index))
    return [Panel("Theorem 1", lines, "layer", "1 - cosine", "xy")]


STUDY = Study(
    id="lou2022.theorem1",
    title="Loss of forward information",
    shows=("Theorem 1",),
    measure=measure,
    configs={
        "smoke": RandomNets(recursion=1000, depth=5, width=32, networks=1),
        "lite": RandomNets(),
        "paper": RandomNets(depth=50, width=2048, networks=16),
    },
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
            _finite,
        ),
        Claim(
            "lou2022.theorem1.finite-rate",
            "the exponent over the layers of finite networks is within 0.5 of that of the "
            "recursion over the same layers",
            _finite_rate,
        ),
    ),
    draw=draw,
    stand_in={"lite": "10 networks of width 400 and depth 20"},
)
