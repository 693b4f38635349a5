"""Figures 14, 15 and 21: a similar source aligns better with a target than a dissimilar one."""

from dataclasses import dataclass, field

import numpy as np
import torch

from theodolite_papers.imani2022._networks import Training
from theodolite_papers.imani2022._sources import (
    GROUPS,
    ImageNetSplit,
    PeaksSizes,
    SourceComparison,
    image_sources,
    peaks_sources,
)
from theodolite_papers.ledger import (
    LARGE,
    Bars,
    Claim,
    Line,
    Measured,
    Outcome,
    Panel,
    Results,
    Study,
    Trial,
    above,
    decided,
    mean_and_error,
    ordered,
    outcome,
    shown_as,
)

__all__ = ["STUDY", "SimilarSources"]

_LAYERS = 4
_TABLE = ("natural_on_natural", "natural_on_artificial",
          "artificial_on_natural", "artificial_on_artificial")  # source on target  # fmt: skip
_PRINTED = (94.55, 95.70, 90.49, 97.14)  # accuracy of ResNet-18 in percent, as in the table


@dataclass(frozen=True)
class SimilarSources:
    """Two sources, and targets that are close to one or the other.

    Args:
        data: "peaks" or "imagenet".
        peaks: sizes of the former.
        images: how the latter is read and learned.
        network: that learns images.
        bias: whether representations get a constant column.
    """

    data: str = "peaks"
    peaks: PeaksSizes = field(default_factory=PeaksSizes)
    images: ImageNetSplit = field(default_factory=ImageNetSplit)
    network: str = "resnet18"
    bias: bool = True


def measure(config: SimilarSources, trial: Trial) -> Measured:
    """Differences of curves, similar minus dissimilar, and results of fine-tuning."""
    notes = {"data": config.data}
    if config.data == "imagenet":
        found = image_sources(config.images, trial, config.network, bias=config.bias)
        notes["network"] = config.network
    else:
        found = peaks_sources(config.peaks, trial, bias=config.bias)
    return Measured(_numbers(found), _arrays(found), notes)


def _numbers(found: SourceComparison) -> dict[str, float]:
    numbers = {}
    for layer in range(_LAYERS):
        areas, curves = found.areas[:, layer], found.curves[:, layer]
        numbers[f"area_{layer + 1}"] = float(areas.mean())
        numbers[f"positive_{layer + 1}"] = float((areas > 0).double().mean())
        numbers[f"lowest_{layer + 1}"] = float(curves.mean(0).min())
        numbers[f"above_{layer + 1}"] = float((curves.mean(0) > -1e-6).double().mean())
    return numbers | {f"result_{key}": value for key, value in found.results.items()}


def _arrays(found: SourceComparison) -> dict[str, np.ndarray]:
    thinned = found.curves[:, :, ::2]  # one curve per task and layer
    return {
        "mean": found.curves.mean(0).to(torch.float16).numpy(),
        "tasks": thinned.to(torch.float16).numpy(),
    }


def _positive_curves(runs: Results) -> Outcome:
    """The lowest point of the mean over runs and tasks, in each layer."""
    means = runs.array("mean").astype(np.float64).mean(0)
    return decided(
        *(above(f"layer_{k + 1}", means[k].min(), -_SLACK, strict=False) for k in range(_LAYERS))
    )


_SLACK = 1e-3  # of the label mass: what a record's half precision rounds


def _positive_areas(runs: Results) -> Outcome:
    shares = {f"layer_{k}": float(runs[f"positive_{k}"][0]) for k in range(1, _LAYERS + 1)}
    return decided(*(above(name, v, 1, strict=False) for name, v in shares.items()))


def _rising(runs: Results) -> Outcome:
    return ordered({f"layer_{k}": runs.mean(f"area_{k}") for k in range(1, _LAYERS + 1)})


def _results(runs: Results) -> dict[str, float]:
    """Results of fine-tuning: source -> target."""
    return {key: runs.mean(f"result_{key}") for key in _TABLE}


def _fine_tuned(runs: Results) -> Outcome:
    """Relative test errors of peaks: the similar source must be lower for both kinds of target."""
    errors = _results(runs)
    return decided(
        above("natural_gain", errors["artificial_on_natural"] - errors["natural_on_natural"]),
        above(
            "artificial_gain", errors["natural_on_artificial"] - errors["artificial_on_artificial"]
        ),
        premise=runs.first.notes["data"] == "peaks",
        **errors,
    )


def _accurate(runs: Results) -> Outcome:
    if runs.first.notes["data"] == "peaks":
        return outcome(None, test_error=float(np.mean(list(_results(runs).values()))))
    values = {key: 100 * value for key, value in _results(runs).items()}
    gains = {
        "natural": values["natural_on_natural"] - values["artificial_on_natural"],
        "artificial": values["artificial_on_artificial"] - values["natural_on_artificial"],
    }
    return shown_as(decided(*(above(f"{k}_gain", gain) for k, gain in gains.items())), **values)


def draw(runs: Results) -> list[Panel]:
    """Mean differences, differences of single tasks, and results of fine-tuning."""
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
    return [*panels, _bars(runs)]


def _bars(runs: Results) -> Panel:
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
    quantity = "relative test error" if runs.first.notes["data"] == "peaks" else "accuracy"
    return Panel("Figure 15, after fine-tuning", bars, "", quantity)


def _claims() -> tuple[Claim, ...]:
    id_ = "imani2022.fig14-15-21"
    return (
        Claim(f"{id_}.curves", "the mean difference of curves is nowhere negative in any of the "
              "last four layers (beyond 0.001 of the label mass; means over tasks and runs)",
              _positive_curves, scope="all"),
        Claim(f"{id_}.tasks", "the area of the difference is positive for every task and layer",
              _positive_areas, sizes=("lite",)),
        Claim(f"{id_}.depth", "the difference is larger in layers closer to the output", _rising,
              scope="all", sizes=LARGE,
              fragile="deep layers of networks on peaks functions specialise on their source"),
        Claim(f"{id_}.fine-tuning", "after fine-tuning the similar source has the lower test error "
              "on both kinds of target (means over tasks and runs)", _fine_tuned, scope="all",
              sizes=("lite",)),
        Claim(f"{id_}.accuracy", "after fine-tuning the similar source is more accurate on both "
              "kinds of target, in percent", _accurate, scope="all", sizes=LARGE,
              published=dict(zip(_TABLE, _PRINTED, strict=True))),
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
        "reduced": SimilarSources("imagenet"),
    },
    claims=_claims(),
    draw=draw,
    stand_in={
        "lite": "two peaks functions without a common variable as sources ('natural' and "
        "'artificial'), the ten functions related to them as targets; results of fine-tuning are "
        "test errors relative to a constant"
    },
    not_run={
        "reduced": "we do not have ImageNet and its natural/artificial split; the loader "
        "reads "
        "them from the data folder (300 images a class, in memory; natural.txt lists the 449 "
        "natural classes) and trains a ResNet-18; the paper's T2T-ViT is not built",
        "published": "all 1.28 million images do not fit into memory, from which the loader reads; "
        "random crops are shifts by 16 of 224 pixels, not crops of 256",
    },
)  # fmt: skip
