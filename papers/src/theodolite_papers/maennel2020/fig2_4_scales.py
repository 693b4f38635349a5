"""Figures 2 and 4 for random labels, over scales of the first layer, rates and lengths."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product

import numpy as np
import torch
from torch import nn

from theodolite.data import disjoint_rows
from theodolite_papers.lab.data import random_labels
from theodolite_papers.lab.training import (
    DivergenceError,
    Recipe,
    Stop,
    TrainingState,
    train,
)
from theodolite_papers.ledger import (
    Claim,
    Line,
    Measured,
    Outcome,
    Panel,
    Result,
    Results,
    Study,
    Trial,
    below,
    decided,
    inside,
    mean_and_error,
    ordered,
    outcome,
    shown_as,
)
from theodolite_papers.maennel2020._filters import FilterWatch, covariance_of, filter_summary
from theodolite_papers.maennel2020._transfer import LABELS, Images, Labeled, Network, first_images

__all__ = ["STUDY", "ScaleStudy"]


def draw(runs: Results) -> list[Panel]:
    """Figure 2 for random labels: a panel per rate, a colour per scale."""
    config = runs.first.config
    epochs = runs.array("epochs")[0]
    panels = []
    for labels, rate in product(reversed(LABELS), config["rates"]):
        marks = []
        for color, scale in enumerate(config["scales"]):
            name = _cell(labels, scale, rate)
            value, error = mean_and_error(runs.array(f"{name}_value"))
            base, base_error = mean_and_error(runs.array(f"{name}_base"))
            marks += [
                Line(f"scale {scale:g}", epochs, value, error, color=color),
                Line("its random bases", epochs, base, base_error, dashed=True, color=color),
            ]
        title = f"Figure 2, {labels} labels, learning rate {rate:g}"
        panels.append(Panel(title, marks, "epoch", "misalignment", log="y"))
    return panels


@dataclass(frozen=True)
class ScaleStudy:
    """Size of the experiment.

    Args:
        network: one convolution; its ``first_scale`` is replaced by the scales.
        images: what it is trained on.
        pool: images are drawn from the first so many of the training split.
        examples: number of images.
        scales: factors of the first layer's initial weights.
        rates: first learning rates, divided by 3 after each third.
        batch_size: incomplete batches are left out.
        epochs: passes over the images, at most.
        stop_loss: a run ends when the mean loss of an epoch is at most this.
        measured: epochs after which the filters are measured; 0 is the start.
        tf32: whether an accelerator may round factors of products to 10 bits.
    """

    network: Network = field(default_factory=lambda: Network(conv_layers=1, filters=256, units=64))
    images: Images = field(default_factory=Images)
    pool: int = 10_000
    examples: int = 5_000
    scales: tuple[float, ...] = (0.1, 0.3, 1.0)
    rates: tuple[float, ...] = (0.0003, 0.001, 0.003)
    batch_size: int = 64
    epochs: int = 60
    stop_loss: float = 0.01
    measured: tuple[int, ...] = (0, 1, 2, 5, 10, 15, 20, 30, 40, 50, 60)
    tf32: bool = True


def measure(config: ScaleStudy, trial: Trial) -> Measured:
    """Scores of every network at all epochs."""
    numbers: dict[str, float] = {}
    arrays: dict[str, np.ndarray] = {"epochs": np.array(config.measured, dtype=np.float32)}
    data = _data(config, trial)
    covariance = covariance_of(data["real"][0].to(trial.device)).cpu()
    cells = list(product(config.scales, config.rates, LABELS))
    for number, (scale, rate, labels) in enumerate(cells):
        name = _cell(labels, scale, rate)
        network = _network(config, trial, scale).to(trial.device)
        watch, accuracy = _watched(config, trial, network, data[labels], rate, covariance)
        numbers |= {f"{name}_accuracy": accuracy, "floor": watch.floor}
        numbers |= {f"{name}_epochs": watch.epochs[-1]} | filter_summary(name, watch)
        arrays |= _curves(name, watch, config.measured)
        trial.report((number + 1) / len(cells), f"{name} accuracy {accuracy:.2f}")
    return Measured(numbers, arrays)


def _data(config: ScaleStudy, trial: Trial) -> dict[str, Labeled]:
    images, real = first_images(config.images, config.pool)
    (rows,) = disjoint_rows(len(images), config.examples, generator=trial.generator(0))
    drawn = random_labels(config.examples, _CLASSES, trial.generator(1))
    return {"real": (images[rows], real[rows]), "random": (images[rows], drawn)}


_CLASSES = 10


def _watched(
    config: ScaleStudy,
    trial: Trial,
    network: nn.Module,
    data: Labeled,
    rate: float,
    covariance: torch.Tensor,
) -> tuple[FilterWatch, float]:
    """Measurements of a network and its accuracy; nan if training diverged."""
    recipe = Recipe(
        optimizer="momentum",
        learning_rate=rate,
        batch_size=config.batch_size,
        epochs=config.epochs,
        schedule="thirds",
        drop_last=True,
        stop=Stop(loss=config.stop_loss),
        seed=trial.seed * 100,
        log="ends",
    )
    per_epoch = recipe.steps_per_epoch(config.examples)
    steps = {epoch * per_epoch: epoch for epoch in range(config.epochs + 1)}
    watch = FilterWatch(covariance, steps, trial)
    wanted = {epoch * per_epoch for epoch in config.measured}

    def look(state: TrainingState) -> None:
        if state.step in wanted:
            watch.measure(state.step, state.model)

    with _rounded(config.tf32):
        try:
            log = train(network, data, recipe, callbacks=[look])
        except DivergenceError:
            return watch, float("nan")
    if log.steps not in wanted:
        watch.measure(log.steps, network)
    return watch, log.final.train.accuracy


def _network(config: ScaleStudy, trial: Trial, scale: float) -> nn.Module:
    """A network with the same weights for all settings, except for the scale of the first layer."""
    network = replace(config.network, first_scale=scale)
    shape = tuple(first_images(config.images, 1)[0].shape[1:])
    return network.build(_CLASSES, shape, trial.generator(5))


@contextmanager
def _rounded(allowed: bool) -> Iterator[None]:
    """Allow a GPU to round factors and to choose its fastest convolutions."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark
    torch.set_float32_matmul_precision("high" if allowed else "highest")
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.benchmark = before[1]


def _curves(name: str, watch: FilterWatch, measured: Sequence[int]) -> dict[str, np.ndarray]:
    """Scores at the measured epochs, nan after the run has ended; and the last curve f."""
    found = {"value": watch.value, "base": [float(np.mean(base)) for base in watch.baseline]}
    curves = {}
    for key, values in found.items():
        seen = dict(zip(watch.epochs, values, strict=True))
        curve = [seen.get(epoch, np.nan) for epoch in measured]
        curves[f"{name}_{key}"] = np.array(curve, dtype=np.float32)
    return curves | {f"{name}_tau": np.array(watch.tau[-1], dtype=np.float32)}


def _cell(labels: str, scale: float, rate: float) -> str:
    return f"{labels}_scale_{scale:g}_rate_{rate:g}"


def _decided(run: Result, labels: str, scales: Sequence[float]) -> list[str]:
    """Cells with mostly learned labels and changed filters.

    Filters that do not change keep their initial score.
    """
    cells = [_cell(labels, scale, rate) for scale in scales for rate in run.config["rates"]]
    return [
        cell
        for cell in cells
        if run[f"{cell}_accuracy"] > _LEARNED
        and run[f"{cell}_mean_base"] > _MOVED * run[f"{cell}_mean_base_start"]
    ]


_LEARNED, _MOVED = 0.5, 1.1
CellCheck = Callable[[Result, str], Outcome]


def _over_cells(
    runs: Results, labels: str, check: CellCheck, scale: float | None = None
) -> Outcome:
    """Holds in every deciding cell; the numbers are those of the worst cell, and the cell count.

    The first number of a cell is the one that should be small.
    """
    run = runs.first
    scales = run.config["scales"] if scale is None else [scale]
    every = [_cell(labels, s, rate) for s in scales for rate in run.config["rates"]]
    cells = _decided(run, labels, scales)
    accuracy = max(run[f"{cell}_accuracy"] for cell in every)
    if not cells:
        return outcome(None, decided=0, of=len(every), highest_accuracy=accuracy)
    found = [check(run, cell) for cell in cells]
    worst = max(found, key=lambda one: (not one.holds, next(iter(one.numbers.values()))))
    counts = {"decided": len(cells), "of": len(every), "highest_accuracy": accuracy}
    return shown_as(worst, **worst.numbers, **counts)


def _below_random(run: Result, cell: str) -> Outcome:
    own, base = run[f"{cell}_end"], run[f"{cell}_mean_base"]
    return decided(
        below("misalignment over random bases", own / base, 1), misalignment=own, random_bases=base
    )


def _near_floor(run: Result, cell: str) -> Outcome:
    own, floor = run[f"{cell}_end"], run["floor"]
    return decided(below("misalignment", own, 2 * floor), floor=floor)


def _below_throughout(run: Result, cell: str) -> Outcome:
    own, base = run.arrays[f"{cell}_value"], run.arrays[f"{cell}_base"]
    moved = base > _MOVED * base[0]
    if not moved.any():  # at the end of the run alone
        return _below_random(run, cell)
    highest = float((own / base)[moved].max())
    return decided(
        below("highest misalignment over random bases", highest, 1), epochs_seen=moved.sum()
    )


def _unimodal(run: Result, cell: str) -> Outcome:
    return decided(below("defect", run[f"{cell}_defect"], 0.15))


def _damped_top(run: Result, cell: str) -> Outcome:
    peak, top = run[f"{cell}_peak"], run[f"{cell}_top_to_peak"]
    return decided(below("top_to_peak", top, 1), inside("peak", peak, 0, 1))


def _scale_moves(runs: Results, labels: str) -> Outcome:
    """Growth of random-basis scores by scale, the mean over rates that did not diverge."""
    run = runs.first
    growth = {}
    for scale in run.config["scales"]:
        cells = [_cell(labels, scale, rate) for rate in run.config["rates"]]
        values = [run[f"{c}_mean_base"] / run[f"{c}_mean_base_start"] for c in cells]
        growth[f"scale_{scale:g}"] = float(np.nanmean(values))
    return ordered(growth, falling=True)


_ID = "maennel2020.fig2-4-scales"
_SCALES = (0.1, 0.3, 1.0)
_WHERE = "wherever more than half of the labels are learned and the filters move"
_PREMISE = "more than half of the labels are learned and the filters move"


def _claims() -> tuple[Claim, ...]:
    central = [
        Claim(
            f"{_ID}.below-random-{labels}-{scale:g}",
            f"{labels} labels, first layer at {scale:g} of the usual scale: {_WHERE}, misalignment "
            "with the data is below the mean of random bases",
            partial(_over_cells, labels=labels, check=_below_random, scale=scale),
            premise=_PREMISE,
        )
        for labels in reversed(LABELS)
        for scale in _SCALES
    ]
    checks: dict[str, tuple[str, CellCheck]] = {
        "floor": ("is below twice the floor of perfectly aligned random filters", _near_floor),
        "throughout": (
            "is below that of random bases at every measured epoch from the first at which the "
            "filters have moved",
            _below_throughout,
        ),
        "unimodal": ("f rises, then falls (defect of unimodality below 0.15)", _unimodal),
        "damped-top": (
            "the maximum of f lies strictly inside, and the top direction below it",
            _damped_top,
        ),
    }
    others = [
        Claim(
            f"{_ID}.{name}-{labels}",
            f"{labels} labels: {_WHERE}, "
            + (text if text.startswith(("f ", "the ")) else f"misalignment {text}"),
            partial(_over_cells, labels=labels, check=check),
            premise=_PREMISE,
        )
        for labels in reversed(LABELS)
        for name, (text, check) in checks.items()
    ]
    moves = [
        Claim(
            f"{_ID}.scale-moves-{labels}",
            f"{labels} labels: random-basis scores grow by a larger factor, the smaller the scale "
            "of the first layer",
            partial(_scale_moves, labels=labels),
        )
        for labels in reversed(LABELS)
    ]
    return (*central, *others, *moves)


_SMOKE = ScaleStudy(
    Network(conv_layers=1, filters=32, units=8),
    Images("digits"),
    pool=200,
    examples=64,
    scales=(0.1, 0.3, 1.0),
    rates=(0.01, 0.05),
    batch_size=32,
    epochs=2,
    measured=(0, 1, 2),
)

_LITE = ScaleStudy(
    Network(conv_layers=1, filters=256, units=64, padding="valid"),
    Images(crop=8),
    examples=512,
    rates=(0.05,),
    epochs=50,
    measured=(0, 1, 2, 5, 10, 15, 20, 30, 40, 50),
)

STUDY = Study(
    id=_ID,
    title="Do filters align with random labels? Scales of the first layer, rates and lengths",
    shows=("Figures 2 and 4 (control)",),
    measure=measure,
    configs={"smoke": _SMOKE, "lite": _LITE, "reduced": ScaleStudy()},
    claims=_claims(),
    draw=draw,
    stand_in={
        "smoke": "8x8 digits in the place of CIFAR-10",
        "lite": "the central 8x8 pixels of 512 images, at one rate that fits them",
    },
    remarks={
        "reduced": "5,000 images of the first 10,000, so that random labels are learned; the "
        "scales, rates and the batch of 64 are ours (in a pilot at the printed rate 0.01 and scale "
        "0.3 the loss stayed at chance for 200 steps), and runs end at a loss of 0.01; products in "
        "TF32 on an accelerator. Seeds 103 and 104 were begun once before and cut off by a time "
        "limit without a record"
    },
    not_run={
        "published": "a control of ours; maennel2020.fig2-4 has the printed settings",
    },
)
