"""Figures 2 and 7: the hierarchy appears within the first epochs, and then stays."""

from dataclasses import dataclass

import numpy as np

from theodolite.studies import (
    Claim,
    Judgment,
    Line,
    Measured,
    Panel,
    Results,
    Study,
    Trial,
    judge,
    mean_and_error,
)
from theodolite.studies.tangent._hierarchy import (
    Watch,
    as_array,
    by_setting,
    hierarchy_line,
    shape_of,
)
from theodolite.studies.tangent._setting import (
    Setting,
    fully_connected,
    learned,
    outcome,
    prepare,
    recipe_of,
)
from theodolite.sweeps import Space

__all__ = ["STUDY", "Course"]


@dataclass(frozen=True)
class Course(Setting):
    """A network whose hierarchy is followed through training.

    Args:
        early_epochs: within which most of the rise should lie. The paper says about 2 epochs, of
            some 400 steps each; the digits have 11 steps per epoch.
        moments: about how many times the hierarchy is measured.
    """

    early_epochs: int = 10
    moments: int = 24


def measure(config: Course, trial: Trial) -> Measured:
    """Alignment of every layer from the first step to the last."""
    ground = prepare(config, trial)
    model = fully_connected(config, ground, trial)
    per_epoch = recipe_of(config, trial.seed).steps_per_epoch(len(ground.train[0]))
    recipe = recipe_of(config, trial.seed, log=per_epoch)
    early, total = config.early_epochs * per_epoch, recipe.total_steps(len(ground.train[0]))
    watch = Watch(ground, _moments(total, early, config.moments))
    log = learned(model, ground, recipe, watch)
    curves = np.stack(watch.curves)
    shape = shape_of(curves[-1])
    then = min(range(len(watch.steps)), key=lambda i: abs(watch.steps[i] - early))
    lowest = np.argsort(curves[-1])[:2].tolist()
    numbers = {
        **outcome(log),
        **shape,
        "early": float(curves[then, int(shape["peak"]) - 1]),
        "last_is_low": float(config.depth - 1 in lowest),
        "first_is_low": float(0 in lowest),
    }
    losses = [] if log is None else log.curve("train", "loss")[1]
    arrays: dict[str, np.ndarray] = {
        "steps": np.asarray(watch.steps, dtype=np.int32),
        "curves": curves.astype(np.float16),
        "losses": as_array(losses),
        "final": as_array(curves[-1]),
    }
    return Measured(numbers, arrays)


def _moments(total: int, early: int, count: int) -> set[int]:
    """Steps at which to look: more densely at the start."""
    spaced = np.geomspace(1, total, count).round().astype(int)
    return {0, min(early, total), total, *spaced.tolist()}


def _inside(runs: Results) -> Judgment:
    peak, depth = runs["peak"][0], len(runs.array("final")[0])
    return judge(1 < peak < depth, peak=peak, prominence=runs["prominence"][0])


def _early(runs: Results) -> Judgment:
    early, final = runs["early"][0], runs["height"][0]
    return judge(early >= final / 2, early=early, final=final)


def _last_low(runs: Results) -> Judgment:
    return judge(runs["last_is_low"][0] == 1, last=runs["last_is_low"][0])


def _first_low(runs: Results) -> Judgment:
    return judge(runs["first_is_low"][0] == 1, first=runs["first_is_low"][0])


def draw(runs: Results) -> list[Panel]:
    """Per data set: some layers against steps, and the final hierarchy."""
    panels = []
    for name, part in by_setting(runs, "data", "digits").items():
        x = part.runs[0].arrays["steps"]
        curves = part.array("curves").astype(np.float32)
        depth = curves.shape[2]
        lines = []
        for layer in dict.fromkeys([0, depth // 4, depth // 2, 3 * depth // 4, depth - 1]):
            mean, error = mean_and_error(curves[:, :, layer])
            lines.append(Line(f"layer {layer + 1}", x[1:], mean[1:], error[1:]))
        panels.append(Panel(f"Figures 2 and 7, {name}", lines, "step", "alignment", "x"))
        final = hierarchy_line("after training", part, "final")
        panels.append(Panel(f"{name}, final", [final], "layer", "alignment"))
    return panels


_PAPER = Course(
    data="mnist", width=256, learning_rate=0.003, epochs=60, probe=200, early_epochs=2, moments=24
)
STUDY = Study(
    id="lou2022.fig2-7",
    title="The alignment hierarchy through training",
    shows=("Figure 2", "Figure 7"),
    measure=measure,
    configs={
        "smoke": Course(
            depth=4, width=16, epochs=2, examples=200, probe=20, early_epochs=1, moments=4
        ),
        "lite": Course(),
        "paper": _PAPER,
    },
    spaces={"paper": Space({"data": ["mnist", "cifar10", "fashion_mnist"]})},
    seeds={"paper": (101, 102, 103)},
    claims=(
        Claim("lou2022.fig2-7.inside", "the final alignment peaks inside the network", _inside),
        Claim(
            "lou2022.fig2-7.early",
            "the layer of the peak has at least half of its final alignment after two epochs of "
            "the paper (10 of the digits, which are 110 steps)",
            _early,
        ),
        Claim(
            "lou2022.fig2-7.last",
            "the last layer is among the two of lowest alignment",
            _last_low,
        ),
        Claim(
            "lou2022.fig2-7.first",
            "the first layer tends to be among the two of lowest alignment",
            _first_low,
            sizes=("paper",),
            fragile="a tendency in the paper's words; on small data the second half of the network "
            "is lower",
        ),
    ),
    draw=draw,
    stand_in={
        "lite": "8x8 digits, width 64, learning rate 0.03 (with 0.003 little is learned in 40 "
        "epochs of 11 steps)",
        "paper": "60 epochs, a number the paper does not give; without KMNIST",
    },
)
