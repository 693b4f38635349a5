"""Figure 6: early in training the loss pushes the outputs along the labels."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from theodolite_papers.lab.training import TrainingState
from theodolite_papers.ledger import (
    Claim,
    Line,
    Measured,
    Panel,
    Results,
    Space,
    Study,
    Trial,
    mean_and_error,
    named,
    within,
)
from theodolite_papers.lou2022._hierarchy import as_array, by_setting
from theodolite_papers.lou2022._setting import (
    Architecture,
    Ground,
    build,
    final_numbers,
    learned,
    prepare,
    recipe_of,
)
from theodolite_papers.lou2022.formulas.labels import label_gradient_correlation
from theodolite_papers.lou2022.formulas.losses import cross_entropy_gradient

__all__ = ["STUDY", "GradientSteps"]


@dataclass(frozen=True)
class GradientSteps(Architecture):
    """A network whose loss gradient is compared with the labels at every step.

    Args:
        first: steps of the first epoch, in which the correlation should be close to -1.
        total: steps that are followed.
        every: steps between two measurements.
    """

    first: int = 11
    total: int = 77
    every: int = 1


def measure(config: GradientSteps, trial: Trial) -> Measured:
    """Negative correlation of labels and loss gradient on the probe set."""
    ground = prepare(config, trial, flat=config.architecture == "ffnn")
    model = build(config, ground, trial)
    look = _Look(ground, config.every)
    recipe = recipe_of(config, trial.seed, epochs=None, steps=config.total)
    log = learned(model, ground, recipe, look)
    values = np.asarray(look.values)
    steps = np.asarray(look.steps)
    numbers = {
        **final_numbers(log),
        "initial": float(values[0]),
        "first_epoch": float(values[steps <= config.first].min()),
        "last": float(values[-1]),
    }
    return Measured(numbers, {"steps": steps.astype(np.int32), "values": as_array(values)})


class _Look:
    def __init__(self, ground: Ground, every: int) -> None:
        self._ground, self._every = ground, every
        self.steps: list[int] = []
        self.values: list[float] = []

    def __call__(self, state: TrainingState) -> None:
        if state.step % self._every:
            return
        targets = self._ground.targets
        with torch.no_grad():
            outputs = self._outputs(state.model).double()
        w = cross_entropy_gradient(outputs, targets)
        self.steps.append(state.step)
        self.values.append(-float(label_gradient_correlation(targets, w)))

    def _outputs(self, model: nn.Module) -> torch.Tensor:
        """Outputs in evaluation mode; the mode is restored afterwards."""
        model.eval()
        try:
            outputs: torch.Tensor = model(self._ground.probe[0])
            return outputs
        finally:
            model.train()


def draw(runs: Results) -> list[Panel]:
    """One curve per network and data set."""
    lines = []
    for (architecture, data), part in _groups(runs).items():
        mean, error = mean_and_error(part.array("values"))
        x = part.runs[0].arrays["steps"] + 1
        lines.append(Line(f"{architecture}, {data}", x, mean, error))
    return [Panel("Figure 6", lines, "step + 1", "- correlation of labels and gradient", "x")]


def _groups(runs: Results) -> dict[tuple[str, str], Results]:
    return {
        (str(architecture), str(data)): same
        for architecture, part in by_setting(runs, "architecture", "ffnn").items()
        for data, same in by_setting(part, "data", "digits").items()
    }


STUDY = Study(
    id="lou2022.fig6",
    title="Labels and the gradient of the loss in output space",
    shows=("Figure 6",),
    measure=measure,
    configs={
        "smoke": GradientSteps(
            depth=4, width=16, examples=200, probe=20, total=4, first=2, learning_rate=0.003
        ),
        "lite": GradientSteps(learning_rate=0.003),
        "reduced": GradientSteps(
            data="mnist",
            width=256,
            learning_rate=0.003,
            probe=500,
            first=390,
            total=1600,
            every=10,
        ),
    },
    spaces={
        "smoke": Space({"architecture": ["ffnn"]}),
        "lite": Space({"architecture": ["ffnn", "small_conv"]}),
        "reduced": Space(
            {"architecture": ["ffnn", "vgg19"], "data": ["mnist", "fashion_mnist", "cifar10"]}
        ),
    },
    seeds={"reduced": (101, 102, 103)},
    claims=(
        Claim(
            "lou2022.fig6.close",
            "minus the correlation of centred labels and loss gradient is at least 0.95 at the "
            "start and throughout the first epoch (11 steps of the digits)",
            within(named("initial", "first_epoch"), low=0.95),
            fragile="measured on a fully connected network beforehand; architectures and data of "
            "the figure are not named",
        ),
    ),
    draw=draw,
    stand_in={
        "lite": "8x8 digits; fully connected of width 64, and 9 convolutions of 16 channels with "
        "batch norm in evaluation mode",
    },
    not_run={"published": "the paper does not name its networks and data"},
    remarks={
        "reduced": "architectures and data are not named: a fully connected network and VGG19",
    },
)
