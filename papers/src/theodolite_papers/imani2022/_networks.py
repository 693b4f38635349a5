"""Networks of the figures: their tasks, their training, and the alignment of their layers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from theodolite.data import Dataset, digits, disjoint_rows, scaled
from theodolite.engine import features
from theodolite.errors import DomainError, UnknownNameError
from theodolite.linalg import LabelProjections
from theodolite.measures.representation import (
    area_from_projections,
    curve_from_projections,
    label_projections,
    prepare_features,
    scaled_targets,
)
from theodolite_papers.lab.data import balanced_rows, load_ct_position, load_image_set
from theodolite_papers.lab.models import mlp
from theodolite_papers.lab.training import Logistic, Recipe, Squared, Stop, train
from theodolite_papers.ledger import Line, Results, Trial, mean_and_error

__all__ = [
    "RATES",
    "TASKS",
    "Problem",
    "Profile",
    "Training",
    "area_numbers",
    "build",
    "curve_array",
    "curve_lines",
    "hidden_layers",
    "layer_names",
    "layer_profiles",
    "load_problem",
    "profile",
    "recipe_for",
    "train_on",
]

# No study uses thresholds below this share of the root of n, except 0.
_SMALLEST = 1e-4


@dataclass(frozen=True)
class Profile:
    """Normalised area, and shares of the label mass over thresholds in units of the root of n."""

    area: float
    curve: Tensor


def profile(
    representation: Tensor, targets: Tensor, *, bias: bool = True, points: int = 51
) -> Profile:
    """Alignment of one representation with unit rows, a constant column appended before.

    Args:
        representation: one row per example, as the network gives it.
        targets: one number per example.
        bias: whether to append the constant column.
        points: thresholds of the curve, from 0 to the root of n.
    """
    prepared = prepare_features(representation, bias=bias).features
    found = label_projections(prepared, targets.to(prepared.device), threshold=_SMALLEST)
    return Profile(float(area_from_projections(found, normalized=True)), _curve(found, points))


def _curve(found: LabelProjections, points: int) -> Tensor:
    grid = torch.linspace(0, 1, points, dtype=torch.float64, device=found.singular_values.device)
    return curve_from_projections(found, grid, scale="normalized").values.cpu()


def hidden_layers(
    model: nn.Module, inputs: Tensor, layers: Sequence[str], pool: str = "flatten"
) -> dict[str, Tensor]:
    """Outputs of named layers in evaluation mode, one vector per example, on the model's device."""
    device = next(model.parameters()).device
    was_training = model.training
    found = features(model.eval(), inputs.to(device), list(layers), pool, read="raw")
    model.train(was_training)
    return {name: found[name] for name in layers}


def area_numbers(profiles: Mapping[str, Profile], prefix: str = "area") -> dict[str, float]:
    """The areas, by name."""
    return {f"{prefix}_{name}": found.area for name, found in profiles.items()}


def curve_array(profiles: Mapping[str, Profile]) -> np.ndarray:
    """The curves in the order of their names, small enough for a record."""
    return torch.stack([found.curve for found in profiles.values()]).to(torch.float16).numpy()


def curve_lines(
    runs: Results,
    array: str,
    names: Sequence[str],
    dashed: Sequence[str] = (),
    colors: Mapping[str, int] | None = None,
) -> list[Line]:
    """Mean curves over runs with their standard errors, one line per name.

    Args:
        runs: whose curves are drawn.
        array: name of the array of the records that holds the curves.
        names: of its rows.
        dashed: names whose lines are dashed.
        colors: name -> number of its colour; other names take the next colour.
    """
    stacked = runs.array(array).astype(np.float64)
    x = np.linspace(0, 1, stacked.shape[-1])
    lines = []
    for index, name in enumerate(names):
        mean, error = mean_and_error(stacked[:, index])
        color = (colors or {}).get(name)
        lines.append(Line(name, x, mean, error, dashed=name in dashed, color=color))
    return lines


# name -> (data set, classes or question)
TASKS = {
    "digits-pair": ("digits", "pair"),
    "digits-parity": ("digits", "parity"),
    "digits-value": ("digits", "value"),
    "mnist-pair": ("mnist", "pair"),
    "mnist-parity": ("mnist", "parity"),
    "cifar10-pair": ("cifar10", "pair"),
    "ct_position": ("ct_position", "value"),
}


@dataclass(frozen=True)
class Problem:
    """Training and test examples of one task.

    Args:
        name: a key of ``TASKS``.
        x_train: unit rows.
        y_train: +1 and -1, or numbers in [-1, 1].
        x_test: unit rows.
        y_test: as ``y_train``, by the same map.
        regression: whether the targets are numbers rather than classes.
    """

    name: str
    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor
    regression: bool

    @property
    def width(self) -> int:
        """Number of inputs."""
        return self.x_train.shape[1]


def load_problem(name: str, train: int, test: int, generator: torch.Generator) -> Problem:
    """Random training and test examples.

    Args:
        name: a key of ``TASKS``; a pair is the first two classes, parity even against odd, value
            the class or the target as a number.
        train: number of training examples.
        test: number of test examples.
        generator: draws both.

    Raises:
        UnknownNameError: If there is no such task.
        DataError: If the data set cannot be read.
        DomainError: If there are too few examples.
    """
    if name not in TASKS:
        raise UnknownNameError("task", name, TASKS)
    source, kind = TASKS[name]
    if source == "ct_position":
        data = scaled(load_ct_position(train, test, generator=generator), "unit_rows")
    else:
        data = _images(source, kind, (train, test), generator)
    y_train, y_test = _targets(data, kind)
    return Problem(
        name,
        data.x_train.float(),
        y_train.float(),
        data.x_test.float(),
        y_test.float(),
        regression=kind == "value",
    )


def _images(source: str, kind: str, sizes: tuple[int, int], generator: torch.Generator) -> Dataset:
    """A sample of an image set, flattened; of a pair, as many examples of either class."""
    if source == "digits":
        # Two classes have only 360 images: nearly all of them are for training.
        whole = digits(test_size=97 if kind == "pair" else 797, generator=generator)
    else:
        whole = load_image_set(source)
    rows = [
        _rows(labels, kind, size, generator)
        for labels, size in zip((whole.y_train, whole.y_test), sizes, strict=True)
    ]
    part = whole.take(*rows)
    return scaled(scaled(part, "unit_interval").flat(), "unit_rows")


def _rows(labels: Tensor, kind: str, size: int, generator: torch.Generator) -> Tensor:
    if kind == "pair":
        smallest = int(labels.bincount()[:2].min())
        return balanced_rows(labels, min(size, 2 * smallest), (0, 1), generator)
    if size > len(labels):
        raise DomainError(f"sizes: expected at most {len(labels)} examples, got {size}")
    return disjoint_rows(len(labels), size, generator=generator)[0]


def _targets(data: Dataset, kind: str) -> tuple[Tensor, Tensor]:
    if kind == "value":
        fitted = scaled_targets(data.y_train.double())
        return fitted.values, fitted.apply(data.y_test.double())
    sign = 2 * (data.y_train % 2) - 1, 2 * (data.y_test % 2) - 1
    return sign[0].double(), sign[1].double()


RATES = {"adam": 1e-3, "sgd": 0.1, "momentum": 0.05, "rmsprop": 5e-4}


@dataclass(frozen=True)
class Training:
    """How a network is trained; training stops early if the loss no longer changes.

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
    """A network with one output and the default initialisation of torch."""
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
    model: nn.Module, task: Problem, depth: int, *, bias: bool = True, subset: str = "train"
) -> Mapping[str, Profile]:
    """Alignment of every hidden layer on the training or the test examples."""
    x, y = (task.x_train, task.y_train) if subset == "train" else (task.x_test, task.y_test)
    with torch.no_grad():
        found = hidden_layers(model, x, layer_names(depth))
    return {name: profile(rows, y, bias=bias) for name, rows in found.items()}
