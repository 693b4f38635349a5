"""How often the neurons of a network fire on held-out images, layer by layer."""

import numpy as np
from torch import Tensor, nn

from theodolite.engine import feature_chunks
from theodolite.measures.covariance import (
    ActivationFractions,
    activation_fractions,
    activation_histogram,
    merge_activation_fractions,
)
from theodolite_papers.lab.training import TrainingState

__all__ = ["ActivationWatch", "fractions_of", "histograms_of", "relu_layers"]


def relu_layers(model: nn.Module) -> list[str]:
    """Names of the activation layers, in order."""
    return [name for name, module in model.named_modules() if isinstance(module, nn.ReLU)]


def fractions_of(model: nn.Module, images: Tensor) -> dict[str, ActivationFractions]:
    """Activation layer -> fractions over neurons and over images."""
    was_training = model.training
    model.eval()
    layers = relu_layers(model)
    parts: dict[str, list[ActivationFractions]] = {name: [] for name in layers}
    for chunk in feature_chunks(model, images, layers, read="raw"):
        for name, outputs in chunk.layers.items():
            parts[name].append(activation_fractions(outputs))
    model.train(was_training)
    return {name: merge_activation_fractions(found) for name, found in parts.items()}


def histograms_of(fractions: dict[str, ActivationFractions]) -> np.ndarray:
    """Share of neurons, then of examples, per bin: (layers, 2, bins)."""
    return np.stack(
        [
            np.stack([activation_histogram(part).cpu().numpy() for part in (f.neurons, f.examples)])
            for f in fractions.values()
        ]
    ).astype(np.float16)


class ActivationWatch:
    """Mean activation of every layer at chosen steps of a training."""

    def __init__(self, images: Tensor, steps: set[int]) -> None:
        self._images, self._steps = images, steps
        self.steps: list[int] = []
        self.means: list[list[float]] = []

    def __call__(self, state: TrainingState) -> None:
        """Measure if it is time."""
        if state.step in self._steps:
            found = fractions_of(state.model, self._images)
            self.steps.append(state.step)
            self.means.append([float(part.mean) for part in found.values()])
