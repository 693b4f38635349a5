"""Common parts of this paper's experiments: data, networks, training, one gradient step."""

from collections import OrderedDict
from copy import deepcopy
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any

import torch
from torch import Tensor, nn

from theodolite.data import digits, scaled
from theodolite.interventions import initialize_
from theodolite_papers.lab.data import balanced_rows, load_image_set
from theodolite_papers.lab.models import mlp, resnet18, vgg19, wide_resnet
from theodolite_papers.lab.training import (
    Callback,
    DivergenceError,
    Recipe,
    Stop,
    TrainingLog,
    train,
)
from theodolite_papers.ledger import Trial
from theodolite_papers.lou2022.formulas.losses import cross_entropy_gradient

__all__ = [
    "Architecture",
    "Ground",
    "Setting",
    "build",
    "final_numbers",
    "fully_connected",
    "learned",
    "prepare",
    "recipe_of",
    "stepped",
    "with_head",
]

_DIGITS_TEST = 397  # of 1797: 1400 images are left for training
_OUTCOMES = ("train_loss", "train_accuracy", "test_loss", "test_accuracy", "loss_gap", "steps")


@dataclass(frozen=True)
class Setting:
    """A network and its training; the paper prints few of these settings.

    Args:
        data: name of the data set; the 8x8 digits are the stand-in.
        examples: training images that are used; None takes all.
        depth: layers with weights, the classifier among them.
        width: of every hidden layer.
        learning_rate: constant throughout.
        batch_size: the paper gives it for Figures 3b and 8a alone.
        epochs: at most.
        stop_loss: training loss at which a run ends; None trains for all epochs.
        optimizer: "momentum" (0.9, with weight decay) or "adam".
        weight_decay: a usual value; the paper mentions weight decay without one.
        probe: training images on which alignments are measured, equally many of every class.
    """

    data: str = "digits"
    examples: int | None = None
    depth: int = 10
    width: int = 64
    learning_rate: float = 0.03
    batch_size: int = 128
    epochs: int = 40
    stop_loss: float | None = None
    optimizer: str = "momentum"
    weight_decay: float = 5e-4
    probe: int = 60


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


@dataclass(frozen=True)
class Ground:
    """Training, test and probe set on the device; the probe's images are training images."""

    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    probe: tuple[Tensor, Tensor]
    rows: Tensor  # of the probe among the training images
    classes: int

    @property
    def inputs(self) -> int:
        """Numbers in one image."""
        return self.train[0][0].numel()

    @property
    def targets(self) -> Tensor:
        """Labels of the probe as one-hot rows, in float64."""
        return nn.functional.one_hot(self.probe[1], self.classes).double()

    def with_labels(self, labels: Tensor) -> "Ground":
        """Other training labels, for the probe too; the test set keeps the true ones."""
        fresh = labels.to(self.train[1])
        probe = (self.probe[0], fresh[self.rows])
        return replace(self, train=(self.train[0], fresh), probe=probe)


def prepare(setting: Setting, trial: Trial, *, flat: bool = True) -> Ground:
    """Images with zero mean at every pixel and one standard deviation, and a probe of them."""
    split, rows, sample = (trial.generator(stream) for stream in (1, 2, 3))
    raw = digits(_DIGITS_TEST, split) if setting.data == "digits" else load_image_set(setting.data)
    if setting.examples is not None:
        raw = raw.take(torch.randperm(len(raw.x_train), generator=rows)[: setting.examples])
    data = scaled((raw.flat() if flat else raw).to(trial.device), "pixels")
    chosen = balanced_rows(data.y_train.cpu(), setting.probe, generator=sample).to(trial.device)
    labels, test_labels = data.y_train.long(), data.y_test.long()
    return Ground(
        (data.x_train, labels),
        (data.x_test, test_labels),
        (data.x_train[chosen], labels[chosen]),
        chosen,
        data.num_classes,
    )


def fully_connected(setting: Setting, ground: Ground, trial: Trial, stream: int = 0) -> Any:
    """A network without biases, He initialisation, on the device."""
    sizes = [ground.inputs, *[setting.width] * (setting.depth - 1), ground.classes]
    return mlp(sizes, bias=False, generator=trial.generator(stream)).to(trial.device)


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


def recipe_of(setting: Setting, seed: int, **changes: Any) -> Recipe:
    """The training of a setting as a recipe; the sets are evaluated at both ends."""
    entries: dict[str, Any] = {
        "optimizer": setting.optimizer,
        "learning_rate": setting.learning_rate,
        "weight_decay": setting.weight_decay,
        "batch_size": setting.batch_size,
        "epochs": setting.epochs,
        "stop": Stop(loss=setting.stop_loss),
        "seed": seed,
        "log": "ends",
    }
    return Recipe(**(entries | changes))


def learned(
    model: nn.Module, ground: Ground, recipe: Recipe, *callbacks: Callback
) -> TrainingLog | None:
    """Train in place. None if the loss was not finite; the network is then unchanged."""
    before = deepcopy(model.state_dict())
    try:
        log = train(model, ground.train, recipe, test=ground.test, callbacks=callbacks)
    except DivergenceError:
        log = None
    if log is None or not isfinite(log.final.train.loss):  # the last step may be the fatal one
        model.load_state_dict(before)
        return None
    return log


def final_numbers(log: TrainingLog | None) -> dict[str, float]:
    """Losses, accuracies (in percent) and gaps at the end of a run; nan if it diverged."""
    if log is None or log.final.test is None:
        return dict.fromkeys((*_OUTCOMES, "accuracy_gap", "last_epoch_loss"), float("nan"))
    train_set, test_set = log.final.train, log.final.test
    return {
        "train_loss": train_set.loss,
        "train_accuracy": 100 * train_set.accuracy,
        "test_loss": test_set.loss,
        "test_accuracy": 100 * test_set.accuracy,
        "loss_gap": log.gaps.loss,
        "accuracy_gap": log.gaps.accuracy,
        "steps": float(log.steps),
        "last_epoch_loss": log.epoch_losses[-1],
    }


def stepped(net: nn.Module, x: Tensor, targets: Tensor, rate: float) -> nn.Module:
    """A copy of the network after one gradient step on the mean cross-entropy of all examples.

    Args:
        net: the network, which is left as it is.
        x: inputs.
        targets: one-hot labels in float64.
        rate: of the step.
    """
    after = deepcopy(net)
    parameters = [*after.parameters()]
    outputs = after(x)
    gradients = torch.autograd.grad(
        outputs, parameters, cross_entropy_gradient(outputs.detach(), targets)
    )
    with torch.no_grad():
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.sub_(rate * gradient)
    return after


def with_head(net: nn.Module, scale: float) -> nn.Module:
    """A copy whose last layer is multiplied by a factor."""
    copy = deepcopy(net)
    with torch.no_grad():
        [*copy.parameters()][-1].mul_(scale)
    return copy
