"""Figures 12 to 15: VGG19 and ResNet18 at several learning rates, batch sizes and optimizers.

All are trained to the same loss, so that their generalisation gaps can be compared.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import nan
from typing import Any

import numpy as np

from theodolite_papers.ledger import (
    CORRELATION,
    LARGE,
    Bars,
    Check,
    Claim,
    Measured,
    Outcome,
    Panel,
    Results,
    Space,
    Study,
    Trial,
    above,
    below,
    decided,
    mean_and_error,
    outcome,
    spearman,
)
from theodolite_papers.lou2022._hierarchy import (
    by_setting,
    converged,
    hierarchy_line,
    peak_between,
    run_once,
)
from theodolite_papers.lou2022._setting import Architecture

__all__ = ["STUDIES", "Optimized"]

_NOTE = (
    "to training loss 0.1, at most 60 epochs, without augmentation of the images: the paper does "
    "not say whether it had any, and its small gaps suggest that it had"
)
_CONVOLUTIONS = "400 of the 8x8 digits, 9 convolutions of 16 channels"
_FACTOR = 3
_SMOKE = Architecture(architecture="small_conv", examples=64, batch_size=64, epochs=1, probe=10)
_LITE = Architecture(architecture="small_conv", examples=400)
_VGG19 = Architecture(architecture="vgg19", data="cifar10", epochs=60, probe=200)


@dataclass(frozen=True)
class Optimized(Architecture):
    """A network whose optimizer and learning rate are swept together.

    Args:
        training: optimizer and learning rate, such as "adam 0.001" or "sgd 0.01" (with momentum).
    """

    training: str = "sgd 0.01"


def _run_optimized(config: Optimized, trial: Trial) -> Measured:
    """Train as the setting says, to a small loss."""
    optimizer, rate = config.training.split()
    name = "momentum" if optimizer == "sgd" else optimizer
    return run_once(replace(config, optimizer=name, learning_rate=float(rate)), trial)


def _value(setting: object) -> float:
    return float(str(setting).split()[-1])


def _rank(group: tuple[object, Results]) -> tuple[str, float]:
    """Order of the swept settings: by optimizer, then by value."""
    words = str(group[0]).split()
    return " ".join(words[:-1]), float(words[-1])


def _means(runs: Results, axis: str, key: str) -> dict[str, float]:
    """Mean of a number at each value of the swept setting, over runs that reached the loss."""
    return {
        f"{value:g}" if isinstance(value, float) else str(value): float(np.nanmean(part[key]))
        for value, part in by_setting(runs, axis).items()
        if np.isfinite(part[key]).any()
    }


def _monotone(axis: str, key: str, sign: int) -> Check:
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
        bound = above if sign > 0 else below
        return decided(
            bound("rank correlation", rank, possible=CORRELATION),
            premise=bool(np.isfinite(rank)) and _same_loss(kept),
            **_means(kept, axis, key),
            **_losses(kept),
        )

    return check


def _losses(runs: Results) -> dict[str, float]:
    """The range of final training losses, to show which networks are compared."""
    if not len(runs):
        return {}
    return {
        "lowest_loss": float(runs["train_loss"].min()),
        "highest_loss": float(runs["train_loss"].max()),
    }


def _same_loss(runs: Results) -> bool:
    """Whether training losses agree within a factor; the paper compares equal ones."""
    losses = runs["train_loss"]
    return bool(len(losses)) and float(losses.max()) <= _FACTOR * float(losses.min())


def _split_rates(runs: Results) -> Outcome:
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
    reached = converged(runs)
    return decided(
        *(
            below(f"{k}: large minus small rates", gaps[f"large {k}"] - gaps[f"small {k}"])
            for k in ("loss_gap", "accuracy_gap")
        ),
        premise=_same_loss(reached),
        **gaps,
        **_losses(reached),
    )


def _adam_against_sgd(runs: Results) -> Outcome:
    """Adam has larger gaps and a smaller prominence than SGD at the same training loss."""
    reached = converged(runs)
    adam = reached.chosen(lambda run: str(run.point["training"]).startswith("adam"))
    sgd = reached.chosen(lambda run: str(run.point["training"]).startswith("sgd"))
    if not len(adam) or not len(sgd):
        return outcome(None, runs=len(runs))
    a, s = ({k: float(np.nanmean(p[k])) for k in ("loss_gap", "prominence")} for p in (adam, sgd))
    return decided(
        above("loss gap: Adam minus SGD", a["loss_gap"] - s["loss_gap"]),
        below("prominence: Adam minus SGD", a["prominence"] - s["prominence"]),
        premise=_same_loss(reached),
        adam_prominence=a["prominence"],
        sgd_prominence=s["prominence"],
        adam_gap=a["loss_gap"],
        sgd_gap=s["loss_gap"],
    )


def _draw_gaps(
    figure: str, axis: str, published: Mapping[str, float]
) -> Callable[[Results], list[Panel]]:
    """Hierarchies at each value of the swept setting, and loss gaps next to the published ones."""

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


def _claim(name: str, text: str, check: Check, **options: Any) -> Claim:
    """A claim about networks at the same training loss."""
    premise = f"training losses agree within a factor of {_FACTOR}"
    sentence = f"{text} (where {premise})"
    return Claim(f"lou2022.{name}", sentence, check, scope="seed", premise=premise, **options)


def _paper_claim(name: str, text: str, check: Check, **options: Any) -> Claim:
    """A claim that is judged only on the paper's data."""
    return _claim(name, text, check, sizes=LARGE, **options)


def _gap_study(
    figure: int,
    axis: str,
    loss_gaps: Mapping[str, float],
    not_run: Mapping[str, str] | None = None,
    **options: Any,
) -> Study:
    """A study of runs to the same loss; ``loss_gaps`` are the gaps that the paper prints."""
    return Study(
        id=f"lou2022.fig{figure}",
        shows=(f"Figure {figure}",),
        seeds={"reduced": (101,)},
        draw=_draw_gaps(f"Figure {figure}", axis, loss_gaps),
        remarks={"reduced": _NOTE},
        not_run={"published": "no GPU time so far for up to 500 epochs", **(not_run or {})},
        **options,
    )


_RATE, _BATCH, _TRAINING = "learning_rate", "batch_size", "training"
_VGG19_GAPS = {"0.0005": 0.56, "0.001": 0.484, "0.0032": 0.357, "0.01": 0.224}
_FIGURE_12 = _gap_study(
    12,
    _RATE,
    _VGG19_GAPS,
    title="Gaps and alignment of VGG19 against the learning rate",
    measure=run_once,
    configs={"smoke": _SMOKE, "lite": _LITE, "reduced": _VGG19},
    spaces={
        "smoke": Space({_RATE: [0.01, 0.03]}),
        "lite": Space({_RATE: [0.003, 0.01, 0.03]}),
        "reduced": Space({_RATE: [0.01, 0.001, 0.0032, 0.0005]}),
    },
    claims=(
        _claim(
            "fig12.loss-gap",
            "the loss gap falls with the learning rate (sign of the rank correlation)",
            _monotone(_RATE, "loss_gap", -1),
            published=_VGG19_GAPS,
        ),
        _paper_claim(
            "fig12.accuracy-gap",
            "the accuracy gap falls with the learning rate",
            _monotone(_RATE, "accuracy_gap", -1),
            published={"0.0005": 13.1, "0.001": 12.3, "0.0032": 8.89, "0.01": 5.9},
        ),
        _paper_claim(
            "fig12.height",
            "the peak of the alignment rises with the learning rate",
            _monotone(_RATE, "height", 1),
        ),
        _paper_claim(
            "fig12.moves",
            "with larger learning rates the peak moves away from the end of the network",
            _monotone(_RATE, "peak", -1),
        ),
        Claim(
            "lou2022.fig12.place",
            "the alignment of VGG19 peaks in the middle half of the network",
            peak_between(0.25, 0.75),
            scope="all",
            sizes=LARGE,
        ),
    ),
    stand_in={"lite": _CONVOLUTIONS},
)

_ADAM_GAPS = {"adam 3.2e-05": 0.769, "adam 0.0001": 0.557, "adam 0.00032": 0.507}
_SGD_GAP = _VGG19_GAPS["0.0032"]  # of Figure 12, at the same rate
_FIGURE_13 = _gap_study(
    13,
    _TRAINING,
    {**_ADAM_GAPS, "sgd 0.0032": _SGD_GAP},
    title="Gaps and alignment of VGG19 trained with Adam",
    measure=_run_optimized,
    configs={
        "smoke": Optimized(
            architecture="small_conv", examples=64, batch_size=64, epochs=1, probe=10
        ),
        "lite": Optimized(architecture="small_conv", examples=400, epochs=100),
        "reduced": Optimized(architecture="vgg19", data="cifar10", epochs=60, probe=200),
    },
    spaces={
        "smoke": Space({_TRAINING: ["adam 0.003", "sgd 0.01"]}),
        "lite": Space({_TRAINING: ["adam 0.0003", "adam 0.001", "adam 0.003", "sgd 0.01"]}),
        "reduced": Space(
            {_TRAINING: ["adam 0.00032", "adam 3.2e-05", "adam 0.0001", "sgd 0.0032"]}
        ),
    },
    claims=(
        _claim(
            "fig13.loss-gap",
            "with Adam too the loss gap falls with the learning rate (sign of the rank "
            "correlation)",
            _monotone(_TRAINING, "loss_gap", -1),
            published=_ADAM_GAPS,
        ),
        _paper_claim(
            "fig13.accuracy-gap",
            "with Adam too the accuracy gap falls with the learning rate",
            _monotone(_TRAINING, "accuracy_gap", -1),
            published={"adam 3.2e-05": 17.4, "adam 0.0001": 12.4, "adam 0.00032": 11.9},
        ),
        _paper_claim(
            "fig13.adam",
            "Adam has larger loss gaps and a flatter alignment curve (smaller prominence) than SGD "
            "at the same training loss",
            _adam_against_sgd,
            published={"sgd_gap": _SGD_GAP},
        ),
    ),
    stand_in={"lite": f"{_CONVOLUTIONS}; Adam at 0.0003, 0.001, 0.003"},
)

_BATCH_GAPS = {"32": 0.236, "128": 0.357, "512": 0.562, "2048": 0.652}
_FIGURE_14 = _gap_study(
    14,
    _BATCH,
    _BATCH_GAPS,
    title="Gaps and alignment of VGG19 against the batch size",
    measure=run_once,
    configs={
        "smoke": replace(_SMOKE, batch_size=128),
        "lite": replace(_LITE, learning_rate=0.01, epochs=60),
        "reduced": replace(_VGG19, learning_rate=0.0032),
    },
    spaces={
        "smoke": Space({_BATCH: [32, 64]}),
        "lite": Space({_BATCH: [16, 64, 256]}),
        "reduced": Space({_BATCH: [32, 128, 512, 2048]}),
    },
    claims=(
        _claim(
            "fig14.loss-gap",
            "the loss gap grows with the batch size (sign of the rank correlation)",
            _monotone(_BATCH, "loss_gap", 1),
            published=_BATCH_GAPS,
        ),
        _paper_claim(
            "fig14.accuracy-gap",
            "the accuracy gap grows with the batch size",
            _monotone(_BATCH, "accuracy_gap", 1),
            published={"32": 4.7, "128": 8.89, "512": 11.3, "2048": 12.2},
        ),
        _paper_claim(
            "fig14.height",
            "the peak of the alignment falls with the batch size",
            _monotone(_BATCH, "height", -1),
        ),
        _paper_claim(
            "fig14.moves",
            "with smaller batches the peak moves away from the end of the network",
            _monotone(_BATCH, "peak", 1),
        ),
    ),
    stand_in={"lite": f"{_CONVOLUTIONS}; batches of 16, 64 and 256"},
    not_run={
        "reduced": "no GPU time so far; the learning rates of Figures 12 and 15 were run first"
    },
)

_RESNET18_GAPS = {"0.001": 0.395, "0.003": 0.397, "0.01": 0.152, "0.02": 0.182}
_FIGURE_15 = _gap_study(
    15,
    _RATE,
    _RESNET18_GAPS,
    title="Gaps and alignment of ResNet18 against the learning rate",
    measure=run_once,
    configs={
        "smoke": replace(_SMOKE, architecture="small_residual"),
        "lite": replace(_LITE, architecture="small_residual"),
        "reduced": replace(_VGG19, architecture="resnet18"),
    },
    spaces={
        "smoke": Space({_RATE: [0.01, 0.1]}),
        "lite": Space({_RATE: [0.01, 0.03, 0.1]}),
        "reduced": Space({_RATE: [0.02, 0.001, 0.01, 0.003]}),
    },
    claims=(
        _claim(
            "fig15.loss-gap",
            "the loss gap falls with the learning rate (sign of the rank correlation)",
            _monotone(_RATE, "loss_gap", -1),
            published=_RESNET18_GAPS,
        ),
        _paper_claim(
            "fig15.large",
            "large learning rates (0.01 and 0.02) have smaller gaps of loss and of accuracy than "
            "small ones",
            _split_rates,
            published={
                "large accuracy_gap": 4.95,
                "small accuracy_gap": 10.04,
                "large loss_gap": 0.167,
                "small loss_gap": 0.396,
            },
        ),
        _paper_claim(
            "fig15.height",
            "the peak of the alignment rises with the learning rate",
            _monotone(_RATE, "height", 1),
        ),
        _paper_claim(
            "fig15.moves",
            "with larger learning rates the peak moves away from the end of the network",
            _monotone(_RATE, "peak", -1),
            fragile="supposes a peak close to the end",
        ),
        Claim(
            "lou2022.fig15.place",
            "the alignment of ResNet18 peaks in the last third of the network",
            peak_between(2 / 3, 1.0),
            scope="all",
            sizes=LARGE,
        ),
    ),
    stand_in={
        "lite": "400 of the 8x8 digits, a residual network of 10 layers, rates 0.01, 0.03, 0.1",
    },
)
STUDIES = (_FIGURE_12, _FIGURE_13, _FIGURE_14, _FIGURE_15)
