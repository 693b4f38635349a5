"""Random networks at their initialisation, and what two inputs have in common in each layer."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from theodolite.quantities import backward_kernel, forward_kernel
from theodolite.studies import Trial
from theodolite.workbench.models import mlp

__all__ = ["RandomNets", "finite_cosines", "log_slope", "sphere_pair"]


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


def log_slope(x: np.ndarray, y: np.ndarray) -> float:
    """Least-squares slope of log y against log x."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])
