"""Approximations 1 and 2: the gradient is parallel to the labels; features change linearly."""

from dataclasses import dataclass
from math import nan

import numpy as np
from torch import Tensor, nn

from theodolite_papers.ledger import (
    Claim,
    Line,
    Measured,
    Outcome,
    Panel,
    Results,
    Study,
    Trial,
    above,
    below,
    decided,
    inside,
    mean_and_error,
)
from theodolite_papers.lou2022._hierarchy import as_array, log_slope
from theodolite_papers.lou2022._setting import Setting, fully_connected, prepare, stepped, with_head
from theodolite_papers.lou2022.formulas.feature_updates import (
    FeatureChange,
    feature_change,
    feature_update_correlation,
)
from theodolite_papers.lou2022.formulas.labels import label_gradient_correlation
from theodolite_papers.lou2022.formulas.losses import cross_entropy_gradient

__all__ = ["STUDY", "Approximate"]

_SMALL_STEPS = tuple(np.geomspace(1e-7, 1e-4, 7))
_FEW = 20  # examples: the fewer, the larger the steps in which no unit changes its sign
_LARGE_STEP = 0.1


@dataclass(frozen=True)
class Approximate(Setting):
    """Networks at their initialisation.

    Args:
        heads: factors of the last layer's weights.
    """

    heads: tuple[float, ...] = (1.0, 0.3, 0.1, 0.03, 0.01)
    probe: int = 100


def measure(config: Approximate, trial: Trial) -> Measured:
    """Both approximations against the size of the last layer and of the step."""
    ground = prepare(config, trial)
    x, targets = ground.probe[0].double(), ground.targets
    y = targets - targets.mean()
    deep = fully_connected(config, ground, trial).double()
    correlations, cosines = [], []
    for scale in config.heads:
        net = with_head(deep, scale)
        w = cross_entropy_gradient(net(x).detach(), targets)
        correlations.append(-float(label_gradient_correlation(targets, w)))
        after = stepped(net, x, targets, _LARGE_STEP)
        cosines.append(float(feature_update_correlation(net, after, x, targets).cosine))
    large = _change(deep, x, (y, targets), _LARGE_STEP)
    numbers = {"large_error": float(large.relative_error), "large_flips": float(large.flips)}
    for depth in (2, 3):
        small = Setting(data=config.data, depth=depth, width=config.width)
        numbers |= _first_order(fully_connected(small, ground, trial).double(), x, (y, targets))
    arrays = {"heads": config.heads, "correlations": correlations, "cosines": cosines}
    return Measured(numbers, {name: as_array([*values]) for name, values in arrays.items()})


def _change(net: nn.Module, x: Tensor, labels: tuple[Tensor, Tensor], rate: float) -> FeatureChange:
    y, targets = labels
    return feature_change(net, stepped(net, x, targets, rate), x, y)


def _first_order(net: nn.Module, x: Tensor, labels: tuple[Tensor, Tensor]) -> dict[str, float]:
    """Error of the first-order change over steps in which no unit changes its sign."""
    depth = sum(isinstance(part, nn.Linear) for part in net.modules())
    few = (labels[0][:_FEW], labels[1][:_FEW])
    changes = [_change(net, x[:_FEW], few, float(rate)) for rate in _SMALL_STEPS]
    still = [index for index, change in enumerate(changes) if change.flips == 0]
    rates = np.asarray(_SMALL_STEPS)[still]
    errors = np.asarray([float(changes[index].relative_error) for index in still])
    slope = log_slope(rates, errors) if len(still) > 2 else nan
    error = float(errors.max()) if len(still) else nan
    return {f"order {depth}": slope, f"error {depth}": error}


def _along_labels(runs: Results) -> Outcome:
    values = runs.array("correlations")[0]
    return decided(
        above("smallest_head", values[-1], 0.999, strict=False),
        above("smallest_step", np.diff(values).min(), -1e-6, strict=False),
        ordinary=values[0],
    )


def _moves(runs: Results) -> Outcome:
    values = runs.array("cosines")[0]
    return decided(above("smallest_head", values[-1], 0.99, strict=False), ordinary=values[0])


def _exact(runs: Results) -> Outcome:
    error = runs["error 2"][0]
    return decided(below("largest_error", error, 1e-6, strict=False), premise=not np.isnan(error))


def _order(runs: Results) -> Outcome:
    slope = runs["order 3"][0]
    return decided(inside("slope", slope, 0.9, 1.1, strict=False), premise=not np.isnan(slope))


def _flips(runs: Results) -> Outcome:
    error, flips = runs["large_error"][0], runs["large_flips"][0]
    return decided(above("relative_error", error, 0.3, strict=False), above("flips", flips))


def draw(runs: Results) -> list[Panel]:
    """Both correlations against the scale of the last layer."""
    x = runs.runs[0].arrays["heads"]
    lines = [
        Line(name, x, *mean_and_error(runs.array(key)))
        for name, key in (
            ("labels and loss gradient (1)", "correlations"),
            ("features and prediction (2)", "cosines"),
        )
    ]
    return [Panel("Approximations 1 and 2", lines, "scale of the last layer", "correlation", "x")]


STUDY = Study(
    id="lou2022.approximations",
    title="How good the two approximations are",
    shows=("Approximation 1", "Approximation 2"),
    measure=measure,
    configs={
        "smoke": Approximate(depth=4, width=12, examples=200, probe=20, heads=(1.0, 0.01)),
        "lite": Approximate(),
        "reduced": Approximate(data="mnist", width=256, probe=200),
    },
    seeds={"reduced": (101, 102, 103)},
    claims=(
        Claim(
            "lou2022.approximations.labels",
            "(1) the loss gradient points along the labels the better, the smaller the last layer "
            "(at least 0.999 with a factor 0.01)",
            _along_labels,
            sizes=(),  # the outputs vanish with the last layer: it could not fail
        ),
        Claim(
            "lou2022.approximations.features",
            "(2) with a factor 0.01, a step of 0.1 moves the label features as H_w predicts "
            "(correlation at least 0.99)",
            _moves,
            sizes=(),  # the same
        ),
        Claim(
            "lou2022.approximations.two-layers",
            "the first-order change is exact for two layers while no unit changes its sign",
            _exact,
            sizes=(),  # the model is bilinear: a check of the measurement
        ),
        Claim(
            "lou2022.approximations.first-order",
            "for three layers its relative error is proportional to the step while no unit changes "
            "its sign (exponent within 0.1 of 1)",
            _order,
            sizes=(),  # a check of the measurement
        ),
        Claim(
            "lou2022.approximations.flips",
            "with ordinary initialisation a step of 0.1 flips units, and the error is not small "
            "(at least 0.3): it is not of second order, as the paper takes it to be",
            _flips,
        ),
    ),
    draw=draw,
    not_run={"published": "the statement has no experiment in the paper"},
    stand_in={"lite": "8x8 digits, depth 10, width 64"},
)
