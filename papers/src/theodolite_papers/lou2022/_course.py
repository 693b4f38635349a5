"""The hierarchy of a fully connected network, followed through its training."""

from dataclasses import dataclass

import numpy as np

from theodolite_papers.ledger import Line, Measured, Results, Trial, mean_and_error
from theodolite_papers.lou2022._hierarchy import Watch, as_array, shape_of
from theodolite_papers.lou2022._setting import (
    Setting,
    final_numbers,
    fully_connected,
    learned,
    prepare,
    recipe_of,
)

__all__ = ["Course", "follow", "layer_lines"]


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


def follow(config: Course, trial: Trial) -> Measured:
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
        **final_numbers(log),
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


def layer_lines(runs: Results) -> list[Line]:
    """Five layers from the first to the last: mean alignment against steps."""
    x = runs.runs[0].arrays["steps"]
    same = [run.arrays["curves"] for run in runs if len(run.arrays["curves"]) == len(x)]
    curves = np.stack(same).astype(np.float32)
    depth = curves.shape[2]
    lines = []
    for layer in dict.fromkeys([0, depth // 4, depth // 2, 3 * depth // 4, depth - 1]):
        mean, error = mean_and_error(curves[:, :, layer])
        lines.append(Line(f"layer {layer + 1}", x[1:], mean[1:], error[1:]))
    return lines
