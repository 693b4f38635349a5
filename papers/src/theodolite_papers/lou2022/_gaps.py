"""Generalisation gaps of convolutional networks trained to the same loss: checks and pictures."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import nan

import numpy as np

from theodolite_papers.ledger import (
    Bars,
    Measured,
    Outcome,
    Panel,
    Results,
    Trial,
    mean_and_error,
    outcome,
    spearman,
)
from theodolite_papers.lou2022._conv import Architecture, converged, run_once
from theodolite_papers.lou2022._hierarchy import by_setting, hierarchy_line

__all__ = [
    "NOTE",
    "Optimized",
    "adam_against_sgd",
    "draw_gaps",
    "monotone",
    "peak_between",
    "run_optimized",
    "split_rates",
]

NOTE = (
    "to training loss 0.1, at most 60 epochs, without augmentation of the images: the paper does "
    "not say whether it had any, and its small gaps suggest that it had"
)

Check = Callable[[Results], Outcome]


@dataclass(frozen=True)
class Optimized(Architecture):
    """A network whose optimizer and learning rate are swept together.

    Args:
        training: optimizer and learning rate, such as "adam 0.001" or "sgd 0.01" (with momentum).
    """

    training: str = "sgd 0.01"


def run_optimized(config: Optimized, trial: Trial) -> Measured:
    """Train as the setting says, to a small loss."""
    optimizer, rate = config.training.split()
    name = "momentum" if optimizer == "sgd" else optimizer
    return run_once(replace(config, optimizer=name, learning_rate=float(rate)), trial)


def _value(setting: object) -> float:
    return float(str(setting).split()[-1])


def _rank(group: tuple[object, Results]) -> tuple[str, float]:
    """By optimizer, and then by size."""
    words = str(group[0]).split()
    return " ".join(words[:-1]), float(words[-1])


def _means(runs: Results, axis: str, key: str) -> dict[str, float]:
    """Mean of a number at each value of the swept setting, over runs that reached the loss."""
    return {
        f"{value:g}" if isinstance(value, float) else str(value): float(np.nanmean(part[key]))
        for value, part in by_setting(runs, axis).items()
        if np.isfinite(part[key]).any()
    }


def monotone(axis: str, key: str, sign: int) -> Check:
    """The rank correlation of the swept setting with a number has this sign.

    Of runs that reached the loss they were trained to; a run that diverged has the alignments of
    its initialisation.
    """

    def check(runs: Results) -> Outcome:
        kept = converged(runs).chosen(
            lambda run: bool(np.isfinite(run[key])) and not str(run.point[axis]).startswith("sgd ")
        )
        values = np.asarray([_value(run.point[axis]) for run in kept])
        rank = spearman(values, kept[key]) if len(np.unique(values)) > 1 else nan
        holds = sign * rank > 0 if np.isfinite(rank) else None
        return outcome(holds, rank=rank, **_means(kept, axis, key))

    return check


def split_rates(runs: Results) -> Outcome:
    """Smallest rates against largest rates: mean gaps of accuracy and of loss."""
    rates = sorted({float(run.point["learning_rate"]) for run in runs})
    middle = float(np.exp(np.mean(np.log([rates[0], rates[-1]]))))
    groups = {
        "large": converged(runs).chosen(lambda run: run.point["learning_rate"] > middle),
        "small": converged(runs).chosen(lambda run: run.point["learning_rate"] <= middle),
    }
    gaps = {
        f"{name} {key}": float(np.nanmean(part[key]))
        for name, part in groups.items()
        for key in ("loss_gap", "accuracy_gap")
        if len(part) and np.isfinite(part[key]).any()
    }
    if len(gaps) < 4:
        return outcome(None, runs=len(runs), **gaps)
    holds = all(gaps[f"large {k}"] < gaps[f"small {k}"] for k in ("loss_gap", "accuracy_gap"))
    return outcome(holds, **gaps)


def adam_against_sgd(runs: Results) -> Outcome:
    """Adam has larger gaps and a smaller prominence than SGD at the same training loss."""
    reached = converged(runs)
    adam = reached.chosen(lambda run: str(run.point["training"]).startswith("adam"))
    sgd = reached.chosen(lambda run: str(run.point["training"]).startswith("sgd"))
    if not len(adam) or not len(sgd):
        return outcome(None, runs=len(runs))
    a, s = ({k: float(np.nanmean(p[k])) for k in ("loss_gap", "prominence")} for p in (adam, sgd))
    holds = a["loss_gap"] > s["loss_gap"] and a["prominence"] < s["prominence"]
    numbers = {"adam_gap": a["loss_gap"], "sgd_gap": s["loss_gap"]}
    return outcome(
        holds, adam_prominence=a["prominence"], sgd_prominence=s["prominence"], **numbers
    )


def peak_between(low: float, high: float) -> Check:
    """The median peak lies in this range of the depth."""

    def check(runs: Results) -> Outcome:
        reached = converged(runs)
        if not len(reached):
            return outcome(None, runs=len(runs))
        share = float(np.median(reached["peak"] / reached["layers"]))
        return outcome(low <= share <= high, median=share)

    return check


def draw_gaps(
    figure: str, axis: str, published: Mapping[str, float]
) -> Callable[[Results], list[Panel]]:
    """Hierarchies at each value of the swept setting, and loss gaps beside the published ones."""

    def draw(runs: Results) -> list[Panel]:
        groups = dict(sorted(by_setting(runs, axis).items(), key=_rank))
        curves = [hierarchy_line(str(value), part, "after") for value, part in groups.items()]
        labels = [str(value) for value in groups]
        gaps = [mean_and_error(part["loss_gap"][:, None]) for part in groups.values()]
        means, errors = ([float(gap[k][0]) for gap in gaps] for k in (0, 1))
        bars = [Bars("measured", labels, means, errors)]
        if set(labels) & set(published):
            bars.append(Bars("published", labels, [published.get(label, nan) for label in labels]))
        return [
            Panel(figure, curves, "layer", "alignment"),
            Panel(f"{figure}, gap", bars, axis.replace("_", " "), "test loss - training loss"),
        ]

    return draw
