"""Convolutional networks of the paper, small ones for 8x8 images, and a run of one of them."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from theodolite.interventions import initialize_
from theodolite_papers.lab.models import resnet18, vgg19, wide_resnet
from theodolite_papers.ledger import Measured, Results, Trial
from theodolite_papers.lou2022._hierarchy import alignments, as_array, shape_of
from theodolite_papers.lou2022._setting import (
    Ground,
    Setting,
    final_numbers,
    fully_connected,
    learned,
    prepare,
    recipe_of,
)

__all__ = ["ARCHITECTURES", "Architecture", "build", "converged", "run_once"]

ARCHITECTURES = ("ffnn", "vgg19", "resnet18", "small_conv", "small_residual")


@dataclass(frozen=True)
class Architecture(Setting):
    """A network of any kind, trained until its training loss is small.

    Args:
        architecture: "ffnn" (depth and width as given), "vgg19", "resnet18", or for 8x8 images
            "small_conv" (9 convolutions of 16 channels, batch norm) and "small_residual" (10
            layers).
    """

    architecture: str = "ffnn"
    stop_loss: float | None = 0.1


def build(config: Architecture, ground: Ground, trial: Trial) -> Any:
    """The network on the device, at its initialisation."""
    generator = trial.generator()
    channels = ground.train[0].shape[1]
    if config.architecture == "ffnn":
        return fully_connected(config, ground, trial)
    if config.architecture == "vgg19":
        model: nn.Module = vgg19(ground.classes, in_channels=channels, generator=generator)
    elif config.architecture == "resnet18":
        model = resnet18(ground.classes, in_channels=channels, generator=generator)
    elif config.architecture == "small_conv":
        model = _small_conv(channels, ground.classes, generator)
    else:
        model = wide_resnet(
            ground.classes,
            depth=10,
            factor=1,
            in_channels=channels,
            stem_width=16,
            generator=generator,
        )
    return model.to(trial.device)


def _small_conv(channels: int, classes: int, generator: torch.Generator) -> nn.Sequential:
    """Nine 3x3 convolutions of 16 channels with batch norm, two 2x2 max-pools and a head."""
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for index in range(1, 10):
        layers[f"conv{index}"] = nn.Conv2d(channels, 16, 3, padding=1, bias=False)
        layers[f"bn{index}"] = nn.BatchNorm2d(16)
        layers[f"relu{index}"] = nn.ReLU()
        channels = 16
        if index in (3, 6):
            layers[f"pool{index}"] = nn.MaxPool2d(2)
    layers["flatten"] = nn.Flatten()
    layers["head"] = nn.Linear(16 * 2 * 2, classes, bias=False)
    network = nn.Sequential(layers)
    initialize_(network, "he", 1.0, generator)
    return network


def run_once(config: Architecture, trial: Trial) -> Measured:
    """Train to a small loss; alignments before and after, gaps, and whether it got there."""
    ground = prepare(config, trial, flat=config.architecture == "ffnn")
    model = build(config, ground, trial)
    before = alignments(model, ground)
    log = learned(model, ground, recipe_of(config, trial.seed))
    after = alignments(model, ground)
    numbers = {
        **final_numbers(log),
        **shape_of(after),
        "initial": float(before.max()),
        "layers": float(len(after)),
        "converged": float(log is not None and log.stopped == "loss"),
    }
    return Measured(numbers, {"before": as_array(before), "after": as_array(after)})


def converged(runs: Results) -> Results:
    """The runs that ended at their training loss; others are not comparable with them."""
    return runs.chosen(lambda run: run["converged"] == 1)
