"""Section 4's remedies: temperature, margin and target scale undo the scale of a ReLU layer."""

from dataclasses import dataclass, replace

import numpy as np
import torch

from theodolite.data import Dataset
from theodolite_papers.lab.training import (
    Hinge,
    Loss,
    Recipe,
    Softmax,
    Squared,
    TrainingState,
    train,
)
from theodolite_papers.ledger import (
    RATIO,
    Bars,
    Claim,
    Measured,
    Outcome,
    Panel,
    Result,
    Results,
    Study,
    Trial,
    above,
    below,
    decided,
    mean_and_error,
)
from theodolite_papers.mehta2021._families import PUBLISHED
from theodolite_papers.mehta2021._scales import (
    ProbeSet,
    Scales,
    layers_of,
    measured_steps,
    network,
    standardized_set,
)
from theodolite_papers.mehta2021.formulas.loss_gradients import compensate

__all__ = ["STUDY", "Remedies"]

_BASE = 0.01  # sigma of the run that is to be retraced
_RATES = {"softmax": 0.1, "hinge": 0.02, "squared": 0.1}


@dataclass(frozen=True)
class Remedies:
    """Runs with a scaled first layer, with and without the remedies.

    Args:
        scales: width, data, length and probe of all runs.
        factor: of the first layer.
    """

    scales: Scales
    factor: float = 20.0


def _loss(name: str, parameter: float) -> Loss:
    if name == "softmax":
        return Softmax(parameter)
    if name == "hinge":
        return Hinge(parameter)
    return Squared(parameter, reduction="mean")


def _course(
    config: Remedies, trial: Trial, data: Dataset, name: str, kind: str
) -> dict[str, float]:
    """One run: "base", "scaled", "restored" (loss alone) or "retraced" (loss and rates)."""
    undo = compensate(name, config.factor)
    rate, scales = _RATES[name], config.scales
    loss = _loss(name, undo.parameter if kind in ("restored", "retraced") else 1.0)
    rates = {}
    if kind == "retraced":
        rates = {"fc1": rate * undo.first_rate, "fc2": rate * undo.top_rate}
    sigma = _BASE if kind == "base" else _BASE * config.factor
    net = network(scales, data, sigma, trial.generator(2)).double().to(trial.device)
    probe = ProbeSet.of(data, scales.probe, loss, layers_of(scales), trial.generator(1))
    recipe = Recipe(
        loss=loss,
        learning_rate=rate,
        layer_rates=rates,
        batch_size=scales.batch_size,
        steps=scales.steps,
        seed=trial.seed,
        log="ends",
    )
    found: list[dict[str, float]] = []
    watched = frozenset(measured_steps(scales.steps, scales.points))

    def look(state: TrainingState) -> None:
        if state.step in watched:
            found.append(probe.everything(state.model))

    train(net, (data.x_train, data.y_train), recipe, callbacks=[look])
    names = ("hidden", "top", "logit")
    answer = {f"{q}_start": found[0][q] for q in (*names, "representation")}
    answer |= {f"{q}_mean": float(np.mean([f[q] for f in found])) for q in names}
    best = {"test": max(f["test"] for f in found), "train": max(f["train"] for f in found)}
    return answer | best | {"representation_end": found[-1]["representation"]}


def measure(config: Remedies, trial: Trial) -> Measured:
    """Alignments and accuracies of all runs of all losses."""
    # In float64: rounding moves examples across the kinks of the hinge, and then runs differ.
    drawn = standardized_set(config.scales.data, trial.generator()).flat()
    data = drawn.mapped(torch.Tensor.double, "float64").to(trial.device)
    runs = [("softmax", kind) for kind in ("base", "scaled", "restored", "retraced")]
    runs += [(name, kind) for name in ("hinge", "squared") for kind in ("base", "retraced")]
    numbers: dict[str, float] = {}
    for k, (name, kind) in enumerate(runs):
        found = _course(config, trial, data, name, kind)
        numbers |= {f"{name}_{kind}_{q}": float(f"{v:.6g}") for q, v in found.items()}
        trial.report((k + 1) / len(runs), f"{name} {kind}")
    return Measured(numbers)


def _gap(run: Result, name: str, kinds: tuple[str, str], quantities: tuple[str, ...]) -> float:
    """Largest difference between two runs, relative to the first."""
    gaps = [
        abs(run[f"{name}_{kinds[0]}_{q}"] - run[f"{name}_{kinds[1]}_{q}"])
        / abs(run[f"{name}_{kinds[0]}_{q}"])
        for q in quantities
    ]
    return float(max(gaps))


_STARTS = ("hidden_start", "top_start", "logit_start", "representation_start")
_MEANS = ("hidden_mean", "top_mean", "logit_mean", "representation_end")


def _scaled(runs: Results) -> Outcome:
    run = runs.first
    base, scaled = run["softmax_base_test"], run["softmax_scaled_test"]
    logit = run["softmax_base_logit_start"], run["softmax_scaled_logit_start"]
    return decided(
        above("cost", base - scaled, 0.03, strict=False),
        below("logit_ratio", logit[1] / logit[0], 0.85, strict=False, possible=RATIO),
        base=base,
        scaled=scaled,
        base_logit=logit[0],
        scaled_logit=logit[1],
    )


def _restored(runs: Results) -> Outcome:
    run = runs.first
    gap = _gap(run, "softmax", ("base", "restored"), _STARTS)
    return decided(below("largest_gap_at_start", gap, 1e-3))


def _course_differs(runs: Results) -> Outcome:
    run = runs.first
    behind = run["softmax_base_train"] - run["softmax_restored_train"]
    return decided(above("training_behind", behind, 0.1, strict=False))


def _retraced(runs: Results) -> Outcome:
    run = runs.first
    gaps = {n: _gap(run, n, ("base", "retraced"), (*_STARTS, *_MEANS)) for n in _RATES}
    tests = [abs(run[f"{n}_base_test"] - run[f"{n}_retraced_test"]) for n in _RATES]
    return decided(
        below("test_gap", max(tests), 0.01, strict=False),
        *(below(name, gap, 0.02) for name, gap in gaps.items()),
    )


def draw(runs: Results) -> list[Panel]:
    """Accuracies and mean alignments of the softmax runs, and of the retraced ones of all."""
    kinds = ["base", "scaled", "restored", "retraced"]
    panels = []
    for quantity, axis in (("test", "best test accuracy"), ("logit_mean", "logit alignment")):
        stacked = np.stack([runs[f"softmax_{kind}_{quantity}"] for kind in kinds], axis=1)
        mean, error = mean_and_error(stacked)
        panels.append(Panel(f"Section 4, softmax, {axis}", [Bars(axis, kinds, mean, error)]))
    bars = []
    for kind in ("base", "retraced"):
        mean, error = mean_and_error(np.stack([runs[f"{n}_{kind}_test"] for n in _RATES], axis=1))
        bars.append(Bars(kind, list(_RATES), mean, error))
    return [*panels, Panel("Section 4, scaled and compensated", bars, "loss", "best test accuracy")]


_ID = "mehta2021.section4"

STUDY = Study(
    id=_ID,
    title="What undoes the scale of initialisation",
    shows=("Section 4",),
    measure=measure,
    configs={
        "smoke": Remedies(Scales(activation="relu", hidden=(32,), steps=5, points=2, probe=50)),
        "lite": Remedies(
            Scales(data="cifar8", activation="relu", hidden=(128,), steps=1000, points=6, probe=100)
        ),
        "reduced": Remedies(
            replace(PUBLISHED, activation="relu", steps=20_000, points=16, until_fit=False)
        ),
    },
    claims=(
        Claim(
            f"{_ID}.scaled",
            "a first layer twenty times larger costs at least 0.03 of test accuracy, and 15 % of "
            "the logit gradients' alignment at the start",
            _scaled,
        ),
        Claim(
            f"{_ID}.restored",
            "a temperature twenty times larger restores every alignment at the start, within 0.1 %",
            _restored,
            unit="calculation",  # an identity of networks without biases, up to rounding
        ),
        Claim(
            f"{_ID}.course",
            "a temperature twenty times larger does not restore the course of training: training "
            "accuracy stays at least 0.1 behind",
            _course_differs,
        ),
        Claim(
            f"{_ID}.retraced",
            "with the learning rates changed too, the run retraces the unscaled one: alignments "
            "within 2 %, test accuracy within 0.01, for softmax, hinge and squared loss",
            _retraced,
        ),
    ),
    draw=draw,
    seeds={"reduced": (101,)},
    stand_in={"lite": "CIFAR-10 shrunk to 8x8, 200 + 200 images of each class; 128 hidden units"},
    not_run={
        "reduced": "no GPU time so far",
        "published": "the paper has no figure of it",
    },
)
