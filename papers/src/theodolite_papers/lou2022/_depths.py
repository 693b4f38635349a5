"""Networks of many depths: Tables 1 to 3, the layers with the highest alignment, fitted lines."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, nan

import numpy as np
import torch
from scipy import stats
from torch import nn

from theodolite.theory.infinite_width import equilibrium_layer
from theodolite_papers.lab.training import DivergenceError, TrainingLog, train_ensemble
from theodolite_papers.ledger import Measured, Result, Results, Trial
from theodolite_papers.lou2022._hierarchy import alignments, as_array, by_setting, shape_of
from theodolite_papers.lou2022._setting import (
    Ground,
    Setting,
    final_numbers,
    fully_connected,
    learned,
    prepare,
    recipe_of,
)
from theodolite_papers.lou2022.formulas.hierarchy import fit_equilibrium
from theodolite_papers.lou2022.formulas.infinite_width import asymptotic_equilibrium_layer

__all__ = [
    "ROWS",
    "Tabled",
    "balance_line",
    "by_depth",
    "data_sets",
    "depth_fit",
    "fitted_loss",
    "mean_cosine",
    "measure_depth",
    "peaks_of",
]

_EXPONENT = 0.6  # Corollary 1
_CONVERGED = 0.05  # training loss of the last epoch, of runs that stop at 0.02
_LEARNED = 1.0  # of runs of tabled length: a network that stays at chance has no hierarchy
_LEVEL = 0.95  # of the interval of the slope


@dataclass(frozen=True)
class Row:
    """One depth of a table; test accuracy in percent."""

    learning_rate: float
    epochs: int
    accuracy: float


WIDTHS: Mapping[str, int] = {"cifar10": 256, "fashion_mnist": 100, "mnist": 100, "digits": 128}
ROWS: Mapping[str, Mapping[int, Row]] = {
    "cifar10": {  # Table 1
        10: Row(0.005, 100, 56.0),
        20: Row(0.003, 100, 58.3),
        30: Row(0.003, 150, 57.7),
        40: Row(0.001, 200, 58.7),
        50: Row(0.001, 250, 58.0),
        60: Row(0.0007, 300, 58.3),
        70: Row(0.0005, 300, 59.1),
        80: Row(0.0005, 500, 57.2),
        90: Row(0.0001, 500, 56.9),
        100: Row(0.0001, 700, 56.0),
    },
    "fashion_mnist": {  # Table 2
        10: Row(0.003, 100, 88.3),
        20: Row(0.004, 100, 88.6),
        30: Row(0.004, 100, 89.6),
        40: Row(0.002, 100, 88.9),
        50: Row(0.001, 100, 88.4),
        60: Row(0.0007, 100, 87.7),
        70: Row(0.0003, 200, 88.7),
        80: Row(0.0002, 200, 87.9),
        90: Row(0.0001, 300, 87.6),
        100: Row(7e-5, 300, 88.0),
    },
    "mnist": {  # Table 3
        10: Row(0.003, 100, 97.0),
        20: Row(0.003, 100, 97.0),
        30: Row(0.003, 100, 96.9),
        40: Row(0.002, 100, 97.6),
        50: Row(0.001, 100, 97.6),
        60: Row(0.0007, 100, 97.6),
        70: Row(0.0002, 200, 94.8),
        80: Row(0.0001, 200, 94.4),
        90: Row(0.0002, 300, 96.1),
        100: Row(0.0001, 300, 95.8),
    },
    "digits": {  # of ours: the largest rate that trains, chosen on other seeds
        4: Row(0.03, 80, nan),
        6: Row(0.03, 80, nan),
        10: Row(0.02, 80, nan),
        15: Row(0.01, 80, nan),
        20: Row(0.01, 80, nan),
        30: Row(0.003, 80, nan),
        40: Row(0.002, 80, nan),
    },
}


@dataclass(frozen=True)
class Tabled:
    """A network of Tables 1 to 3, whose width, learning rate and epochs follow from its depth.

    Args:
        data: name of the data set.
        depth: layers with weights.
        rate_factor: of the tabled learning rate.
        batch_size: given for Figures 3b and 8a alone.
        most_epochs: where the tabled number is cut; None where it is not.
        stop_loss: training loss at which a run ends; None trains for all epochs.
        examples: training images that are used; None takes all.
        probe: images on which alignments are measured.
        networks: trained side by side in one run, from different initialisations.
    """

    data: str = "digits"
    depth: int = 10
    rate_factor: float = 1.0
    batch_size: int = 128
    most_epochs: int | None = None
    stop_loss: float | None = 0.02
    examples: int | None = None
    probe: int = 60
    networks: int = 1

    @property
    def row(self) -> Row:
        """The row of the table for this network."""
        return ROWS[self.data][self.depth]

    @property
    def setting(self) -> Setting:
        """The complete setting of the network."""
        epochs = self.row.epochs
        return Setting(
            data=self.data,
            examples=self.examples,
            depth=self.depth,
            width=WIDTHS[self.data],
            learning_rate=self.row.learning_rate * self.rate_factor,
            batch_size=self.batch_size,
            epochs=epochs if self.most_epochs is None else min(epochs, self.most_epochs),
            stop_loss=self.stop_loss,
            probe=self.probe,
        )


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
    except DivergenceError:  # one network diverged; train them one by one
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
    """Depth and peak of every network whose final training loss was at most ``most_loss``."""
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
    balances = {depth: equilibrium_layer(int(depth), clipped) for depth in set(depths)}
    return np.asarray([balances[depth] for depth in depths])


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
