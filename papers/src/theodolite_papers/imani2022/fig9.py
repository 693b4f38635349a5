"""Figure 9: alignment curves predict which of two labelings is learned faster."""

from dataclasses import dataclass
from math import sqrt

import numpy as np
import torch
from torch import Tensor

from theodolite.linalg import LabelProjections, thin_svd
from theodolite.measures.representation import curve_from_projections, label_projections
from theodolite.theory.convergence import gradient_descent_loss
from theodolite_papers.imani2022._illustrations import singular_vector_labels
from theodolite_papers.lab.data import load_ct_position
from theodolite_papers.ledger import (
    Claim,
    Line,
    Measured,
    Outcome,
    Panel,
    Results,
    Study,
    Trial,
    decided,
    inside,
    named,
)

__all__ = ["STUDY", "LabelsFromSpectrum"]

_PRINTED = {5: 115.0, 10: 70.0, 50: 30.0}  # singular values that the figure shows


@dataclass(frozen=True)
class LabelsFromSpectrum:
    """Labels that are left singular vectors of the features: u_10, and a mix of u_5 and u_50.

    Args:
        data: "spectrum" (features with the printed singular values) or "ct_position".
        rows: number of examples.
        columns: number of features; of drawn features only.
        large_share: share of the second labels' mass that lies on u_5.
        steps: of gradient descent.
        thresholds: points of the curves.
    """

    data: str = "spectrum"
    rows: int = 200
    columns: int = 60
    large_share: float = 0.9
    steps: int = 3000
    thresholds: int = 121


def measure(config: LabelsFromSpectrum, trial: Trial) -> Measured:
    """Both alignment curves, and both losses at a common step size."""
    inputs = _features(config, trial.generator())
    sigma = thin_svd(inputs).values
    share = config.large_share
    labels = {
        "one": singular_vector_labels(inputs, {10: 1.0}),
        "mix": singular_vector_labels(inputs, {5: sqrt(share), 50: sqrt(1 - share)}),
    }
    found = {name: label_projections(inputs, y) for name, y in labels.items()}
    grid = torch.linspace(0, 1.2 * float(sigma[4]), config.thresholds, dtype=torch.float64)
    steps = torch.arange(1, config.steps + 1)
    step_size = 1 / float(sigma[0]) ** 2
    losses = {n: gradient_descent_loss(p, step_size, steps) for n, p in found.items()}
    ahead = losses["mix"] < losses["one"]
    kept = torch.from_numpy(np.unique(np.geomspace(1, config.steps, 40).astype(np.int64)) - 1)
    numbers = {
        **{f"sigma_{k}": float(sigma[k - 1]) for k in _PRINTED},
        "mix_ahead_first": float(ahead[0]),
        "crossings": float((ahead[1:] != ahead[:-1]).sum()),
        "one_ahead_last": float(not ahead[-1]),
        **_levels(_around(found["mix"], sigma)),
    }
    arrays = {"thresholds": grid.float().numpy(), "steps": (kept + 1).numpy()}
    for name, projections in found.items():
        curve = curve_from_projections(projections, grid, scale="absolute").values
        arrays[f"curve_{name}"] = curve.float().numpy()
        arrays[f"loss_{name}"] = losses[name][kept].float().numpy()
    return Measured(numbers, arrays, {"data": config.data})


def _around(projections: LabelProjections, sigma: Tensor) -> Tensor:
    """The mixed labels' alignment just below and just above each of its two singular values."""
    low, high = float(sigma[49]), float(sigma[4])
    at = torch.tensor([0.999 * low, 1.001 * low, 0.999 * high, 1.001 * high], dtype=torch.float64)
    return curve_from_projections(projections, at, scale="absolute").values


def _levels(values: Tensor) -> dict[str, float]:
    names = ("below_low", "above_low", "below_high", "above_high")
    return {f"mix_{name}": float(value) for name, value in zip(names, values, strict=True)}


def _features(config: LabelsFromSpectrum, generator: torch.Generator) -> Tensor:
    if config.data == "ct_position":
        return load_ct_position(config.rows, 1, generator=generator).x_train
    rotate = [
        torch.linalg.qr(torch.randn(size, config.columns, generator=generator).double()).Q
        for size in (config.rows, config.columns)
    ]
    return rotate[0] * _spectrum(config.columns) @ rotate[1].mT


def _spectrum(count: int) -> Tensor:
    """Logarithmically interpolated between the printed singular values, and on beyond them."""
    known = torch.tensor([[k, value] for k, value in _PRINTED.items()]).double()
    index = torch.arange(1, count + 1, dtype=torch.float64)
    slopes = known[:, 1].log().diff() / known[:, 0].log().diff()
    first = index <= known[1, 0]
    anchor = torch.where(first, known[0, 0], known[1, 0])
    level = torch.where(first, known[0, 1], known[1, 1]).log()
    slope = torch.where(first, slopes[0], slopes[1])
    return (level + slope * (index / anchor).log()).exp()


def _drops(runs: Results) -> Outcome:
    found = runs.means(named("below_low", "above_low", "below_high", "above_high", prefix="mix_"))
    levels = {f"mix_{name}": value for name, value in found.items()}
    expected = (1.0, 0.9, 0.9, 0.0)
    pairs = zip(levels.items(), expected, strict=True)
    return decided(*(inside(name, v, e - 1e-6, e + 1e-6) for (name, v), e in pairs))


def _crossing(runs: Results) -> Outcome:
    found = runs.means(named("mix_ahead_first", "crossings", "one_ahead_last"))
    return decided(*(inside(name, v, 1, 1, strict=False) for name, v in found.items()))


def draw(runs: Results) -> list[Panel]:
    """Alignment curves and learning curves of the first run."""
    arrays = runs.first.arrays
    names = {"one": "y1 = u10", "mix": "y2 = u5 and u50"}
    curves = [Line(t, arrays["thresholds"], arrays[f"curve_{n}"]) for n, t in names.items()]
    losses = [Line(t, arrays["steps"], arrays[f"loss_{n}"]) for n, t in names.items()]
    return [
        Panel("Figure 9, alignment", curves, "threshold", "alignment"),
        Panel("Figure 9, learning curves", losses, "step", "loss", log="x"),
    ]


STUDY = Study(
    id="imani2022.fig9",
    title="Alignment curves predict learning curves",
    shows=("Figure 9",),
    measure=measure,
    configs={
        "smoke": LabelsFromSpectrum(steps=1000),
        "lite": LabelsFromSpectrum(),
        "published": LabelsFromSpectrum("ct_position", rows=1000),
    },
    claims=(
        Claim(
            "imani2022.fig9.drops",
            "alignment of y2 drops from 1 to 0.9 at the small and from 0.9 to 0 at the large one "
            "of its two singular values",
            _drops,
            unit="calculation",
        ),
        Claim(
            "imani2022.fig9.crossing",
            "y2 is ahead early and y1 later: the losses cross exactly once",
            _crossing,
            unit="calculation",
        ),
    ),
    draw=draw,
    stand_in={
        "lite": "features drawn with the singular values that the figure shows (115, 70, 30), "
        "not normalised, as in the figure"
    },
    not_run={"published": "it needs the CT position table of UCI, which we do not have"},
)
