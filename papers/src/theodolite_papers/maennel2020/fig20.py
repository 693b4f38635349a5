"""Figure 20: f(sigma) of networks on Gaussian inputs: falling, rising and falling, rising."""

from dataclasses import dataclass, replace

import numpy as np
import torch

from theodolite.engine import weight_covariance
from theodolite.measures.covariance import compare_misalignment, transfer_function
from theodolite_papers.ledger import (
    Claim,
    Line,
    Measured,
    Outcome,
    Panel,
    Results,
    Study,
    Trial,
    below,
    between,
    decided,
    inside,
    mean_and_error,
    named,
    pearson,
    spearman,
)
from theodolite_papers.maennel2020._filters import GaussianRuns, train_on_gaussians
from theodolite_papers.maennel2020.formulas.curves import curve_deviation, unimodality_defect

__all__ = ["STUDY", "Panels"]

_ID = "maennel2020.fig20"
_TEN = tuple(round(1 + 0.1 * k, 1) for k in range(10))
_THIRTY = tuple(round(0.1 * k, 1) for k in range(1, 31))
_NAMES = ("left", "middle", "right")


@dataclass(frozen=True)
class Panels:
    """The three settings of the figure."""

    left: GaussianRuns
    middle: GaussianRuns
    right: GaussianRuns


def measure(config: Panels, trial: Trial) -> Measured:
    """Transfer functions of the runs of each panel, and the misalignment of their pool."""
    numbers: dict[str, float] = {}
    arrays: dict[str, np.ndarray] = {}
    for stream, name in enumerate(_NAMES):
        setting: GaussianRuns = getattr(config, name)
        weights, accuracy = train_on_gaussians(setting, trial, stream)
        curves = transfer_function(setting.covariance, weights)
        sigma, tau = curves.sigma.flip(0), curves.tau.flip(-1)
        arrays |= {f"{name}_sigma": sigma.float().numpy(), f"{name}_tau": tau.float().numpy()}
        found = _shape(sigma, tau) | _scores(setting, weights.flatten(0, 1), trial)
        numbers[f"{name}_accuracy"] = accuracy
        numbers |= {f"{name}_{key}": value for key, value in found.items()}
        trial.report((stream + 1) / 3, name)
    return Measured(numbers, arrays)


def _shape(sigma: torch.Tensor, tau: torch.Tensor) -> dict[str, float]:
    """Shape of the mean curve, and the distance of single runs from it."""
    mean = tau.mean(0)
    return {
        "defect": float(unimodality_defect(mean)),
        "correlation": pearson(sigma.numpy(), mean.numpy()),
        "rank_correlation": spearman(sigma.numpy(), mean.numpy()),
        "spread": float(curve_deviation(tau, mean.expand_as(tau)).max()),
        "peak": float(mean.argmax()) / (len(mean) - 1),
        "end_to_peak": float(mean[-1] / mean.max()),
    }


def _scores(setting: GaussianRuns, pooled: torch.Tensor, trial: Trial) -> dict[str, float]:
    covariance = weight_covariance(pooled)
    generator = trial.generator(10)
    score = compare_misalignment(setting.covariance, covariance, len(pooled), generator=generator)
    return {
        "misalignment": float(score.value),
        "baseline": float(score.baseline.mean()),
        "floor": float(score.floor),
    }


def _rises_and_falls(runs: Results) -> Outcome:
    found = runs.means(named("peak", "end_to_peak", "defect", prefix="middle_"))
    peak, end, defect = found.values()
    return decided(
        inside("peak", peak, 0, 1), below("end_to_peak", end, 0.99), below("defect", defect, 0.15)
    )


def _aligned(runs: Results) -> Outcome:
    run = runs.first
    shares = {name: run[f"{name}_misalignment"] / run[f"{name}_baseline"] for name in _NAMES[1:]}
    return decided(*(below(name, share, 0.5) for name, share in shares.items()))


def draw(runs: Results) -> list[Panel]:
    """Mean curve of each panel over all runs of all seeds."""
    panels = []
    for name in _NAMES:
        sigma = runs.array(f"{name}_sigma")[0]
        tau, error = mean_and_error(np.concatenate(list(runs.array(f"{name}_tau"))))
        panels.append(Panel(f"Figure 20, {name}", [Line("f", sigma, tau, error)], "sigma", "tau"))
    return panels


_PUBLISHED = Panels(
    left=GaussianRuns(_TEN, (2048, 256), 10_000, 5, 10_000, 0.02, batch_size=256, momentum=0.9),
    middle=GaussianRuns(
        _THIRTY, (2048, 256), 10_000, 5, 10_000, 0.02, batch_size=256, momentum=0.9
    ),
    right=GaussianRuns(_THIRTY, (256, 256), 2_000, 5, 10_000, 0.02, batch_size=256, momentum=0.9),
)
_LITE = Panels(
    left=GaussianRuns(_TEN, (256, 64), 2000, 4, 1500, 0.1, first_scale=0.2, momentum=0.9),
    middle=GaussianRuns(_THIRTY, (512, 128), 1500, 3, 400, first_scale=0.2, momentum=0.9),
    right=GaussianRuns(_THIRTY, (128, 128), 500, 5, 400, first_scale=0.2, momentum=0.9),
)
_SMOKE = Panels(
    *(
        replace(setting, widths=(48, 8), samples=64, runs=2, steps=2, batch_size=32)
        for setting in (_LITE.left, _LITE.middle, _LITE.right)
    )
)

STUDY = Study(
    id=_ID,
    title="f(sigma) for Gaussian inputs",
    shows=("Figure 20",),
    measure=measure,
    configs={"smoke": _SMOKE, "lite": _LITE, "published": _PUBLISHED},
    claims=(
        Claim(
            f"{_ID}.left",
            "left: f falls (correlation of sigma and tau below -0.9)",
            between({"correlation": "left_correlation"}, high=-0.9),
        ),
        Claim(
            f"{_ID}.middle",
            "middle: f rises, then falls (peak inside, end below 0.99 of it, defect of "
            "unimodality below 0.15)",
            _rises_and_falls,
        ),
        Claim(
            f"{_ID}.right",
            "right: f rises (rank correlation above 0.8)",
            between({"rank_correlation": "right_rank_correlation"}, low=0.8),
        ),
        Claim(
            f"{_ID}.runs-agree",
            "curves of different runs agree with their mean (deviation below 0.1)",
            between(named(*_NAMES, suffix="_spread"), high=0.1),
        ),
        Claim(
            f"{_ID}.aligned",
            "pooled weights are aligned with the data: misalignment below half of its random-basis "
            "mean (middle and right)",
            _aligned,
        ),
    ),
    draw=draw,
    stand_in={
        "lite": "narrower networks, fewer samples, first layer drawn at 0.2 of the usual scale: a "
        "change of setting that lets the learned part show in seconds",
    },
    remarks={
        "published": "learning rate 0.02, momentum, batch 256 and 10,000 steps are ours; printed "
        "is "
        "only gradient descent to convergence",
    },
)
