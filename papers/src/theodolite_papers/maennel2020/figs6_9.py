"""Figures 6 and 9: the more layers are transferred, the faster the downstream training."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from theodolite_papers.ledger import (
    CORRELATION,
    Claim,
    Line,
    Measured,
    Outcome,
    Panel,
    Results,
    Space,
    Study,
    Trial,
    above,
    decided,
    mean_and_error,
    spearman,
)
from theodolite_papers.maennel2020._transfer import (
    LABELS,
    Images,
    Network,
    Protocol,
    Stage,
    Transfer,
)

__all__ = ["STUDY", "MoreLayers"]

_ID = "maennel2020.fig6-9"
_ARCHITECTURES = ("simple_cnn", "vgg16", "resnet18_v2")


@dataclass(frozen=True)
class MoreLayers:
    """Size of the experiment.

    Args:
        architecture: which of the transfers.
        simple_cnn: transfer of the Simple CNN.
        vgg16: transfer of VGG16.
        resnet18_v2: transfer of the residual network; not re-scaled.
        depths: architecture -> numbers of layers (stages of a residual network) transferred, from
            none on; -1 is all but the head.
    """

    architecture: str = "simple_cnn"
    simple_cnn: Transfer = field(
        default_factory=lambda: Transfer(
            Network(conv_layers=3, filters=16, units=1024, init_scale=0.518),
            Stage(15_000, 25, epochs=40),
        )
    )
    vgg16: Transfer = field(
        default_factory=lambda: Transfer(
            Network("vgg16", init_scale=0.526), Stage(20_000, 5, epochs=120)
        )
    )
    resnet18_v2: Transfer = field(
        default_factory=lambda: Transfer(
            Network("resnet18_v2", init_scale=0.671),
            Stage(25_000, 50, epochs=80),
            rescale=False,
        )
    )
    depths: dict[str, tuple[int, ...]] = field(
        default_factory=lambda: {
            "simple_cnn": (0, 1, 2, 3, -1),
            "vgg16": (0, 1, 3, 6, 9, -1),
            "resnet18_v2": (0, 1, 2, 3, -1),
        }
    )


def measure(config: MoreLayers, trial: Trial) -> Measured:
    """Accuracy curves of the downstream training for every number of transferred layers."""
    protocol = Protocol(getattr(config, config.architecture), trial)
    depths = config.depths[config.architecture]
    numbers: dict[str, float] = {}
    arrays: dict[str, np.ndarray] = {"depths": np.array(depths, dtype=np.float32)}
    for labels in LABELS:
        train, test = [], []
        for depth in depths:
            layers = _layers(config.architecture, depth)
            model = protocol.scratch() if depth == 0 else protocol.start(layers)
            course = protocol.finetune(model, labels)
            train.append(course.train)
            test.append(course.test)
            numbers[f"{labels}_{depth}"] = course.auc
            arrays["steps"] = course.steps.astype(np.float32)
        arrays[f"{labels}_train"] = np.array(train, dtype=np.float16)
        arrays[f"{labels}_test"] = np.array(test, dtype=np.float16)
    return Measured(numbers, arrays)


def _layers(architecture: str, depth: int) -> Any:
    """Layers to copy: a number, or whole stages of a residual network."""
    if depth == -1:
        return "all"
    if architecture == "resnet18_v2":
        return ["stem", *(f"stages.{k}" for k in range(depth - 1))]
    return depth


def _areas(runs: Results, labels: str) -> np.ndarray:
    depths = runs.first.arrays["depths"].astype(int)
    return np.array([runs.mean(f"{labels}_{depth}") for depth in depths])


def _monotone(runs: Results) -> Outcome:
    ranks = {labels: _growth(_areas(runs, labels)) for labels in LABELS}
    return decided(
        *(above(name, v, 0.8, strict=False, possible=CORRELATION) for name, v in ranks.items())
    )


def _growth(areas: np.ndarray) -> float:
    """Rank correlation with the number of layers."""
    return spearman(np.arange(len(areas)), areas)


def _above_scratch(runs: Results) -> Outcome:
    gains = {}
    for labels in LABELS:
        areas = _areas(runs, labels)
        gains[labels] = float((areas[1:] - areas[0]).min())
    return decided(*(above(labels, gain) for labels, gain in gains.items()))


def _most_is_best(runs: Results) -> Outcome:
    margins = {}
    for labels in LABELS:
        areas = _areas(runs, labels)
        margins[labels] = float(areas[-1] - areas[:-1].max())
    return decided(*(above(name, v, strict=False) for name, v in margins.items()))


def draw(runs: Results) -> list[Panel]:
    """Training accuracy (Figure 6: random labels; Figure 9: both) by number of layers."""
    panels = []
    for name in _ARCHITECTURES:
        part = _of(runs, name)
        if len(part):
            for labels, figure in (("random", "Figures 6, 9"), ("real", "Figure 9")):
                panels.append(_panel(part, labels, f"{figure}, {name}, {labels} labels"))
    return panels


def _of(runs: Results, architecture: str) -> Results:
    return runs.chosen(lambda run: run.point.get("architecture", "simple_cnn") == architecture)


def _panel(runs: Results, labels: str, title: str) -> Panel:
    run = runs.first
    mean, error = mean_and_error(runs.array(f"{labels}_train").astype(np.float64))
    lines = [
        Line(_name(depth), run.arrays["steps"], mean[row], error[row])
        for row, depth in enumerate(run.arrays["depths"].astype(int).tolist())
    ]
    return Panel(title, lines, "step", "training accuracy")


def _name(depth: int) -> str:
    return {0: "scratch", -1: "all but the head"}.get(depth, f"{depth} layers")


def _small(downstream: Stage, upstream: Stage, images: Images, batch: int, units: int) -> Transfer:
    return Transfer(
        Network(conv_layers=3, filters=16, units=units, init_scale=0.518),
        upstream,
        downstream,
        learning_rate=0.02,
        batch_size=batch,
        images=images,
        test_examples=100,
    )


STUDY = Study(
    id=_ID,
    title="Transferring more layers speeds up downstream training more",
    shows=("Figure 6", "Figure 9"),
    measure=measure,
    configs={
        "smoke": MoreLayers(
            simple_cnn=_small(Stage(32, steps=2), Stage(32, 3, steps=2), Images("digits"), 16, 8)
        ),
        "lite": MoreLayers(
            simple_cnn=_small(
                Stage(500, steps=120), Stage(500, 25, steps=500), Images(pool=4), 50, 256
            )
        ),
        "published": MoreLayers(),
    },
    claims=(
        Claim(
            f"{_ID}.monotone",
            "the area under the training curve grows with the number of transferred layers "
            "(rank correlation at least 0.8), for real and random labels",
            _monotone,
        ),
        Claim(f"{_ID}.above-scratch", "every transfer beats scratch", _above_scratch),
        Claim(f"{_ID}.most", "it is largest when all layers but the head are moved", _most_is_best),
    ),
    draw=draw,
    seeds={"published": (101, 102, 103)},
    spaces={"published": Space({"architecture": list(_ARCHITECTURES)})},
    stand_in={
        "smoke": "8x8 digits in the place of CIFAR-10",
        "lite": "Simple CNN alone, 500 + 500 images averaged to 8x8",
    },
    not_run={
        "published": "33 trainings of up to 200 epochs, most of large networks, need a cluster"
    },
)
