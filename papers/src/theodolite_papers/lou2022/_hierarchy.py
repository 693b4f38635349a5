"""Alignment of every layer of a network, at one moment or through its training."""

from collections.abc import Iterable
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from theodolite.engine import tangent_alignments
from theodolite.measures.tangent import peak_layer
from theodolite_papers.lab.training import TrainingState
from theodolite_papers.ledger import (
    Check,
    Line,
    Measured,
    Outcome,
    Results,
    Trial,
    decided,
    inside,
    mean_and_error,
    outcome,
)
from theodolite_papers.lou2022._setting import (
    Architecture,
    Ground,
    build,
    final_numbers,
    learned,
    prepare,
    recipe_of,
)
from theodolite_papers.lou2022.formulas.hierarchy import prominence

__all__ = [
    "AlignmentWatch",
    "alignments",
    "as_array",
    "by_setting",
    "converged",
    "hierarchy_line",
    "log_slope",
    "measurable",
    "peak_between",
    "run_once",
    "settings_of",
    "shape_of",
    "weight_layers",
]


def weight_layers(model: nn.Module) -> list[str]:
    """Linear and convolutional layers; normalisation layers are not part of the hierarchy."""
    return [
        name for name, part in model.named_modules() if isinstance(part, (nn.Linear, nn.Conv2d))
    ]


def measurable(model: nn.Module, x: Tensor) -> tuple[nn.Module, Tensor]:
    """A copy of a network in evaluation mode, and its inputs, in the precision to measure in.

    Networks of linear layers are measured in float64: their tangent kernels at initialisation are
    so nearly constant that single precision would be lost in the centring.
    """
    copy = deepcopy(model).eval()
    if any(isinstance(part, nn.Conv2d) for part in copy.modules()):
        return copy, x
    return copy.double(), x.double()


def alignments(model: nn.Module, ground: Ground, params: str | None = None) -> np.ndarray:
    """Alignment of every layer with the labels of the probe, in order of execution.

    All parameters count, or those that a pattern selects.
    """
    copy, x = measurable(model, ground.probe[0])
    copy.requires_grad_(True)
    found = tangent_alignments(copy, x, ground.probe[1], weight_layers(copy), params=params)
    return found.curve.cpu().numpy()


class AlignmentWatch:
    """A callback of training that measures the hierarchy after chosen numbers of steps."""

    def __init__(self, ground: Ground, steps: Iterable[int]) -> None:
        self._ground, self._chosen = ground, frozenset(steps)
        self.steps: list[int] = []
        self.curves: list[np.ndarray] = []

    def __call__(self, state: TrainingState) -> bool:
        """Measure if a measurement is due. If the network has diverged, the run ends."""
        if state.step not in self._chosen:
            return False
        if not all(bool(p.isfinite().all()) for p in state.model.parameters()):
            return True
        self.steps.append(state.step)
        self.curves.append(alignments(state.model, self._ground))
        return False


def shape_of(curve: np.ndarray) -> dict[str, float]:
    """Height and layer of the peak, and its distance above both ends."""
    values = torch.from_numpy(np.asarray(curve, dtype=np.float64))
    return {
        "peak": float(peak_layer(values)),
        "height": float(np.nanmax(curve)) if not np.isnan(curve).all() else float("nan"),
        "prominence": float(prominence(values)),
    }


def by_setting(runs: Results, name: str, default: Any = None) -> dict[Any, Results]:
    """The runs of each value of a swept setting, in the order of the runs."""
    values = dict.fromkeys(run.point.get(name, default) for run in runs)
    return {
        value: Results(tuple(run for run in runs if run.point.get(name, default) == value))
        for value in values
    }


def settings_of(runs: Results, name: str) -> np.ndarray:
    """The value of a swept setting in every run."""
    return np.asarray([run.point[name] for run in runs], dtype=np.float64)


def hierarchy_line(name: str, runs: Results, key: str, *, dashed: bool = False) -> Line:
    """Mean alignment over runs against the number of the layer, with its standard error."""
    mean, error = mean_and_error(runs.array(key))
    return Line(name, np.arange(1, len(mean) + 1), mean, error, dashed=dashed)


def as_array(values: Tensor | np.ndarray | list[float]) -> np.ndarray:
    """Single precision, which is enough for a picture."""
    return np.asarray(values, dtype=np.float32)


def run_once(config: Architecture, trial: Trial) -> Measured:
    """Train to a small loss; alignments before and after, gaps, and whether it was reached."""
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
    """The runs that reached their training loss; other runs are not comparable."""
    return runs.chosen(lambda run: run["converged"] == 1)


def peak_between(low: float, high: float) -> Check:
    """The median peak lies in this range of the depth."""

    def check(runs: Results) -> Outcome:
        reached = converged(runs)
        if not len(reached):
            return outcome(None, runs=len(runs))
        share = float(np.median(reached["peak"] / reached["layers"]))
        return decided(inside("median", share, low, high, strict=False))

    return check


def log_slope(x: np.ndarray, y: np.ndarray) -> float:
    """Least-squares slope of log y against log x."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])
