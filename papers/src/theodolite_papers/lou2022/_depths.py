"""Networks of many depths: where their alignment peaks, and which line describes the peaks."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf

import numpy as np
import torch
from scipy import stats
from torch import nn

from theodolite.measures.tangent import fit_equilibrium
from theodolite.theory.infinite_width import asymptotic_equilibrium_layer, equilibrium_layer
from theodolite_papers.lab.training import DivergenceError, TrainingLog, train_ensemble
from theodolite_papers.ledger import Measured, Result, Results, Trial
from theodolite_papers.lou2022._hierarchy import alignments, as_array, by_setting, shape_of
from theodolite_papers.lou2022._setting import (
    Ground,
    final_numbers,
    fully_connected,
    learned,
    prepare,
    recipe_of,
)
from theodolite_papers.lou2022._tables import Tabled

__all__ = [
    "balance_line",
    "by_depth",
    "data_sets",
    "depth_fit",
    "fitted_loss",
    "law_line",
    "mean_cosine",
    "measure_depth",
    "peaks_of",
]

_EXPONENT = 0.6  # Corollary 1
_CONVERGED = 0.05  # training loss of the last epoch, of runs that stop at 0.02
_LEARNED = 1.0  # of runs of tabled length: a network that stays at chance has no hierarchy
_LEVEL = 0.95  # of the interval of the slope


def measure_depth(config: Tabled, trial: Trial) -> Measured:
    """Hierarchies of networks of one depth, trained side by side."""
    setting = config.setting
    ground = prepare(setting, trial)
    models = [fully_connected(setting, ground, trial, 10 + i) for i in range(config.networks)]
    logs = _trained(models, ground, config, trial)
    outcomes = [final_numbers(log) for log in logs]
    curves = np.stack(
        [
            alignments(model, ground)
            if np.isfinite(end["train_loss"])
            else np.full(config.depth, np.nan)
            for model, end in zip(models, outcomes, strict=True)
        ]
    )
    numbers = {key: float(np.mean([o[key] for o in outcomes])) for key in outcomes[0]}
    numbers["cosine"] = mean_cosine(ground)
    numbers["tabled_accuracy"] = config.row.accuracy
    arrays = {
        "curves": curves.astype(np.float16),
        "peaks": as_array([shape_of(curve)["peak"] for curve in curves]),
        "final_losses": as_array([o["last_epoch_loss"] for o in outcomes]),
        "test_accuracies": as_array([o["test_accuracy"] for o in outcomes]),
    }
    return Measured(numbers, arrays)


def _trained(
    models: Sequence[nn.Module], ground: Ground, config: Tabled, trial: Trial
) -> list[TrainingLog | None]:
    recipe = recipe_of(config.setting, trial.seed)
    seeds = [1000 * trial.seed + index for index in range(len(models))]
    try:
        return [*train_ensemble(models, ground.train, recipe, seeds=seeds, test=ground.test)]
    except DivergenceError:  # of one of them, which must not cost the others
        alone = zip(models, seeds, strict=True)
        return [learned(model, ground, replace(recipe, seed=seed)) for model, seed in alone]


def mean_cosine(ground: Ground) -> float:
    """Mean cosine of two different images of the probe."""
    rows = nn.functional.normalize(ground.probe[0].double().flatten(1), dim=1)
    gram = rows @ rows.mT
    count = len(rows)
    return float((gram.sum() - gram.diagonal().sum()) / (count * (count - 1)))


def data_sets(runs: Results) -> dict[str, Results]:
    """The runs of each data set."""
    return {str(name): part for name, part in by_setting(runs, "data", "digits").items()}


def by_depth(runs: Results) -> dict[int, Results]:
    """The runs of each depth."""
    found: dict[int, list[Result]] = {}
    for run in runs:
        found.setdefault(run.arrays["curves"].shape[1], []).append(run)
    return {depth: Results(tuple(same)) for depth, same in found.items()}


def fitted_loss(name: str) -> float:
    """Training loss up to which a network of a data set has fitted it."""
    return _CONVERGED if name == "digits" else _LEARNED


def peaks_of(runs: Results, most_loss: float = inf) -> tuple[np.ndarray, np.ndarray]:
    """Depth and peak of every network whose last epoch's training loss was at most that."""
    pairs = [
        (float(run.arrays["curves"].shape[1]), float(peak))
        for run in runs
        for peak, loss in zip(run.arrays["peaks"], run.arrays["final_losses"], strict=True)
        if np.isfinite(peak) and np.isfinite(loss) and loss <= most_loss
    ]
    depths, peaks = zip(*pairs, strict=True) if pairs else ((), ())
    return np.asarray(depths), np.asarray(peaks)


def balance_line(depths: Sequence[float] | np.ndarray, cosine: float) -> np.ndarray:
    """The exact balance of both losses of information at each depth."""
    clipped = min(1.0, max(-1.0, cosine))
    return np.asarray([equilibrium_layer(int(depth), clipped) for depth in depths])


def law_line(depths: Sequence[float] | np.ndarray) -> np.ndarray:
    """The 3/5 law with the constant that the theory gives at great depth."""
    return np.asarray([asymptotic_equilibrium_layer(int(depth)) for depth in depths])


def depth_fit(depths: np.ndarray, peaks: np.ndarray, cosine: float) -> dict[str, float]:
    """Regression with its interval, and how far each theory is from the peaks.

    Distances are root mean squares of natural logarithms. ``law`` and ``balance`` have no free
    number; with ``_scaled`` each has one free factor, as the paper's line has.
    """
    fit = fit_equilibrium(torch.as_tensor(depths), torch.as_tensor(peaks))
    width = float(fit.slope_error) * float(stats.t.ppf((1 + _LEVEL) / 2, max(1, len(depths) - 2)))
    law = np.log(peaks / law_line(depths))
    balance = np.log(peaks / balance_line(depths, cosine))
    exact = np.unique(depths)
    theory = fit_equilibrium(torch.as_tensor(exact), torch.as_tensor(balance_line(exact, cosine)))
    return {
        "slope": float(fit.slope),
        "low": float(fit.slope) - width,
        "high": float(fit.slope) + width,
        "constant": float(fit.constant),
        "balance_slope": float(theory.slope),
        "law": _rms(law),
        "law_scaled": _rms(law - law.mean()),
        "balance": _rms(balance),
        "balance_scaled": _rms(balance - balance.mean()),
    }


def _rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(values**2)))
