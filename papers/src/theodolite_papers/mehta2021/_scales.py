"""Networks that differ only in the scale of their first layer: data, measurements, training."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from theodolite.data import Dataset, digits, image_standardized
from theodolite.engine import features, gradient_alignment, tangent_kernels
from theodolite.engine.state import exact_arithmetic
from theodolite.errors import UnknownNameError
from theodolite.measures.gradient import alignment_contrast, confusion_of_gram, in_class_alignment
from theodolite_papers.lab.data import average_pooled, balanced_rows, load_image_set
from theodolite_papers.lab.models import mlp
from theodolite_papers.lab.training import (
    Hinge,
    Loss,
    Recipe,
    Softmax,
    Squared,
    Watch,
    evaluate,
    train_ensemble,
)
from theodolite_papers.ledger import Measured, Trial
from theodolite_papers.mehta2021.formulas.scale_init import scale_init_

__all__ = [
    "LOSSES",
    "PAPER_SIGMAS",
    "PER_CLASS",
    "QUANTITIES",
    "SETS",
    "ProbeSet",
    "ScaleCurves",
    "Scales",
    "chance_of",
    "courses",
    "measure_scales",
    "network",
    "numbers_of",
    "standardized_set",
]

PER_CLASS = 200  # examples of each class of the small image sets, in training and in test
_NOISE = 2.0  # of the many-class mixture, in deviations of its centers: hard enough to fail at
# name -> (image set, side of the squares that become one pixel)
_POOLED = {"cifar8": ("cifar10", 4), "cifar16": ("cifar10", 2), "fashion14": ("fashion_mnist", 2)}
# name -> (image set, training examples of each class); all test examples
_PARTS = {"cifar10_10k": ("cifar10", 1000), "cifar10_20k": ("cifar10", 2000)}
_WHOLE = ("cifar10", "cifar100", "svhn")
SETS = ("digits", "mixture50", *_POOLED, *_PARTS, *_WHOLE)


def standardized_set(name: str, generator: torch.Generator) -> Dataset:
    """A data set whose inputs have mean zero and the norm of a vector of ones.

    Args:
        name: "digits" (1000 + 797), "mixture50" (50 Gaussian classes in 64 dimensions), "cifar8",
            "cifar16", "fashion14" (image sets shrunk to that side, 200 + 200 of each class),
            "cifar10_10k", "cifar10_20k" (so many training images), or a whole image set.
        generator: draws the split or the rows.

    Raises:
        UnknownNameError: If there is no such set.
        DataError: If its images are not available; the message says which file to put where.
    """
    if name not in SETS:
        raise UnknownNameError("data set", name, SETS)
    if name == "digits":
        chosen = digits(797, generator)
    elif name == "mixture50":
        chosen = _mixture(50, 64, 20, generator)
    elif name in _POOLED:
        source, factor = _POOLED[name]
        chosen = _shrunk(_whole(source), factor, generator)
    elif name in _PARTS:
        source, each = _PARTS[name]
        chosen = _part(_whole(source), each, generator)
    else:
        chosen = _whole(name)
    return chosen.mapped(image_standardized, "image")


@cache
def _whole(name: str) -> Dataset:
    return load_image_set(name)


def _shrunk(whole: Dataset, factor: int, generator: torch.Generator) -> Dataset:
    size = PER_CLASS * whole.num_classes
    train = balanced_rows(whole.y_train, size, generator=generator)
    test = balanced_rows(whole.y_test, size, generator=generator)
    return whole.take(train, test).mapped(lambda x: average_pooled(x, factor), f"mean of {factor}")


def _part(whole: Dataset, each: int, generator: torch.Generator) -> Dataset:
    rows = balanced_rows(whole.y_train, each * whole.num_classes, generator=generator)
    return whole.take(rows)


def _mixture(
    num_classes: int, dimensions: int, per_class: int, generator: torch.Generator
) -> Dataset:
    """Gaussians around centers that are Gaussian too; a stand-in for a hundred classes."""
    centers = torch.randn(num_classes, dimensions, generator=generator)

    def split() -> tuple[Tensor, Tensor]:
        labels = torch.arange(num_classes).repeat_interleave(per_class)
        noise = torch.randn(len(labels), dimensions, generator=generator)
        return centers[labels] + _NOISE * noise, labels

    return Dataset("mixture50", *split(), *split())


# sin of pre-activations of several hundred turns rounding in float32 into differences of 1e-4
# between batches. A check of batches would report that examples depend on each other.
_CHECK = False

LOSSES: dict[str, Callable[[], Loss]] = {
    "softmax": Softmax,
    "hinge": Hinge,
    # The program's mean over the classes, not the text's half sum.
    "squared": lambda: Squared(reduction="mean"),
}

QUANTITIES = (
    "train",  # accuracy
    "test",
    "hidden",  # in-class alignment of the gradients of the first layer
    "top",  # of the last layer
    "logit",  # of the outputs
    "representation",  # of the activations of the last hidden layer
    "hidden_contrast",  # in-class minus overall
    "representation_contrast",
    "relative_norm",  # of the first layer
    "diversity",
    "stiffness",
    "confusion",
)


@dataclass(frozen=True)
class ProbeSet:
    """A class-balanced part of the training set, and both whole sets for the accuracies.

    Args:
        data: on the device of the networks, with the labels that are trained on.
        rows: of the training set, equally many of each class.
        loss: that is trained with.
        layers: first layer, last layer, and the activation before the last layer.
    """

    data: Dataset
    rows: Tensor
    loss: Loss
    layers: tuple[str, str, str]

    @classmethod
    def of(
        cls,
        data: Dataset,
        size: int,
        loss: Loss,
        layers: tuple[str, str, str],
        generator: torch.Generator,
    ) -> "ProbeSet":
        """A probe of at most ``size`` rows; with many classes the first ten, as the program."""
        classes = list(range(min(data.num_classes, 10)))
        labels = data.y_train.cpu()
        fewest = min(int((labels == c).sum()) for c in classes)
        each = min(size // len(classes), fewest)
        rows = balanced_rows(labels, each * len(classes), classes, generator)
        return cls(data, rows.to(data.x_train.device), loss, layers)

    def accuracies(self, model: nn.Module) -> dict[str, float]:
        """Share of right answers on both whole sets."""
        data = self.data
        return {
            "train": evaluate(model, data.x_train, data.y_train, self.loss).accuracy,
            "test": evaluate(model, data.x_test, data.y_test, self.loss).accuracy,
        }

    def representation(self, model: nn.Module) -> dict[str, float]:
        """Alignment and contrast of the last hidden layer; a class of zeros counts as 0."""
        x, y = self.data.x_train[self.rows], self.data.y_train[self.rows]
        last = self.layers[2]
        with exact_arithmetic(x.device):
            hidden = features(model, x, [last], read="raw", check=_CHECK)[last]
        return {
            "representation": float(in_class_alignment(hidden, y, zero="zero")),
            "representation_contrast": float(alignment_contrast(hidden, y, zero="zero")),
        }

    def gradients(self, model: nn.Module) -> dict[str, float]:
        """Agreement of the gradients of single examples; a class of zeros counts as 0."""
        x, y = self.data.x_train[self.rows], self.data.y_train[self.rows]
        first, last, _ = self.layers
        found = gradient_alignment(
            model, x, y, self.loss, zero="zero", stiffness=True, check=_CHECK, layers=[first, last]
        )
        hidden, top = found[first], found[last]
        gram = tangent_kernels(model, (x, y), [first], outputs=self.loss, check=_CHECK)[first]
        assert hidden.stiffness is not None
        return {
            "hidden": float(hidden.in_class),
            "top": float(top.in_class),
            "logit": float(found.logits.in_class),
            "hidden_contrast": float(hidden.contrast),
            "relative_norm": float(hidden.relative_norm),
            "diversity": float(hidden.diversity),
            "stiffness": float(hidden.stiffness),
            "confusion": float(confusion_of_gram(gram)),
        }

    def everything(self, model: nn.Module) -> dict[str, float]:
        """One value of each of ``QUANTITIES``."""
        return self.accuracies(model) | self.representation(model) | self.gradients(model)


Reading = Callable[[ProbeSet, nn.Module, int], dict[str, float]]

PAPER_SIGMAS = (0.001, 0.01, 0.1, 1.0, 10.0)
_PAPER_INPUTS = 3072
_AVERAGED = (
    *("hidden", "top", "logit", "hidden_contrast", "relative_norm"),
    *("diversity", "stiffness", "confusion"),
)


@dataclass(frozen=True)
class Scales:
    """An experiment over scales of initialisation.

    Args:
        data: see ``standardized_set``.
        activation: of the hidden layers.
        loss: "softmax", "hinge" or "squared" (the program's mean over classes).
        hidden: widths of the hidden layers.
        sigmas: deviations of the first layer for 3072 inputs; with p inputs sigma * sqrt(3072 / p)
            is taken, which gives pre-activations of the same size.
        rate: learning rate.
        first_rate: of the first layer, where it is another; 0 freezes it.
        batch_size: examples per step.
        steps: at most so many.
        points: log-spaced steps that are measured; a quarter as many equally spaced ones join.
        probe: examples of the fixed, class-balanced probe set.
        until_fit: stop when every network (or ``"one"``) has learnt its whole training set.
    """

    data: str = "digits"
    activation: str = "sin"
    loss: str = "softmax"
    hidden: tuple[int, ...] = (256,)
    sigmas: tuple[float, ...] = PAPER_SIGMAS
    rate: float = 0.1
    first_rate: float | None = None
    batch_size: int = 128
    steps: int = 1500
    points: int = 20
    probe: int = 250
    until_fit: bool | Literal["one"] = False


@dataclass
class ScaleCurves:
    """Measurements of one network: quantity -> values, one per measured step."""

    sigma: float
    values: dict[str, list[float]] = field(default_factory=lambda: {q: [] for q in QUANTITIES})

    def add(self, found: dict[str, float]) -> None:
        """One more step."""
        for name, value in found.items():
            self.values[name].append(value)

    @property
    def fitted(self) -> int:
        """Position of the first step at which every training example is right; else the last."""
        hits = [k for k, share in enumerate(self.values["train"]) if share >= 1]
        return hits[0] if hits else len(self.values["train"]) - 1


def measured_steps(total: int, points: int) -> list[int]:
    """Log-spaced steps and some equally spaced ones, with both ends."""
    spaced = np.geomspace(1, total, min(points, total)).round()
    even = np.linspace(0, total, max(points // 4, 1) + 1).round()
    return sorted({int(step) for step in (*spaced, *even)})


def network(config: Scales, data: Dataset, sigma: float, generator: torch.Generator) -> nn.Module:
    """A network without biases; generators of one state give networks that differ only in scale."""
    inputs = math.prod(data.shape)
    model = mlp([inputs, *config.hidden, data.num_classes], config.activation, bias=False)
    return scale_init_(model, sigma * math.sqrt(_PAPER_INPUTS / inputs), generator=generator)


def layers_of(config: Scales) -> tuple[str, str, str]:
    """Names of the first layer, the last layer and the last activation."""
    depth = len(config.hidden) + 1
    return "fc1", f"fc{depth}", f"act{depth - 1}"


def recipe_of(config: Scales, seed: int) -> Recipe:
    """How all networks of the experiment are trained."""
    rates = {} if config.first_rate is None else {"fc1": config.first_rate}
    return Recipe(
        loss=LOSSES[config.loss](),
        learning_rate=config.rate,
        layer_rates=rates,
        batch_size=config.batch_size,
        steps=config.steps,
        seed=seed,
        log="ends",
    )


def courses(
    config: Scales,
    trial: Trial,
    data: Dataset,
    read: Reading = lambda probe, model, step: probe.everything(model),
) -> tuple[list[int], list[ScaleCurves]]:
    """Train one network per sigma from the same random draw, and measure them during training.

    Args:
        config: of the experiment.
        trial: of the run.
        data: standardised.
        read: (probe, network, step) -> what is measured at a step.

    Returns:
        The measured steps, and a course for each sigma.
    """
    placed = data.flat().to(trial.device)
    recipe = recipe_of(config, trial.seed)
    probe = ProbeSet.of(placed, config.probe, recipe.loss, layers_of(config), trial.generator(1))
    nets = [network(config, placed, s, trial.generator(2)).to(trial.device) for s in config.sigmas]
    found = [ScaleCurves(sigma) for sigma in config.sigmas]
    steps: list[int] = []

    def look(step: int, networks: Sequence[nn.Module]) -> bool:
        for course, model in zip(found, networks, strict=True):
            course.add(read(probe, model, step))
        steps.append(step)
        trial.report(step / config.steps, f"step {step}")
        return config.until_fit is not False and _fit(config, found)

    train_ensemble(
        nets,
        (placed.x_train, placed.y_train),
        recipe,
        seeds=[trial.seed] * len(nets),
        watch=Watch(frozenset(measured_steps(config.steps, config.points)), look),
    )
    return steps, found


def _fit(config: Scales, found: Sequence[ScaleCurves]) -> bool:
    learnt = [course.values["train"][-1] >= 1 for course in found]
    return any(learnt) if config.until_fit == "one" else all(learnt)


def numbers_of(
    course: ScaleCurves, steps: Sequence[int], points: int, total: int
) -> dict[str, float]:
    """The numbers that claims compare, named ``quantity@sigma``.

    Alignments of gradients are means over the log-spaced steps from the start to the fit: later
    gradients vanish. Those of representations are taken at the end.
    """
    logarithmic = {0, *(int(s) for s in np.geomspace(1, total, min(points, total)).round())}
    until = [k for k, s in enumerate(steps) if s in logarithmic and k <= course.fitted]
    tag = f"@{course.sigma:g}"
    answer = {
        f"best_test{tag}": max(course.values["test"]),
        f"train{tag}": max(course.values["train"]),
        f"fitted_step{tag}": float(steps[course.fitted]),
    }
    for name in _AVERAGED:
        answer[f"{name}{tag}"] = _mean([course.values[name][k] for k in until])
    for name in ("representation", "relative_norm", "top", "logit"):
        answer[f"{name}_start{tag}"] = course.values[name][0]
    for name in ("representation", "representation_contrast", "diversity", "hidden"):
        answer[f"{name}_end{tag}"] = course.values[name][-1]
    return answer


def _mean(values: Sequence[float]) -> float:
    """Over the steps where the value is finite; nan if it never is."""
    finite = [value for value in values if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else math.nan


def chance_of(data: Dataset) -> dict[str, float]:
    """Accuracy of always naming the largest class, and the number of examples it is tested on."""
    shares = torch.bincount(data.y_test) / len(data.y_test)
    # Classes are balanced by design, so the largest class is a matter of chance.
    chance = 1 / data.num_classes if data.name != "svhn" else float(shares.max())
    return {"chance": chance, "test_size": float(len(data.y_test))}


def measure_scales(config: Scales, trial: Trial) -> Measured:
    """Curves of all quantities for every sigma, and the numbers that claims compare."""
    data = standardized_set(config.data, trial.generator())
    steps, found = courses(config, trial, data)
    numbers = {"steps": float(steps[-1])} | chance_of(data)
    for course in found:
        numbers |= numbers_of(course, steps, config.points, config.steps)
    arrays = {
        name: np.array([course.values[name] for course in found], dtype=np.float32)
        for name in QUANTITIES
    }
    arrays["step"] = np.array(steps, dtype=np.int32)
    arrays["sigma"] = np.array(config.sigmas, dtype=np.float32)
    return Measured({name: float(f"{v:.6g}") for name, v in numbers.items()}, arrays)
