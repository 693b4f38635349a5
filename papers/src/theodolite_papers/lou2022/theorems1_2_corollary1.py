"""Theorems 1 and 2, Corollary 1: loss of information about the inputs in random networks.

Forward, the loss of layer l falls as l^-2. For gradients, the loss of early layers falls as (L /
l)^-3. Both losses balance at a layer of order L^(3/5), for very large depths L.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isnan, log, nan, pi

import numpy as np
import torch
from torch import Tensor

from theodolite.engine import backward_kernel, forward_kernel
from theodolite.theory.infinite_width import backward_losses, equilibrium_layer, forward_losses
from theodolite_papers.lab.models import mlp
from theodolite_papers.ledger import (
    Check,
    Claim,
    Line,
    Measured,
    Outcome,
    Panel,
    Points,
    Results,
    Study,
    Trial,
    below,
    between,
    decided,
    inside,
    mean_and_error,
    within,
)
from theodolite_papers.lou2022._hierarchy import as_array, log_slope
from theodolite_papers.lou2022.formulas.infinite_width import (
    asymptotic_backward_information,
    asymptotic_equilibrium_layer,
    backward_fraction_loss,
)

__all__ = ["STUDIES", "RandomNets"]

_LIMIT = 4.5 * pi**2  # of l^2 (1 - c_l)
_MARGIN = 0.5  # epsilon of the domain of Theorem 2
_FRACTION = 0.5  # alpha = l / L of its case (i)
_COSINES = (-1.0, 0.0, 0.3, 0.6)
_PRACTICAL = np.arange(10, 101, 10)


@dataclass(frozen=True)
class RandomNets:
    """Networks of one output at their initialisation, and how far to follow the recursion.

    Args:
        recursion: layers of the infinitely wide network.
        depth: of the finite networks.
        width: of the finite networks.
        networks: over which products are averaged.
        inputs: dimension of the two inputs.
        cosines: of the two inputs.
    """

    recursion: int = 100_000
    depth: int = 20
    width: int = 400
    networks: int = 10
    inputs: int = 10
    cosines: tuple[float, ...] = (-0.9, 0.0, 0.5)


_CONFIGS: Mapping[str, RandomNets] = {
    "smoke": RandomNets(recursion=1000, depth=5, width=32, networks=1),
    "lite": RandomNets(),
    "reduced": RandomNets(depth=50, width=2048, networks=16),
}
_LITE = "10 networks of width 400 and depth 20"  # what stands in at lite


def sphere_pair(cosine: float, size: int) -> Tensor:
    """Two vectors of squared length ``size`` with this cosine, in float64."""
    pair = torch.zeros(2, size, dtype=torch.float64)
    pair[0, 0] = 1.0
    pair[1, 0], pair[1, 1] = cosine, (1 - cosine**2) ** 0.5
    return size**0.5 * pair


def finite_cosines(config: RandomNets, trial: Trial, kind: str) -> dict[float, np.ndarray]:
    """Cosine of two inputs' signals in every layer, averaged over networks.

    Averaged products are divided by averaged lengths: both converge with the number of networks.

    Args:
        config: the networks.
        trial: seed and device.
        kind: "forward" for what a layer receives, "backward" for the gradients of the output.
    """
    grams = {cosine: np.zeros((config.depth, 2, 2)) for cosine in config.cosines}
    sizes = [config.inputs, *[config.width] * (config.depth - 1), 1]
    for index in range(config.networks):
        net = mlp(sizes, bias=False, generator=trial.generator(100 + index))
        net = net.double().to(trial.device)
        for cosine, sums in grams.items():
            x = sphere_pair(cosine, config.inputs).to(trial.device)
            for layer in range(config.depth):
                sums[layer] += _gram(net, x, f"fc{layer + 1}", kind)
    return {cosine: _normalized(sums) for cosine, sums in grams.items()}


def _gram(net: torch.nn.Module, x: Tensor, layer: str, kind: str) -> np.ndarray:
    if kind == "forward":
        return forward_kernel(net, x, layer).cpu().numpy()
    return backward_kernel(net, x, layer, normalize=False)[:, 0, :, 0].cpu().numpy()


def _normalized(sums: np.ndarray) -> np.ndarray:
    lengths = np.sqrt(sums[:, 0, 0] * sums[:, 1, 1])
    return np.asarray(sums[:, 0, 1] / lengths)


def pair_arrays(
    measured: Mapping[float, np.ndarray], theory: Mapping[float, np.ndarray]
) -> dict[str, np.ndarray]:
    """Both curves of every pair of inputs, for a record."""
    arrays = {}
    for index, cosine in enumerate(measured):
        arrays[f"measured_{index}"] = as_array(measured[cosine])
        arrays[f"theory_{index}"] = as_array(theory[cosine])
    return arrays


def largest_error(
    measured: Mapping[float, np.ndarray], theory: Mapping[float, np.ndarray]
) -> float:
    """The largest error of any layer and pair of inputs."""
    return max(float(np.abs(values - theory[c]).max()) for c, values in measured.items())


def pair_lines(runs: Results, shown: Callable[[np.ndarray], np.ndarray]) -> list[Line]:
    """Finite networks with their standard error, and the recursion; one colour per pair."""
    lines = []
    pairs = sum(name.startswith("theory") for name in runs.runs[0].arrays)
    for index in range(pairs):
        mean, error = mean_and_error(shown(runs.array(f"measured_{index}")))
        x = np.arange(1, len(mean) + 1)
        lines.append(Line(f"finite networks, pair {index + 1}", x, mean, error, color=index))
        theory = shown(runs.runs[0].arrays[f"theory_{index}"])
        lines.append(Line(f"recursion, pair {index + 1}", x, theory, dashed=True, color=index))
    return lines


def _measure_forward(config: RandomNets, trial: Trial) -> Measured:
    """Rate and constant on the recursion, and losses of finite networks."""
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


def _constant(runs: Results) -> Outcome:
    found = {name: runs[name][0] for name in runs.runs[0].numbers if name.startswith("constant")}
    conditions = (inside(name, value, 0.99 * _LIMIT, _LIMIT) for name, value in found.items())
    return decided(*conditions, limit=_LIMIT)


def _draw_forward(runs: Results) -> list[Panel]:
    """Losses of finite networks and of the recursion, one colour per pair of inputs."""
    lines = pair_lines(runs, lambda cosines: 1 - cosines)
    return [Panel("Theorem 1", lines, "layer", "1 - cosine", "xy")]


def _measure_backward(config: RandomNets, trial: Trial) -> Measured:
    """Rates of both cases on the recursion, and gradients of finite networks."""
    depths = np.unique(np.geomspace(config.recursion / 100, config.recursion, 7).astype(int))
    excess = [backward_fraction_loss(_FRACTION, int(d), _MARGIN) for d in depths]
    scale = np.asarray([log(d) / d for d in depths])
    deepest = int(depths[-1])
    expected = asymptotic_backward_information(_FRACTION, deepest) - _FRACTION**3
    information = backward_losses(deepest, 1 - _MARGIN).numpy()
    early = np.unique(np.geomspace(deepest**0.4, deepest**0.7, 9).astype(int))
    values = information[early - 1]
    measured = finite_cosines(config, trial, "backward")
    theory = {cosine: backward_losses(config.depth, cosine).numpy() for cosine in measured}
    numbers = {
        "fraction_exponent": log_slope(scale, np.asarray(excess)),
        "fraction_ratio": float(excess[-1] / expected),
        "early_exponent": log_slope(deepest / early, values),
        "early_constant": float(np.median((deepest / early) ** 3 * values)),
        "finite_error": largest_error(measured, theory),
        "finite_step": min(float(np.diff(found).min()) for found in measured.values()),
    }
    return Measured(numbers, pair_arrays(measured, theory))


def _draw_backward(runs: Results) -> list[Panel]:
    """Backward information of finite networks and of the recursion."""
    lines = pair_lines(runs, lambda cosines: cosines)
    return [Panel("Theorem 2", lines, "layer", "cosine of gradients")]


def _measure_balance(config: RandomNets, trial: Trial) -> Measured:
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


def _crossings(runs: Results) -> Outcome:
    error = runs["finite_error"][0]
    return decided(
        below("largest_relative_error", error, 1 / 3, strict=False), premise=not isnan(error)
    )


def _draw_balance(runs: Results) -> list[Panel]:
    """The exact balance, the law, and the crossings of finite networks."""
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


def _all_named(start: str, low: float, high: float) -> Check:
    """All numbers whose name starts so lie within bounds."""

    def check(runs: Results) -> Outcome:
        names = [name for name in runs.first.numbers if name.startswith(start)]
        return within(dict(zip(names, names, strict=True)), low, high)(runs)

    return check


_FINITE = between({"largest_error": "finite_error"}, high=0.15)
_THEOREM_1 = Study(
    id="lou2022.theorem1",
    title="Loss of forward information",
    shows=("Theorem 1",),
    measure=_measure_forward,
    configs=_CONFIGS,
    seeds={"reduced": (101, 102, 103)},
    claims=(
        Claim(
            "lou2022.theorem1.rate",
            "on the recursion the loss falls with exponent -2 (within 0.02, from a tenth of the "
            "depth on), whatever the cosine of the inputs",
            _all_named("exponent", -2.02, -1.98),
            unit="calculation",
        ),
        Claim(
            "lou2022.theorem1.constant",
            "l^2 (1 - c_l) approaches 9 pi^2 / 2 from below, for all inputs (within 1 %)",
            _constant,
            unit="calculation",
        ),
        Claim(
            "lou2022.theorem1.finite",
            "cosines in finite networks are within 0.15 of the recursion in every layer",
            _FINITE,
        ),
        Claim(
            "lou2022.theorem1.finite-rate",
            "the exponent over the layers of finite networks is within 0.2, a tenth of 2, of that "
            "of the recursion over the same layers",
            within({"difference_of_slopes": "finite_slope"}, high=0.2),
        ),
    ),
    draw=_draw_forward,
    not_run={"published": "the statement has no experiment in the paper"},
    stand_in={"lite": _LITE},
)
_THEOREM_2 = Study(
    id="lou2022.theorem2",
    title="Loss of backward information",
    shows=("Theorem 2",),
    measure=_measure_backward,
    configs=_CONFIGS,
    seeds={"reduced": (101, 102, 103)},
    claims=(
        Claim(
            "lou2022.theorem2.fraction",
            "(i) at half the depth the distance from 1/8 falls as log L / L: exponent within 0.15 "
            "of 1",
            within(
                {"exponent": "fraction_exponent"}, 0.85, 1.15, {"over_expansion": "fraction_ratio"}
            ),
            unit="calculation",
        ),
        Claim(
            "lou2022.theorem2.early",
            "(ii) in early layers the information is of order (L / l)^-3: exponent within 0.1",
            within({"exponent": "early_exponent"}, -3.1, -2.9, {"constant": "early_constant"}),
            unit="calculation",
        ),
        Claim(
            "lou2022.theorem2.finite",
            "cosines of gradients in finite networks are within 0.15 of the recursion",
            _FINITE,
        ),
        Claim(
            "lou2022.theorem2.rising",
            "backward information rises with the layer (no step below -0.05)",
            within({"smallest_step": "finite_step"}, low=-0.05),
        ),
    ),
    draw=_draw_backward,
    not_run={"published": "the statement has no experiment in the paper"},
    stand_in={"lite": _LITE},
)
_COROLLARY_1 = Study(
    id="lou2022.corollary1",
    title="The layer where both losses of information balance",
    shows=("Corollary 1",),
    measure=_measure_balance,
    configs=_CONFIGS,
    seeds={"reduced": (101, 102, 103)},
    claims=(
        Claim(
            "lou2022.corollary1.great",
            "at depths of 10,000 to 100,000 the balance grows with exponent 3/5 (within 0.02)",
            within({"slope": "great_slope"}, 0.58, 0.62, {"over_law": "over_law"}),
            unit="calculation",
        ),
        Claim(
            "lou2022.corollary1.practical",
            "over depths 10 to 100 it grows with exponents of 0.7 to 1.0, by the inputs' cosine",
            _all_named("slope", 0.7, 1.0),
            unit="calculation",
            fragile="not in the paper: worked out from its own recursion",
        ),
        Claim(
            "lou2022.corollary1.law-at-practical",
            "over depths 10 to 100 the exponent is 3/5 (within 0.05)",
            _all_named("slope", 0.55, 0.65),
            unit="calculation",
            fragile="how the paper uses the corollary in Figure 3; 3/5 is asymptotic",
        ),
        Claim(
            "lou2022.corollary1.finite",
            "in finite networks the two losses cross within a third of the exact balance",
            _crossings,
        ),
    ),
    draw=_draw_balance,
    not_run={"published": "the statement has no experiment in the paper"},
    stand_in={"lite": _LITE},
)
STUDIES = (_THEOREM_1, _THEOREM_2, _COROLLARY_1)
