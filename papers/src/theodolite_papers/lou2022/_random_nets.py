"""Random networks at their initialisation, and what two inputs have in common in each layer."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from theodolite.engine import backward_kernel, forward_kernel
from theodolite_papers.lab.models import mlp
from theodolite_papers.ledger import Line, Outcome, Results, Trial, mean_and_error, outcome
from theodolite_papers.lou2022._hierarchy import as_array

__all__ = [
    "CONFIGS",
    "LITE",
    "RandomNets",
    "finite_cosines",
    "largest_error",
    "log_slope",
    "pair_arrays",
    "pair_lines",
    "sphere_pair",
    "within_limits",
]


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


CONFIGS: Mapping[str, RandomNets] = {
    "smoke": RandomNets(recursion=1000, depth=5, width=32, networks=1),
    "lite": RandomNets(),
    "paper": RandomNets(depth=50, width=2048, networks=16),
}
LITE = "10 networks of width 400 and depth 20"  # what stands in at lite


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
    """Of any layer and pair of inputs."""
    return max(float(np.abs(values - theory[c]).max()) for c, values in measured.items())


def within_limits(runs: Results) -> Outcome:
    """Finite networks of the sizes used are within 0.15 of infinitely wide ones."""
    return outcome(runs["finite_error"][0] < 0.15, largest_error=runs["finite_error"][0])


def pair_lines(runs: Results, shown: Callable[[np.ndarray], np.ndarray]) -> list[Line]:
    """Finite networks with their standard error, and the recursion; one color per pair."""
    lines = []
    pairs = sum(name.startswith("theory") for name in runs.runs[0].arrays)
    for index in range(pairs):
        mean, error = mean_and_error(shown(runs.array(f"measured_{index}")))
        x = np.arange(1, len(mean) + 1)
        lines.append(Line(f"finite networks, pair {index + 1}", x, mean, error, color=index))
        theory = shown(runs.runs[0].arrays[f"theory_{index}"])
        lines.append(Line(f"recursion, pair {index + 1}", x, theory, dashed=True, color=index))
    return lines


def log_slope(x: np.ndarray, y: np.ndarray) -> float:
    """Least-squares slope of log y against log x."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])
