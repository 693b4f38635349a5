"""Figures 12 and 13: two sweeps, one point per group, pre-trained against scratch."""

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from theodolite_papers.ledger import (
    LARGE,
    Claim,
    Line,
    LogUniform,
    Measured,
    Outcome,
    Panel,
    Points,
    Results,
    Space,
    Study,
    Trial,
    above,
    below,
    decided,
    outcome,
    point_name,
    share_condition,
)
from theodolite_papers.maennel2020._transfer import (
    LABELS,
    Images,
    Network,
    Protocol,
    Stage,
    Transfer,
)
from theodolite_papers.maennel2020._transfer_sweeps import TRANSFER_SWEEPS, TransferSweep

__all__ = ["STUDIES", "Group", "sweep_space"]

_RESIDUAL = "resnet18_v2"


@dataclass(frozen=True)
class Group:
    """Settings of a group; those that a sweep draws come first.

    Args:
        architecture: of all its networks.
        initializer: distribution of the weights.
        init_scale: factor of their standard deviation.
        learning_rate: first rate of both trainings.
        upstream_examples: with random labels.
        upstream_classes: of these labels.
        upstream_epochs: of pre-training.
        conv_layers: of the Simple CNN.
        filters: of the Simple CNN.
        units: of the Simple CNN.
        upstream_steps: instead of the epochs; 0 for none.
        downstream: fine-tuning.
        transferred: which layers are moved: ``"one"``, ``"all"``, or both in turn.
        batch_size: of both trainings.
        images: what is trained on.
        test_examples: how many test images are evaluated.
    """

    architecture: str = "simple_cnn"
    initializer: str = "he"
    init_scale: float = 1.0
    learning_rate: float = 0.01
    upstream_examples: int = 20_000
    upstream_classes: int = 10
    upstream_epochs: int = 80
    conv_layers: int = 3
    filters: int = 16
    units: int = 512
    upstream_steps: int = 0
    downstream: Stage = field(default_factory=lambda: Stage(25_000, epochs=200))
    transferred: tuple[str, ...] = ("one", "all")
    batch_size: int = 256
    images: Images = field(default_factory=Images)
    test_examples: int = 10_000

    def transfer(self) -> Transfer:
        """The group as a transfer experiment."""
        steps = self.upstream_steps or None
        network = Network(
            self.architecture,
            self.conv_layers,
            self.filters,
            self.units,
            initializer=self.initializer,  # type: ignore[arg-type]
            init_scale=self.init_scale,
        )
        upstream = Stage(
            self.upstream_examples,
            self.upstream_classes,
            epochs=None if steps else self.upstream_epochs,
            steps=steps,
        )
        return Transfer(
            network,
            upstream,
            self.downstream,
            self.learning_rate,
            self.batch_size,
            self.images,
            self.test_examples,
            rescale=self.architecture != _RESIDUAL,
        )


def measure_group(config: Group, trial: Trial) -> Measured:
    """Areas under training and test curves; a scratch run serves all numbers of layers."""
    protocol = Protocol(config.transfer(), trial)
    numbers: dict[str, float] = {}
    for labels in LABELS:
        for start in ("scratch", *config.transferred):
            if start == "scratch":
                model = protocol.scratch()
            else:
                model = protocol.start("all" if start == "all" else _first(config))
            course = protocol.finetune(model, labels)
            numbers[f"{labels}_{start}"] = course.auc
            numbers[f"test_{labels}_{start}"] = course.test_auc
    return Measured(numbers)


def _first(config: Group) -> int | list[str]:
    """The first layer; in a residual network the stem."""
    return ["stem"] if config.architecture == _RESIDUAL else 1


def sweep_space(name: str, seed: int = 0) -> Space:
    """The published ranges of a sweep: its groups for each architecture."""
    sweep: TransferSweep = TRANSFER_SWEEPS[name]
    return Space(
        {"architecture": list(sweep.architectures)},
        {
            "initializer": list(sweep.initializers),
            "init_scale": LogUniform(*sweep.init_scale),
            "learning_rate": LogUniform(*sweep.learning_rate),
            "upstream_examples": list(sweep.upstream_examples),
            "upstream_classes": list(sweep.upstream_classes),
            "upstream_epochs": list(sweep.upstream_epochs),
            "conv_layers": list(sweep.conv_layers),
            "filters": list(sweep.filters),
            "units": list(sweep.units),
        },
        samples=sweep.groups,
        seed=seed,
    )


_PLOTS = {
    "real": "training, real labels",
    "test_real": "test, real labels",
    "random": "training, random labels",
}
_TRAIN = ("real", "random")


def _gains(runs: Results, plot: str, start: str, architecture: str = "") -> np.ndarray:
    """Pre-trained minus scratch of every group, over its seeds."""
    groups: dict[str, list[float]] = {}
    for run in runs:
        kind = run.point.get("architecture", "simple_cnn")
        if f"{plot}_{start}" in run.numbers and architecture in ("", kind):
            gain = run[f"{plot}_{start}"] - run[f"{plot}_scratch"]
            groups.setdefault(point_name(run.point), []).append(gain)
    return np.array([np.mean(gains) for gains in groups.values()])


def _positive(runs: Results, plot: str, architecture: str = "") -> np.ndarray:
    """Whether each point lies below the diagonal: positive transfer."""
    gains = [_gains(runs, plot, start, architecture) for start in ("one", "all")]
    return np.concatenate(gains) > 0


def _mostly(runs: Results, architecture: str = "") -> Outcome:
    """Whether more than half of the points of both training plots are below the diagonal."""
    points = {plot: _positive(runs, plot, architecture) for plot in _TRAIN}
    if not all(map(len, points.values())):
        return outcome(None, groups=0)
    return decided(
        *(
            share_condition(plot, held, 0.5, strict=True, units="points")
            for plot, held in points.items()
        )
    )


def _six_of_eight(runs: Results) -> Outcome:
    gains = _gains(runs, "random", "all")
    share = share_condition("share", gains > 0, 0.75, units="groups")
    return decided(share, positive=(gains > 0).sum(), of=len(gains))


def _all_beats_one(runs: Results) -> Outcome:
    means = {
        f"{plot}_{start}": float(_gains(runs, plot, start).mean())
        for plot in _TRAIN
        for start in ("one", "all")
    }
    gaps = {plot: means[f"{plot}_all"] - means[f"{plot}_one"] for plot in _TRAIN}
    return decided(*(above(f"{plot}: all minus one", v) for plot, v in gaps.items()), **means)


def _vgg_test(runs: Results, some: bool) -> Outcome:
    """Whether some one-layer VGG16 groups gain test accuracy, or no group of any kind does."""
    gains = _gains(runs, "test_real", "one", "vgg16")
    if not len(gains):
        return outcome(None, vgg16_groups=0)
    everyone = np.concatenate([_gains(runs, "test_real", start) for start in ("one", "all")])
    best = gains.max() if some else everyone.max()
    bound = above if some else below
    return decided(bound("largest_gain", best, strict=some))


def _vgg_cluster(runs: Results) -> Outcome:
    scratch: dict[str, list[float]] = {}
    for run in runs:
        kind = run.point.get("architecture", "simple_cnn")
        scratch.setdefault(kind, []).append(run["test_real_scratch"])
    if "vgg16" not in scratch:
        return outcome(None, vgg16_groups=0)
    lowest = min(scratch["vgg16"])
    others = [value for kind, values in scratch.items() if kind != "vgg16" for value in values]
    return decided(above("lowest", lowest, 0.7), below("others", max(others, default=0.0), 0.7))


def draw(runs: Results, figure: str) -> list[Panel]:
    """Three scatter plots; points below the diagonal are positive transfer."""
    panels = []
    for plot, title in _PLOTS.items():
        marks: list[Points | Line] = []
        for start in ("one", "all"):
            x, y, text = _points(runs, plot, start)
            if x:
                marks.append(
                    Points(f"{start} layer" if start == "one" else "all layers", x, y, text)
                )
        ends = [min((min(m.x) for m in marks), default=0.0), 1.0]
        marks.append(Line("equal", ends, ends, dashed=True))
        panels.append(Panel(f"{figure}, {title}", marks, "AUC pre-trained", "AUC scratch"))
    return panels


def _points(runs: Results, plot: str, start: str) -> tuple[list[float], list[float], list[str]]:
    groups: dict[str, list[tuple[float, float, str]]] = {}
    for run in runs:
        if f"{plot}_{start}" in run.numbers:
            entry = (run[f"{plot}_{start}"], run[f"{plot}_scratch"], _label(run.point))
            groups.setdefault(point_name(run.point), []).append(entry)
    x = [float(np.mean([entry[0] for entry in group])) for group in groups.values()]
    y = [float(np.mean([entry[1] for entry in group])) for group in groups.values()]
    return x, y, [group[0][2] for group in groups.values()]


def _label(point: object) -> str:
    settings = dict(point)  # type: ignore[call-overload]
    return ", ".join(
        f"{key} {value:.3g}" if isinstance(value, float) else f"{key} {value}"
        for key, value in settings.items()
    )


_SMOKE = Group(
    upstream_examples=32,
    upstream_steps=2,
    filters=4,
    units=8,
    downstream=Stage(32, steps=2),
    batch_size=16,
    images=Images("digits"),
    test_examples=16,
)
_LITE = Group(
    upstream_examples=500,
    upstream_steps=250,
    units=128,
    downstream=Stage(500, steps=100),
    batch_size=50,
    images=Images(pool=4),
    test_examples=200,
)


def _small_space(initializers: list[str], scales: LogUniform, rates: LogUniform) -> Space:
    draws: dict[str, LogUniform | list[Any]] = {
        "initializer": initializers,
        "init_scale": scales,
        "learning_rate": rates,
        "upstream_classes": [2, 5, 10, 25],
    }
    return Space(draws=draws, samples=8, seed=1)


def _cifar(name: str, figure: str, lite: Space) -> Study:
    """One of the sweeps A and B."""
    sweep, study = TRANSFER_SWEEPS[name], _id(figure)
    return Study(
        id=study,
        title=f"Sweep over transfer settings, CIFAR {name[-1].upper()}",
        shows=(figure,),
        measure=measure_group,
        configs={"smoke": _SMOKE, "lite": _LITE, "published": Group()},
        claims=_cifar_claims(study, name == "cifar_a"),
        draw=partial(draw, figure=figure),
        seeds={"lite": (101, 102), "published": tuple(range(101, 101 + sweep.seeds))},
        spaces={"smoke": replace(lite, samples=2), "lite": lite, "published": sweep_space(name)},
        stand_in={
            "smoke": "8x8 digits in the place of CIFAR-10",
            "lite": "8 groups of Simple CNNs on 500 + 500 images averaged to 8x8; two seeds a "
            "group, as in the paper",
        },
        not_run={"published": f"{sweep.models} networks of 200 epochs need a cluster"},
    )


def _cifar_claims(study: str, is_a: bool) -> tuple[Claim, ...]:
    vgg = "in the test plot some one-layer VGG16 groups are below the diagonal"
    none = "in the test plot no group improves"
    claims = (
        ("often", _OFTEN, _mostly, ("lite", *LARGE)),
        ("six-of-eight", _SIX, _six_of_eight, ("lite",)),
        ("all-layers", _ALL, _all_beats_one, ("lite", *LARGE)),
        ("test", vgg if is_a else none, partial(_vgg_test, some=is_a), LARGE),
        (
            "vgg-cluster",
            "VGG16 alone has test areas above 0.7 from scratch",
            _vgg_cluster,
            LARGE,
        ),
        ("resnet", f"most {_BELOW}", partial(_mostly, architecture="resnet18_v2"), LARGE),
    )
    return tuple(
        Claim(f"{study}.{name}", text, check, "all", at) for name, text, check, at in claims
    )


def _id(figure: str) -> str:
    return f"maennel2020.{figure.lower().replace('ure ', '')}"


_OFTEN = "more than half of the groups are below the diagonal in both training plots"
_SIX = (
    "at least three quarters of the groups are below the diagonal for random labels with all "
    "layers moved"
)
_ALL = "moving all layers lies further below the diagonal than moving one, on average"
_BELOW = "ResNet18 groups are below the diagonal in the training plots"

STUDIES = (
    _cifar(
        "cifar_a",
        "Figure 12",
        _small_space(["he"], LogUniform(0.4, 1.0), LogUniform(0.01, 0.03)),
    ),
    _cifar(
        "cifar_b",
        "Figure 13",
        _small_space(["he", "orthogonal"], LogUniform(0.4, 1.5), LogUniform(0.005, 0.04)),
    ),
)
