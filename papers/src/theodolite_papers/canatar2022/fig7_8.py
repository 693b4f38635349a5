"""Figures 7 and 8: the tangent kernel of a fully connected network through training."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from theodolite.data import Dataset, digits, scaled
from theodolite.sweeps import Space
from theodolite_papers.canatar2022._tangent import Look, look_at
from theodolite_papers.canatar2022._tangent_claims import CLAIMS
from theodolite_papers.canatar2022._tangent_pictures import draw
from theodolite_papers.lab.data import load_image_set
from theodolite_papers.lab.models import mlp, ntk_mlp
from theodolite_papers.lab.training import Recipe, Squared, TrainingLog, TrainingState, train
from theodolite_papers.ledger import Measured, Study, Trial

__all__ = ["STUDY", "TangentRun", "measure"]

_SETS = ("train", "test")


@dataclass(frozen=True)
class TangentRun:
    """A network whose tangent kernel is followed.

    Args:
        data: "digits" or "mnist".
        train: training examples.
        test: test examples.
        width: units of each of the four hidden layers.
        setting: "ntk" (NTK parametrisation, the printed rate), "standard" (a smaller rate) or
            "literal" (standard parametrisation, the printed rate).
        standard_rate: learning rate of "standard".
        printed_rate: learning rate of the others.
        batch_size: examples per step.
        epochs: passes over the training examples.
        recorded: epochs at which the kernel is taken.
        probe: examples of each set that it is taken on.
        modes: leading modes of the spectrum.
        permutations: of the labels, for the null of the alignment.
        log_every: epochs between two accuracies.
    """

    data: str = "digits"
    train: int = 500
    test: int = 500
    width: int = 64
    setting: str = "standard"
    standard_rate: float = 0.01
    printed_rate: float = 0.1
    batch_size: int = 50
    epochs: int = 50
    recorded: tuple[int, ...] = (0, 1, 2, 5, 10, 20, 50)
    probe: int = 200
    modes: int = 40
    permutations: int = 10
    log_every: int = 2


def measure(config: TangentRun, trial: Trial) -> Measured:
    """Train; at the recorded epochs take the traced kernel on both sets."""
    data = _data(config, trial).to(trial.device)
    model = _network(config, data, trial).to(trial.device)
    recipe = _recipe(config, trial.seed)
    per_epoch = recipe.steps_per_epoch(len(data.x_train))
    steps = {epoch * per_epoch for epoch in config.recorded}
    looks: list[tuple[Look, Look]] = []

    def watch(state: TrainingState) -> None:
        if state.step in steps:
            looks.append(_both_sets(config, model, data, trial))
            trial.report(state.epoch / config.epochs, f"epoch {state.epoch}")

    test = (data.x_test, data.y_test)
    log = train(model, (data.x_train, data.y_train), recipe, test=test, callbacks=[watch])
    return Measured(*_summary(config, looks, log, per_epoch), {"data": data.name})


def _data(config: TangentRun, trial: Trial) -> Dataset:
    """Pixels in [0, 1]; training and test examples drawn anew for every seed."""
    generator = trial.generator(0)
    small = config.data == "digits"
    raw = digits(config.test, generator) if small else load_image_set(config.data)
    rows = torch.randperm(len(raw.x_train), generator=generator)[: config.train]
    held = torch.randperm(len(raw.x_test), generator=generator)[: config.test]
    return scaled(raw.take(rows, held), "unit_interval")


def _network(config: TangentRun, data: Dataset, trial: Trial) -> nn.Module:
    """Four hidden layers; every weight starts as N(0, 1 / width), every bias at zero."""
    sizes = [data.x_train[0].numel(), *[config.width] * 4, data.num_classes]
    generator = trial.generator(1)
    if config.setting == "ntk":
        return ntk_mlp(sizes, variance=1 / config.width, generator=generator)
    scale = 1 / math.sqrt(config.width)
    return mlp(sizes, initializer="normal", scale=scale, generator=generator)


def _recipe(config: TangentRun, seed: int) -> Recipe:
    rate = config.standard_rate if config.setting == "standard" else config.printed_rate
    steps = -(-config.train // config.batch_size)
    return Recipe(
        loss=Squared(reduction="mean"),
        optimizer="adam",
        learning_rate=rate,
        batch_size=config.batch_size,
        epochs=config.epochs,
        log=config.log_every * steps,
        seed=seed,
    )


def _both_sets(
    config: TangentRun, model: nn.Module, data: Dataset, trial: Trial
) -> tuple[Look, Look]:
    def one(inputs: Tensor, labels: Tensor) -> Look:
        return look_at(
            model,
            inputs[: config.probe],
            labels[: config.probe],
            modes=config.modes,
            permutations=config.permutations,
            generator=trial.generator(2),
        )

    return one(data.x_train, data.y_train), one(data.x_test, data.y_test)


def _summary(
    config: TangentRun, looks: list[tuple[Look, Look]], log: TrainingLog, per_epoch: int
) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    """Numbers at both ends, curves over the epochs, spectra at the recorded ones."""
    assert log.final.test is not None
    numbers = {"train_accuracy": log.final.train.accuracy, "test_accuracy": log.final.test.accuracy}
    steps, train_curve = log.curve("train", "accuracy")
    arrays: dict[str, np.ndarray] = {
        "epochs": np.array(config.recorded, dtype=np.float32),
        "accuracy_epochs": np.array(steps, dtype=np.float32) / per_epoch,
        "accuracy_train": np.array(train_curve, dtype=np.float32),
        "accuracy_test": np.array(log.curve("test", "accuracy")[1], dtype=np.float32),
        "modes": looks[0][0].modes,
    }
    for index, name in enumerate(_SETS):
        seen = [pair[index] for pair in looks]
        for key in seen[0].numbers:
            curve = [look.numbers[key] for look in seen]
            numbers |= {f"{key}_{name}_start": curve[0], f"{key}_{name}_end": curve[-1]}
            arrays[f"{key}_{name}"] = np.array(curve, dtype=np.float32)
        arrays[f"eigenvalues_{name}"] = np.stack([look.eigenvalues for look in seen])
        arrays[f"power_{name}"] = np.stack([look.power for look in seen])
    return numbers, arrays


_SETTINGS = ["ntk", "standard", "literal"]
STUDY = Study(
    id="canatar2022.fig7-8",
    title="The tangent kernel through training",
    shows=("Figure 7", "Figure 8"),
    measure=measure,
    configs={
        "smoke": TangentRun(
            train=100,
            test=100,
            width=16,
            epochs=4,
            recorded=(0, 4),
            probe=60,
            modes=20,
            permutations=2,
        ),
        "lite": TangentRun(),
        "paper": TangentRun(
            data="mnist",
            train=10_000,
            test=10_000,
            width=200,
            setting="ntk",
            standard_rate=1e-3,
            batch_size=500,
            epochs=3000,
            recorded=(0, 1, 10, 100, 1000, 3000),
            probe=10_000,
            modes=60,
            permutations=3,
            log_every=30,
        ),
    },
    claims=CLAIMS,
    draw=draw,
    seeds={"paper": (101,)},
    spaces={size: Space({"setting": _SETTINGS}) for size in ("smoke", "lite", "paper")},
    stand_in={
        "lite": "500 + 500 digits of 8x8 pixels and 64 units for MNIST and 200 units; 50 epochs; "
        "the kernel on 200 examples of each set",
        "paper": "one seed; the kernel at six epochs",
    },
)
