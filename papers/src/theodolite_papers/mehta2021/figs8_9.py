"""Figures 8 and 9: with a large scale, no learning rate of the first layer generalises."""

from dataclasses import dataclass, replace

import numpy as np

from theodolite_papers.ledger import (
    LARGE,
    Claim,
    Line,
    Measured,
    Outcome,
    Panel,
    Result,
    Results,
    Space,
    Study,
    Trial,
    above,
    below,
    decided,
    mean_and_error,
    outcome,
)
from theodolite_papers.mehta2021._families import PUBLISHED
from theodolite_papers.mehta2021._scales import Scales, chance_of, courses, standardized_set

__all__ = ["STUDY", "FirstRates"]

_LARGE, _SMALL = 1.0, 0.01  # sigmas of Figures 8 and 9


@dataclass(frozen=True)
class FirstRates:
    """Learning rates of the first layer, all else as in Figures 1 and 2.

    Args:
        scales: of the networks; both sigmas are trained at every rate.
        rates: of the first layer.
    """

    scales: Scales
    rates: tuple[float, ...]
    data: str = "digits"


def measure(config: FirstRates, trial: Trial) -> Measured:
    """Best training and test accuracy for every rate and both sigmas."""
    data = standardized_set(config.data, trial.generator())
    curves: dict[str, list[np.ndarray]] = {"train": [], "test": []}
    steps: list[int] = []
    for rate in config.rates:
        own = replace(config.scales, data=config.data, sigmas=(_LARGE, _SMALL), first_rate=rate)
        steps, found = courses(own, trial, data, lambda probe, model, step: probe.accuracies(model))
        for name, values in curves.items():
            values.append(np.array([course.values[name] for course in found]))
        trial.report(len(curves["train"]) / len(config.rates), f"rate {rate:g}")
    arrays = {name: np.stack(values).astype(np.float32) for name, values in curves.items()}
    numbers = chance_of(data)
    for k, rate in enumerate(config.rates):
        for j, sigma in enumerate((_LARGE, _SMALL)):
            for name in curves:
                best = float(arrays[name][k, j].max())
                numbers[f"{name}_sigma{sigma:g}@{rate:g}"] = float(f"{best:.6g}")
    arrays |= {"rate": np.array(config.rates), "step": np.array(steps, dtype=np.int32)}
    return Measured(numbers, arrays)


def _values(run: Result, name: str, sigma: float) -> np.ndarray:
    return np.array([run[f"{name}_sigma{sigma:g}@{float(rate):g}"] for rate in run.arrays["rate"]])


def _level(run: Result) -> float:
    """The level of chance: plus three standard errors and one point."""
    chance, size = run["chance"], run["test_size"]
    return float(chance + 3 * np.sqrt(chance * (1 - chance) / size) + 0.01)


def _large(runs: Results) -> Outcome:
    run = runs.first
    test = _values(run, "test", _LARGE)
    return decided(below("highest_test", test.max(), _level(run), strict=False), level=_level(run))


def _range(runs: Results) -> Outcome:
    run = runs.first
    train, rates = _values(run, "train", _LARGE), run.arrays["rate"]
    fit = train >= (1.0 if run.size in LARGE else 0.99)
    decades = np.log10(rates[fit].max() / rates[fit].min()) if fit.any() else 0.0
    return decided(
        above("decades", decades, 3, strict=False), below("train_at_largest", train[-1], 0.9)
    )


def _small(runs: Results) -> Outcome:
    run = runs.first
    train, test = _values(run, "train", _SMALL), _values(run, "test", _SMALL)
    trains = train >= 0.9
    if not trains.any():
        return outcome(None, rates=0)
    lowest = test[trains].min()
    bound = above("lowest_test", lowest, 2 * run["chance"], strict=False)
    return decided(bound, rates=float(trains.sum()))


def draw(runs: Results) -> list[Panel]:
    """Accuracy against steps for every rate, at both sigmas."""
    first = runs.first
    panels = []
    for figure, j, sigma in (("Figure 8", 0, _LARGE), ("Figure 9", 1, _SMALL)):
        for name in ("test", "train"):
            mean, error = mean_and_error(runs.array(name)[:, :, j])
            lines = [
                Line(f"rate {rate:g}", first.arrays["step"][1:], mean[k, 1:], error[k, 1:])
                for k, rate in enumerate(first.arrays["rate"].tolist())
            ]
            title = f"{figure}, σ = {sigma:g}"
            panels.append(Panel(title, lines, "steps", f"{name} accuracy", "x"))
    return panels


_ID = "mehta2021.fig8-9"

STUDY = Study(
    id=_ID,
    title="Learning rates of the first layer of sin networks",
    shows=("Figure 8", "Figure 9"),
    measure=measure,
    configs={
        "smoke": FirstRates(Scales(hidden=(32,), steps=10, points=2, probe=50), (1e-3, 1e-1)),
        "lite": FirstRates(
            Scales(hidden=(512,), steps=1000, points=4), (1e-3, 1e-2, 1e-1, 1e0, 1e1, 1e2)
        ),
        "published": FirstRates(PUBLISHED, (1e-4, 1e-3, 1e-2, 1e-1, 1e0, 1e1)),
    },
    spaces={
        "smoke": Space({"data": ["digits"]}),
        "lite": Space({"data": ["digits"]}),
        "published": Space({"data": ["cifar10"]}),
    },
    claims=(
        Claim(
            f"{_ID}.large",
            "sigma 1: test accuracy is at chance (three standard errors and a point) at every rate",
            _large,
        ),
        Claim(
            f"{_ID}.range",
            "sigma 1: training accuracy reaches 1 (lite: 0.99) over three decades of rates or "
            "more, and fails (below 0.9) at the largest rate",
            _range,
        ),
        Claim(
            f"{_ID}.small",
            "sigma 0.01: test accuracy is at least twice chance at every rate that trains (0.9)",
            _small,
        ),
    ),
    draw=draw,
    seeds={"published": (101,)},
    stand_in={
        "lite": "8x8 digits, 512 hidden units, rate 0.1 and first-layer rates of 0.001 to 100",
    },
    not_run={"published": "not run yet; other experiments on CIFAR-10 were run first"},
)
