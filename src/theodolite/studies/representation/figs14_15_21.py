"""Figures 14, 15 and 21: a similar source aligns better with a target than a dissimilar one."""

from dataclasses import dataclass, field

import numpy as np
import torch

from theodolite.studies import (
    Bars,
    Claim,
    Judgment,
    Line,
    Measured,
    Panel,
    Results,
    Study,
    Trial,
    judge,
    mean_and_error,
)
from theodolite.studies.representation._imagenet_sources import ImageNetSplit, image_sources
from theodolite.studies.representation._networks import Training
from theodolite.studies.representation._peaks_sources import PeaksSizes, peaks_sources
from theodolite.studies.representation._sources import GROUPS, Comparison

__all__ = ["STUDY", "SimilarSources"]

_LAYERS = 4
_PRINTED = {  # accuracy in percent: source on target
    "natural_on_natural": 94.55,
    "natural_on_artificial": 95.70,
    "artificial_on_natural": 90.49,
    "artificial_on_artificial": 97.14,
}


@dataclass(frozen=True)
class SimilarSources:
    """Two sources, and targets that are close to one or the other.

    Args:
        data: "peaks" or "imagenet".
        peaks: sizes of the former.
        images: how the latter is read and learned.
        bias: whether representations get a constant column.
    """

    data: str = "peaks"
    peaks: PeaksSizes = field(default_factory=PeaksSizes)
    images: ImageNetSplit = field(default_factory=ImageNetSplit)
    bias: bool = True


def measure(config: SimilarSources, trial: Trial) -> Measured:
    """Differences of curves, similar minus dissimilar, and results of fine-tuning."""
    if config.data == "imagenet":
        found = image_sources(config.images, trial, bias=config.bias)
    else:
        found = peaks_sources(config.peaks, trial, bias=config.bias)
    return Measured(_numbers(found), _arrays(found), {"data": config.data})


def _numbers(found: Comparison) -> dict[str, float]:
    numbers = {}
    for layer in range(_LAYERS):
        areas, curves = found.areas[:, layer], found.curves[:, layer]
        numbers[f"area_{layer + 1}"] = float(areas.mean())
        numbers[f"positive_{layer + 1}"] = float((areas > 0).double().mean())
        numbers[f"lowest_{layer + 1}"] = float(curves.mean(0).min())
        numbers[f"above_{layer + 1}"] = float((curves.mean(0) > -1e-6).double().mean())
    return numbers | {f"result_{key}": value for key, value in found.results.items()}


def _arrays(found: Comparison) -> dict[str, np.ndarray]:
    thinned = found.curves[:, :, ::2]  # one curve per task and layer
    return {
        "mean": found.curves.mean(0).to(torch.float16).numpy(),
        "tasks": thinned.to(torch.float16).numpy(),
    }


def _positive_curves(runs: Results) -> Judgment:
    """The lowest point over thresholds of the mean over runs and tasks, in each layer."""
    means = runs.array("mean").astype(np.float64).mean(0)
    lowest = {f"layer_{k + 1}": float(means[k].min()) for k in range(_LAYERS)}
    return judge(min(lowest.values()) >= -_SLACK, **lowest)


_SLACK = 1e-3  # of the label mass: what a record's half precision rounds


def _positive_areas(runs: Results) -> Judgment:
    shares = {f"layer_{k}": float(runs[f"positive_{k}"][0]) for k in range(1, _LAYERS + 1)}
    return judge(min(shares.values()) == 1, **shares)


def _rising(runs: Results) -> Judgment:
    areas = {f"layer_{k}": runs.mean(f"area_{k}") for k in range(1, _LAYERS + 1)}
    values = list(areas.values())
    return judge(values == sorted(values), **areas)


def _results(runs: Results) -> dict[str, float]:
    """Of fine-tuning: source on target."""
    return {key: runs.mean(f"result_{key}") for key in _PRINTED}


def _fine_tuned(runs: Results) -> Judgment:
    """Relative test errors of peaks: the similar source must be lower for both kinds of target."""
    errors = _results(runs)
    holds = (
        errors["natural_on_natural"] < errors["artificial_on_natural"]
        and errors["artificial_on_artificial"] < errors["natural_on_artificial"]
    )
    return judge(holds if runs.runs[0].notes["data"] == "peaks" else None, **errors)


def _accurate(runs: Results) -> Judgment:
    if runs.runs[0].notes["data"] == "peaks":
        return judge(None, test_error=float(np.mean(list(_results(runs).values()))))
    values = {key: 100 * value for key, value in _results(runs).items()}
    holds = (
        values["natural_on_natural"] > values["artificial_on_natural"]
        and values["artificial_on_artificial"] > values["natural_on_artificial"]
    )
    return judge(holds, **values)


def draw(runs: Results) -> list[Panel]:
    """Mean differences by layer, single tasks by layer, and what fine-tuning reached."""
    stacked = runs.array("mean").astype(np.float64)
    x = np.linspace(0, 1, stacked.shape[-1])
    lines = []
    for layer in range(_LAYERS):
        mean, error = mean_and_error(stacked[:, layer])
        lines.append(Line(f"layer {layer + 1}", x, mean, error))
    axes = ("threshold / root n", "similar minus dissimilar")
    panels = [Panel("Figure 14, mean over tasks", lines, *axes)]
    tasks = runs.array("tasks").astype(np.float64).mean(0)
    for layer in range(_LAYERS):
        single = [Line(f"task {i + 1}", x[::2], t[layer], color=0) for i, t in enumerate(tasks)]
        average = Line("mean", x[::2], tasks[:, layer].mean(0), color=1)
        panels.append(Panel(f"Figure 21, layer {layer + 1}", [*single, average], *axes))
    bars = [
        Bars(
            f"source {source}",
            [f"target {target}" for target in GROUPS],
            *mean_and_error(
                np.stack([runs[f"result_{source}_on_{target}"] for target in GROUPS], axis=1)
            ),
        )
        for source in GROUPS
    ]
    quantity = "relative test error" if runs.runs[0].notes["data"] == "peaks" else "accuracy"
    return [*panels, Panel("Figure 15, after fine-tuning", bars, "", quantity)]


def _claims() -> tuple[Claim, ...]:
    id_ = "imani2022.fig14-15-21"
    return (
        Claim(f"{id_}.curves", "the mean difference of curves is nowhere negative in any of the "
              "last four layers (beyond 0.001 of the label mass; means over tasks and runs)",
              _positive_curves, scope="all"),
        Claim(f"{id_}.tasks", "the area of the difference is positive for every task and layer",
              _positive_areas, sizes=("lite",)),
        Claim(f"{id_}.depth", "the difference is larger in layers closer to the output",
              _rising, scope="all", sizes=("paper",),
              fragile="deep layers of networks on peaks functions specialise on their source"),
        Claim(f"{id_}.fine-tuning", "after fine-tuning the similar source has the lower test error "
              "on both kinds of target (means over tasks and runs)", _fine_tuned, scope="all",
              sizes=("lite",)),
        Claim(f"{id_}.accuracy", "after fine-tuning the similar source is more accurate on both "
              "kinds of target, in percent", _accurate, scope="all", sizes=("paper",),
              published=_PRINTED),
    )  # fmt: skip


STUDY = Study(
    id="imani2022.fig14-15-21",
    title="Similar and dissimilar sources",
    shows=("Figure 14", "Figure 15", "Figure 21"),
    measure=measure,
    configs={
        "smoke": SimilarSources(
            peaks=PeaksSizes(64, 60, 20, Training(epochs=2), Training(epochs=1))
        ),
        "lite": SimilarSources(),
        "paper": SimilarSources("imagenet"),
    },
    claims=_claims(),
    draw=draw,
    stand_in={
        "lite": "two peaks functions without a common variable as sources ('natural' and "
        "'artificial'), the ten functions related to them as targets; results of fine-tuning are "
        "test errors relative to a constant"
    },
    not_run={
        "paper": "ImageNet and its natural/artificial split cannot be had here; the loader reads "
        "them from the data folder and trains a ResNet-18. T2T-ViT is not among the networks"
    },
)  # fmt: skip
