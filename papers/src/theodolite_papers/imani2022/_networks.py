"""Fully connected networks of the figures: built, trained, and read layer by layer."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from theodolite_papers.imani2022._profiles import Profile, hidden_layers, profile
from theodolite_papers.imani2022._tasks import Task
from theodolite_papers.lab.models import mlp
from theodolite_papers.lab.training import Logistic, Recipe, Squared, Stop, train
from theodolite_papers.ledger import Trial

__all__ = ["RATES", "Training", "build", "layer_names", "layer_profiles", "recipe_for", "train_on"]

RATES = {"adam": 1e-3, "sgd": 0.1, "momentum": 0.05, "rmsprop": 5e-4}


@dataclass(frozen=True)
class Training:
    """How a network is trained; stops early where its loss no longer moves.

    Args:
        epochs: at most.
        optimizer: "adam", "sgd", "momentum" or "rmsprop", each with its own rate.
        batch_size: examples per step.
        until_converged: stop when 10 epochs improve the loss by less than a thousandth, or at a
            logistic loss of 1e-3.
    """

    epochs: int = 60
    optimizer: str = "adam"
    batch_size: int = 64
    until_converged: bool = False


def build(
    inputs: int, depth: int, width: int, trial: Trial, *, activation: str = "relu", stream: int = 1
) -> nn.Module:
    """A network with one output in the framework's own initialisation."""
    generator = trial.generator(stream)
    sizes = [inputs, *[width] * depth, 1]
    return mlp(sizes, activation, initializer="default", generator=generator).to(trial.device)


def recipe_for(training: Training, seed: int, *, regression: bool) -> Recipe:
    """Squared loss for numbers, logistic loss for classes."""
    stop = Stop()
    if training.until_converged:
        stop = Stop(loss=None if regression else 1e-3, improvement=1e-3, patience=10)
    return Recipe(
        loss=Squared(reduction="mean") if regression else Logistic(),
        optimizer=training.optimizer,  # type: ignore[arg-type]
        learning_rate=RATES[training.optimizer],
        batch_size=training.batch_size,
        epochs=training.epochs,
        stop=stop,
        seed=seed,
        log="ends",
    )


def train_on(model: nn.Module, inputs: Tensor, targets: Tensor, recipe: Recipe) -> float:
    """Train in place; the training loss at the end."""
    return train(model, (inputs, targets), recipe).final.train.loss


def layer_names(depth: int) -> list[str]:
    """The activations of all hidden layers, from the input on."""
    return [f"act{k}" for k in range(1, depth + 1)]


def layer_profiles(
    model: nn.Module, task: Task, depth: int, *, bias: bool = True, subset: str = "train"
) -> Mapping[str, Profile]:
    """Alignment of every hidden layer on the training or the test examples."""
    x, y = (task.x_train, task.y_train) if subset == "train" else (task.x_test, task.y_test)
    with torch.no_grad():
        found = hidden_layers(model, x, layer_names(depth))
    return {name: profile(rows, y, bias=bias) for name, rows in found.items()}
