"""Networks trained on Gaussian inputs with random labels, many at once."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from theodolite_papers.lab.data import gaussian_inputs, random_labels
from theodolite_papers.lab.models import mlp
from theodolite_papers.lab.training import Recipe, train_ensemble
from theodolite_papers.ledger import Trial

__all__ = ["GaussianRuns", "train_on_gaussians"]


@dataclass(frozen=True)
class GaussianRuns:
    """Independent networks, each with its own inputs, labels and initial weights.

    Args:
        variances: eigenvalues of the data covariance, which is diagonal.
        widths: of the two hidden layers.
        samples: inputs of each network.
        runs: number of networks.
        steps: of training.
        learning_rate: constant.
        batch_size: of training.
        classes: of the random labels.
        first_scale: factor of the first layer's initial weights.
        momentum: 0 is plain gradient descent.
    """

    variances: tuple[float, ...]
    widths: tuple[int, int]
    samples: int
    runs: int
    steps: int
    learning_rate: float = 0.05
    batch_size: int = 128
    classes: int = 10
    first_scale: float = 1.0
    momentum: float = 0.0

    @property
    def covariance(self) -> Tensor:
        """Of the inputs."""
        return torch.diag(torch.tensor(self.variances, dtype=torch.float64))


def train_on_gaussians(
    setting: GaussianRuns, trial: Trial, stream: int = 0
) -> tuple[Tensor, float]:
    """First-layer weights (run, neuron, dimension), and the mean accuracy on the labels."""
    generator = trial.generator(stream)
    data = [_pair(setting, generator) for _ in range(setting.runs)]
    sizes: Sequence[int] = (len(setting.variances), *setting.widths, setting.classes)
    scales = [setting.first_scale, 1.0, 1.0]
    models = [
        mlp(sizes, scale=scales, generator=generator).to(trial.device) for _ in range(setting.runs)
    ]
    recipe = Recipe(
        optimizer="momentum" if setting.momentum else "sgd",
        momentum=setting.momentum,
        learning_rate=setting.learning_rate,
        batch_size=setting.batch_size,
        steps=setting.steps,
        drop_last=True,
        seed=trial.seed * 1000,
        log="ends",
    )
    logs = train_ensemble(models, data, recipe)
    weights = torch.stack([model.get_parameter("fc1.weight").detach().cpu() for model in models])
    accuracy = sum(log.final.train.accuracy for log in logs) / len(logs)
    return weights.double(), accuracy


def _pair(setting: GaussianRuns, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    inputs = gaussian_inputs(setting.samples, setting.covariance, generator=generator)
    return inputs.float(), random_labels(setting.samples, setting.classes, generator)
