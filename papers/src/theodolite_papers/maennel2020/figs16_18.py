"""Figures 16 to 18: detailed transfer runs on ImageNet."""

from dataclasses import dataclass, field
from functools import partial

import numpy as np

from theodolite.sweeps import Space
from theodolite_papers.ledger import (
    LARGE,
    Claim,
    Line,
    Measured,
    Outcome,
    Panel,
    Results,
    Study,
    Trial,
    mean_and_error,
    outcome,
)
from theodolite_papers.maennel2020._transfer import (
    LABELS,
    Images,
    Network,
    Protocol,
    Stage,
    Transfer,
)

__all__ = ["STUDY", "LargeTransfers"]

_ID = "maennel2020.fig16-18"
_RUNS = ("fig16", "fig17", "fig18")
_TITLES = {"fig16": "Figure 16", "fig17": "Figure 17", "fig18": "Figure 18"}


def _large(network: Network, upstream: int, downstream: int, rate: float) -> Transfer:
    return Transfer(
        network,
        Stage(upstream, 1000, epochs=100),
        Stage(downstream, 1000, epochs=100),
        rate,
        images=Images("imagenet"),
        test_examples=50_000,
        rescale=network.architecture == "vgg16",
    )


@dataclass(frozen=True)
class LargeTransfers:
    """Size of the experiment.

    Args:
        run: which of the transfers.
        fig16: ResNet18; its init scales stand only in the figure.
        fig17: VGG16 at init scale 1.
        fig18: VGG16 with fewer upstream examples.
    """

    run: str = "fig16"
    fig16: Transfer = field(
        default_factory=lambda: _large(Network("resnet18_v2"), 500_000, 500_000, 0.01)
    )
    fig17: Transfer = field(
        default_factory=lambda: _large(Network("vgg16"), 500_000, 500_000, 0.01)
    )
    fig18: Transfer = field(
        default_factory=lambda: _large(Network("vgg16", init_scale=0.747), 50_000, 200_000, 0.008)
    )


def measure(config: LargeTransfers, trial: Trial) -> Measured:
    """Courses from both starts, for real and random labels."""
    protocol = Protocol(getattr(config, config.run), trial)
    numbers: dict[str, float] = {}
    arrays: dict[str, np.ndarray] = {}
    for labels in LABELS:
        compared = protocol.compare(labels)
        numbers[f"{labels}_gain"] = compared.gain
        numbers[f"{labels}_test_gain"] = compared.test_gain
        scratch, moved = compared.scratch, compared.transferred
        arrays["steps"] = scratch.steps.astype(np.float32)
        arrays[labels] = np.stack([scratch.train, moved.train]).astype(np.float16)
    return Measured(numbers, arrays)


def _of(runs: Results, run: str) -> Results:
    return runs.chosen(lambda result: result.point.get("run", "fig16") == run)


def _gain(runs: Results, run: str, sign: int) -> Outcome:
    """Sign 0 reports without a verdict."""
    part = _of(runs, run)
    if not len(part):
        return outcome(None, runs=0)
    gains = {labels: part.mean(f"{labels}_gain") for labels in LABELS}
    holds = min(sign * gain for gain in gains.values()) > 0 if sign else None
    return outcome(holds, **gains)


def draw(runs: Results) -> list[Panel]:
    """Training accuracy from both starts."""
    panels = []
    for run in _RUNS:
        part = _of(runs, run)
        for labels in LABELS if len(part) else ():
            mean, error = mean_and_error(part.array(labels).astype(np.float64))
            steps = part.first.arrays["steps"]
            lines = [
                Line(name, steps, mean[row], error[row])
                for row, name in enumerate(("scratch", "pre-trained"))
            ]
            title = f"{_TITLES[run]}, {labels} labels"
            panels.append(Panel(title, lines, "step", "training accuracy"))
    return panels


def _claim(name: str, text: str, run: str, sign: int) -> Claim:
    check = partial(_gain, run=run, sign=sign)
    return Claim(f"{_ID}.{name}", text, check, "all", LARGE)


_TINY = Transfer(
    Network(conv_layers=1, filters=4, units=8),
    Stage(32, steps=2),
    Stage(32, steps=2),
    batch_size=16,
    images=Images("digits"),
    test_examples=16,
)

STUDY = Study(
    id=_ID,
    title="Detailed transfer runs on ImageNet",
    shows=tuple(_TITLES.values()),
    measure=measure,
    configs={
        "smoke": LargeTransfers(fig16=_TINY, fig17=_TINY, fig18=_TINY),
        "published": LargeTransfers(),
    },
    claims=(
        _claim("resnet", "Figure 16: pre-training accelerates ResNet18", "fig16", 1),
        _claim("vgg", "Figure 17: VGG16 may be sped up or slowed down", "fig17", 0),
        _claim("vgg-hurt", "Figure 18: it hurts VGG16 with both kinds of labels", "fig18", -1),
    ),
    draw=draw,
    seeds={"published": (101, 102)},
    spaces={"published": Space({"run": list(_RUNS)})},
    stand_in={
        "smoke": "8x8 digits and a small network in the place of ImageNet and the paper's",
    },
    remarks={"published": "init scale 1 in Figure 16 (the values stand only in the figure)"},
    not_run={
        "lite": "not reproducible at small scale; Figures 6 and 8 show both signs",
        "published": "ImageNet cannot be had here; the loader reads a folder of that name",
    },
)
