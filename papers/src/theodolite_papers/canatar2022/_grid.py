"""The grid of residual networks: its settings, data, networks and recipe."""

import copy
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn

from theodolite.data import Dataset, digits, scaled
from theodolite.sweeps import Space
from theodolite_papers.canatar2022._residual_mlp import residual_mlp
from theodolite_papers.lab.data import balanced_rows, load_image_set
from theodolite_papers.lab.models import kernel_resnet
from theodolite_papers.lab.training import Augmentation, Recipe, Squared
from theodolite_papers.ledger import Trial

__all__ = [
    "Cell",
    "build_network",
    "calibrated",
    "grid",
    "load_cell_data",
    "probed_layers",
    "recipe_of",
]

# As in the network it derives from. With 1 the read-out of 256 max-pooled features has a curvature
# of about 50, and every rate above 0.04 diverges within a few steps.
_OUTPUT_SCALE = 0.2


@dataclass(frozen=True)
class Cell:
    """One network of the grid.

    Args:
        data: "digits" (residual MLP) or "cifar10" (the network of eleven convolutions).
        train: training examples, class-balanced.
        test: test examples, class-balanced.
        probe: examples of each set on which kernels are taken, class-balanced.
        epochs: passes over the training examples.
        middle: the epoch of the second spectrum; the first is 0, the third the last.
        permutations: of the labels or inputs, for the null of every CKA.
        width: of the residual MLP.
        skip: whether blocks add their input.
        augmentation: whether training images are changed at random.
        momentum: 0 is plain SGD.
        learning_rate: of the first step; it falls linearly to zero.
        batch_size: examples per step.
    """

    data: str = "digits"
    train: int = 300
    test: int = 900
    probe: int = 300
    epochs: int = 100
    middle: int = 8
    permutations: int = 10
    width: int = 64
    skip: bool = True
    augmentation: bool = False
    momentum: float = 0.9
    learning_rate: float = 0.1
    batch_size: int = 25


def grid(batch_sizes: tuple[int, int, int], rates: tuple[float, float]) -> Space:
    """All 48 combinations of the five factors; the least important one varies slowest."""
    return Space(
        {
            "skip": [True, False],
            "augmentation": [False, True],
            "momentum": [0.9, 0.0],
            "learning_rate": list(rates),
            "batch_size": list(batch_sizes),
        }
    )


@cache
def _images(name: str) -> Dataset:
    """Read once for all cells that a process trains."""
    return load_image_set(name)


def load_cell_data(config: Cell, trial: Trial) -> tuple[Dataset, Tensor, Tensor]:
    """Scaled data of a cell, and the training and test rows of its probes.

    All cells of a seed share them.
    """
    generator = trial.generator(0)
    if config.data == "digits":
        whole = scaled(digits(1200, generator), "unit_interval")
    else:
        whole = _images(config.data)
    train = balanced_rows(whole.y_train, config.train, generator=generator)
    test = balanced_rows(whole.y_test, config.test, generator=generator)
    data = whole.take(train, test)
    if not data.scaling:
        data = scaled(data, "channels")
    probes = [
        balanced_rows(labels, config.probe, generator=generator)
        for labels in (data.y_train, data.y_test)
    ]
    return data, probes[0], probes[1]


def build_network(config: Cell, data: Dataset, trial: Trial) -> nn.Module:
    """The network of a cell; all cells of a seed start from the same weights."""
    generator = trial.generator(1)
    if config.data == "digits":
        inputs = data.x_train[0].numel()
        model: nn.Module = residual_mlp(
            inputs, config.width, data.num_classes, config.skip, generator
        )
    else:
        model = kernel_resnet(
            data.num_classes, skip=config.skip, output_scale=_OUTPUT_SCALE, generator=generator
        )
    return model.to(trial.device)


def probed_layers(model: nn.Module) -> list[str]:
    """The ten layers, in order of depth."""
    return list(model.probes)  # type: ignore[arg-type]


def recipe_of(config: Cell, seed: int) -> Recipe:
    """Squared error, SGD with or without momentum, a rate that falls linearly."""
    small = Augmentation(flip=False, padding=1, cutout=0)  # digits are 8 pixels wide
    changes = small if config.data == "digits" else Augmentation()
    return Recipe(
        loss=Squared(reduction="mean"),
        optimizer="momentum" if config.momentum else "sgd",
        momentum=config.momentum,
        learning_rate=config.learning_rate,
        batch_size=config.batch_size,
        epochs=config.epochs,
        schedule="linear",
        augmentation=changes if config.augmentation else None,
        log="ends",
        seed=seed,
    )


def calibrated(model: nn.Module, inputs: Tensor, chunk: int = 500) -> nn.Module:
    """A copy in evaluation mode whose batch norms know the data.

    Before the first step their statistics are (0, 1), and early in training they lag behind: the
    features of a deep network then have little to do with what it computes.
    """
    twin = copy.deepcopy(model).train()
    for module in twin.modules():
        if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)):
            module.reset_running_stats()
            module.momentum = None  # the plain average over all batches
    with torch.no_grad():
        for part in torch.split(inputs, chunk):
            twin(part)
    return twin.eval()
