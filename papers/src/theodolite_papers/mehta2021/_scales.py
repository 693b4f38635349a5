"""Networks that differ in the scale of their first layer only, trained side by side and probed."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import nn

from theodolite.data import Dataset
from theodolite.interventions import scale_init_
from theodolite_papers.lab.models import mlp
from theodolite_papers.lab.training import Recipe, Watch, train_ensemble
from theodolite_papers.ledger import Measured, Trial
from theodolite_papers.mehta2021._probe import LOSSES, QUANTITIES, Probe
from theodolite_papers.mehta2021._sets import standardized_set

__all__ = [
    "PAPER_SIGMAS",
    "Course",
    "Scales",
    "chance_of",
    "courses",
    "measure_scales",
    "network",
    "numbers_of",
]

Reading = Callable[[Probe, nn.Module, int], dict[str, float]]

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
class Course:
    """What was measured of one network: quantity -> values, one per measured step."""

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
    """A bias-free network; generators of one state give networks that differ in scale alone."""
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


def everything(probe: Probe, model: nn.Module, step: int) -> dict[str, float]:
    """All quantities; the gradients of the first step are compared with plain autograd."""
    return probe.everything(model, check=step == 0)


def courses(
    config: Scales, trial: Trial, data: Dataset, read: Reading = everything
) -> tuple[list[int], list[Course]]:
    """Train one network per sigma from the same draw, and measure them on the way.

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
    probe = Probe.of(placed, config.probe, recipe.loss, layers_of(config), trial.generator(1))
    nets = [network(config, placed, s, trial.generator(2)).to(trial.device) for s in config.sigmas]
    found = [Course(sigma) for sigma in config.sigmas]
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


def _fit(config: Scales, found: Sequence[Course]) -> bool:
    learnt = [course.values["train"][-1] >= 1 for course in found]
    return any(learnt) if config.until_fit == "one" else all(learnt)


def numbers_of(course: Course, steps: Sequence[int], points: int, total: int) -> dict[str, float]:
    """What claims compare, each named ``quantity@sigma``.

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
    # Of classes that are balanced by design, the largest is an accident.
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
