"""First convolutions trained on images, watched while they train."""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from theodolite.engine import patch_covariance, weight_covariance
from theodolite.measures.covariance import (
    compare_misalignment,
    transfer_function,
)
from theodolite_papers.lab.data import random_labels
from theodolite_papers.lab.training import Recipe, TrainingState, train
from theodolite_papers.ledger import Trial
from theodolite_papers.maennel2020._images import Images, Labeled, draw_images
from theodolite_papers.maennel2020._transfer import Network

__all__ = ["FilterTraining", "FilterWatch", "covariance_of", "drawn_data", "trained_filters"]

_CLASSES = 10


@dataclass(frozen=True)
class FilterTraining:
    """How a network with one convolution is trained on images.

    Args:
        network: one convolution of 256 filters and 64 units in the paper.
        images: what it is trained on.
        examples: number of images.
        epochs: passes over them.
        learning_rate: first rate, divided by 3 after each third.
        batch_size: incomplete batches are left out.
    """

    network: Network = field(default_factory=lambda: Network(conv_layers=1, filters=256, units=64))
    images: Images = field(default_factory=Images)
    examples: int = 50_000
    epochs: int = 40
    learning_rate: float = 0.01
    batch_size: int = 256

    def recipe(self, seed: int) -> Recipe:
        """The paper's recipe."""
        return Recipe(
            optimizer="momentum",
            learning_rate=self.learning_rate,
            batch_size=self.batch_size,
            epochs=self.epochs,
            schedule="thirds",
            drop_last=True,
            seed=seed,
            log="ends",
        )

    @property
    def steps_per_epoch(self) -> int:
        """Whole batches in one pass."""
        return self.examples // self.batch_size


class FilterWatch:
    """Misalignment and transfer function of the first convolution at chosen epochs."""

    def __init__(self, covariance: Tensor, steps: dict[int, int], trial: Trial) -> None:
        self._covariance, self._steps, self._trial = covariance, steps, trial
        self.epochs: list[int] = []
        self.value: list[float] = []
        self.baseline: list[list[float]] = []
        self.tau: list[list[float]] = []
        self.sigma: list[float] = []
        self.floor = float("nan")

    def __call__(self, state: TrainingState) -> None:
        """Measure if it is time; the random bases are the same every time."""
        if state.step not in self._steps:
            return
        filters = state.model.get_parameter("conv1.weight").detach().cpu().double().flatten(1)
        score = compare_misalignment(
            self._covariance,
            weight_covariance(filters),
            len(filters),
            generator=self._trial.generator(90),
        )
        curve = transfer_function(self._covariance, filters)
        self.epochs.append(self._steps[state.step])
        self.value.append(float(score.value))
        self.baseline.append(score.baseline.tolist())
        self.floor = float(score.floor)
        self.sigma = curve.sigma.flip(0).tolist()
        self.tau.append(curve.tau.flip(0).tolist())


def drawn_data(config: FilterTraining, trial: Trial, labels: str, stream: int = 0) -> Labeled:
    """Images with real or random labels."""
    ((images, real),) = draw_images(config.images, trial.generator(stream), config.examples)
    if labels == "real":
        return images, real
    return images, random_labels(len(images), _CLASSES, trial.generator(stream + 1))


def trained_filters(
    config: FilterTraining, trial: Trial, data: Labeled, stream: int, watch: FilterWatch | None
) -> tuple[nn.Module, float]:
    """A network trained from its own initial weights, and its accuracy on the labels."""
    shape = tuple(data[0].shape[1:])
    network = config.network.build(_CLASSES, shape, trial.generator(stream)).to(trial.device)
    callbacks = () if watch is None else (watch,)
    log = train(network, data, config.recipe(trial.seed * 100 + stream), callbacks=callbacks)
    return network, log.final.train.accuracy


def covariance_of(images: Tensor, side: int = 3) -> Tensor:
    """Of all full patches."""
    matrix = patch_covariance(images, side)
    assert isinstance(matrix, Tensor)
    return torch.as_tensor(matrix, dtype=torch.float64)
