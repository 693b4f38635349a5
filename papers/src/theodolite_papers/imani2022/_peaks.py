"""Networks trained on one peaks function, and the tasks on which they are measured."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from theodolite_papers.imani2022._networks import (
    Training,
    build,
    hidden_layers,
    recipe_for,
    train_on,
)
from theodolite_papers.lab.data import peaks_inputs, peaks_values, related_tasks, unrelated_tasks
from theodolite_papers.ledger import Trial

__all__ = [
    "PeaksNetwork",
    "PeaksTasks",
    "Sample",
    "draw_tasks",
    "representations",
    "sample",
    "train_on_source",
]

_VARIABLES = "ABCDEF"


@dataclass(frozen=True)
class PeaksTasks:
    """A source, a related task (the same variables) and an unrelated one (the other three)."""

    source: str
    related: str
    unrelated: str


@dataclass(frozen=True)
class Sample:
    """Inputs with unit rows, and the variables that determine the labels of all tasks."""

    variables: Tensor
    inputs: Tensor

    def labels(self, task: str, mean: float | None = None) -> Tensor:
        """Values of a task, centred: by their own mean, or by that of the training labels."""
        values = peaks_values(self.variables, task)
        return values - (values.mean() if mean is None else mean)

    def mean(self, task: str) -> float:
        """Mean value of a task."""
        return float(peaks_values(self.variables, task).mean())

    def take(self, rows: Tensor) -> "Sample":
        """Some of the examples."""
        return Sample(self.variables[rows], self.inputs[rows])


@dataclass(frozen=True)
class PeaksNetwork:
    """A network trained on the source, and the same network at initialisation."""

    initial: nn.Module
    trained: nn.Module
    loss: float


def draw_tasks(trial: Trial, stream: int = 3) -> PeaksTasks:
    """A random source, and one random task of either kind."""
    generator = np.random.default_rng([trial.seed, stream])
    source = "".join(generator.permutation(list(_VARIABLES))[:3])
    related = str(generator.choice(related_tasks(source)))
    return PeaksTasks(source, related, str(generator.choice(unrelated_tasks(source))))


def sample(count: int, generator: torch.Generator) -> Sample:
    """Fresh examples."""
    return Sample(*peaks_inputs(count, generator=generator))


def train_on_source(
    examples: Sample, source: str, depth: int, training: Training, trial: Trial, *, stream: int = 1
) -> PeaksNetwork:
    """A network of layers of 60 units, trained on the squared error of the source."""
    inputs = examples.inputs.float()
    width = inputs.shape[1]
    initial, trained = (build(width, depth, width, trial, stream=stream) for _ in range(2))
    recipe = recipe_for(training, trial.seed + 1000 * stream, regression=True)
    loss = train_on(trained, inputs, examples.labels(source).float(), recipe)
    return PeaksNetwork(initial, trained, loss)


def representations(network: PeaksNetwork, inputs: Tensor, layer: str) -> dict[str, Tensor]:
    """Original inputs, and one hidden layer before and after training."""
    rows = inputs.float()
    return {
        "original": rows,
        "init": hidden_layers(network.initial, rows, [layer])[layer],
        "transfer": hidden_layers(network.trained, rows, [layer])[layer],
    }
