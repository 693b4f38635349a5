"""S1, ours: cumulative power predicts the error of kernel regression.

The paper states it without a figure. Modes up to some number are learned and the others are not.
The error is the power of the target in the modes that are not learned.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from theodolite.theory.kernel_regression import generalization_error, linear_probe
from theodolite_papers.canatar2022.formulas.static_kernel import power_shortcut
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
    decided,
    mean_and_error,
)

__all__ = ["STUDY", "Plateaus", "measure"]

_ID = "canatar2022.s1"


@dataclass(frozen=True)
class Plateaus:
    """Three groups of modes with very different eigenvalues, and two training sets between them.

    Args:
        counts: modes of each group.
        eigenvalues: of each group.
        powers: share of the target in each group, spread evenly.
        samples: training examples of the two cases.
        ridges: of the two cases.
        learned: modes that should be learned in each case.
        trials: training sets that the Monte Carlo error is averaged over.
        curve: sample sizes of the learning curve.
    """

    counts: tuple[int, ...] = (4, 12, 64)
    eigenvalues: tuple[float, ...] = (1.0, 1e-2, 1e-4)
    powers: tuple[float, ...] = (0.5, 0.3, 0.2)
    samples: tuple[int, int] = (40, 400)
    ridges: tuple[float, float] = (3.0, 0.8)
    learned: tuple[int, int] = (4, 16)
    trials: int = 20
    curve: tuple[int, ...] = (1, 2, 5, 10, 20, 40, 80, 160, 400, 800)


def measure(config: Plateaus, trial: Trial) -> Measured:
    """Theory, Monte Carlo and the shortcut at both sample sizes, and a learning curve."""
    eta, power = _modes(config)
    numbers: dict[str, float] = {}
    generator = trial.generator()
    cases = zip(config.samples, config.ridges, config.learned, strict=True)
    for case, (samples, ridge, learned) in enumerate(cases, start=1):
        shortcut = power_shortcut(eta, power, float(samples), ridge, modes=learned)
        errors = [_error(eta, power, samples, ridge, generator) for _ in range(config.trials)]
        numbers |= {
            f"theory_{case}": float(generalization_error(eta, power, samples, ridge)),
            f"measured_{case}": float(np.mean(errors)),
            f"shortcut_{case}": float(shortcut.value),
            f"bound_{case}": float(shortcut.bound),
        }
    arrays = _learning_curve(config, eta, power, generator)
    return Measured(numbers, arrays)


def _modes(config: Plateaus) -> tuple[Tensor, Tensor]:
    counts = torch.tensor(config.counts)
    eta = torch.tensor(config.eigenvalues, dtype=torch.float64)
    share = torch.tensor(config.powers, dtype=torch.float64) / counts
    return eta.repeat_interleave(counts), share.repeat_interleave(counts)


def _error(
    eta: Tensor, power: Tensor, samples: int, ridge: float, generator: torch.Generator
) -> float:
    """Exact test error of one ridge regression on Gaussian modes."""
    modes = torch.randn(samples, len(eta), generator=generator, dtype=torch.float64)
    signs = torch.randint(2, (len(eta),), generator=generator).double() * 2 - 1
    target = signs * power.sqrt()
    weights = linear_probe(modes * eta.sqrt(), (modes @ target).unsqueeze(1), ridge)
    return float((target - eta.sqrt() * weights[:, 0]).square().sum())


def _learning_curve(
    config: Plateaus, eta: Tensor, power: Tensor, generator: torch.Generator
) -> dict[str, np.ndarray]:
    ridge = config.ridges[1]
    sizes = torch.tensor(config.curve, dtype=torch.float64)
    theory = generalization_error(eta, power, sizes, ridge)
    trials = max(2, config.trials // 4)
    measured = [
        np.mean([_error(eta, power, size, ridge, generator) for _ in range(trials)])
        for size in config.curve
    ]
    return {
        "samples": np.array(config.curve, dtype=np.float32),
        "theory": theory.float().numpy(),
        "measured": np.array(measured, dtype=np.float32),
        "unlearned": (1 - power.cumsum(0) / power.sum()).float().numpy(),
    }


def _theory(runs: Results) -> Outcome:
    run = runs.runs[0]
    pairs = {k: (run[f"measured_{k}"], run[f"theory_{k}"]) for k in (1, 2)}
    off = {f"off_{k}": abs(measured / theory - 1) for k, (measured, theory) in pairs.items()}
    numbers = {f"measured_{k}": pair[0] for k, pair in pairs.items()}
    return decided(*(below(k, v, 0.05, strict=False) for k, v in off.items()), **numbers)


def _shortcut(runs: Results) -> Outcome:
    run = runs.runs[0]
    kinds = ("theory", "measured")
    off = {
        f"{kind}_off_{k}": abs(run[f"{kind}_{k}"] - run[f"shortcut_{k}"])
        for kind in kinds
        for k in (1, 2)
    }
    levels = {f"shortcut_{k}": run[f"shortcut_{k}"] for k in (1, 2)}
    return decided(*(below(k, v, 0.05, strict=False) for k, v in off.items()), **levels)


def draw(runs: Results) -> list[Panel]:
    """The learning curve, theory and Monte Carlo, and the levels of unlearned power."""
    first = runs.runs[0]
    x = first.arrays["samples"]
    mean, error = mean_and_error(runs.array("measured"))
    marks = [Line("theory", x, first.arrays["theory"]), Line("Monte Carlo", x, mean, error)]
    for modes in (4, 16):
        level = np.full(len(x), first.arrays["unlearned"][modes - 1])
        marks.append(Line(f"power outside the first {modes} modes", x, level, dashed=True))
    return [Panel("S1", marks, "training examples", "test error", "x")]


STUDY = Study(
    id=_ID,
    title="Cumulative power predicts the error of kernel regression",
    shows=("S1",),
    measure=measure,
    configs={
        "smoke": Plateaus(trials=4, curve=(10, 40)),
        "lite": Plateaus(),
        "reduced": Plateaus(trials=200, curve=(1, 2, 5, 10, 20, 40, 80, 160, 400, 800, 1600)),
    },
    claims=(
        Claim(
            f"{_ID}.theory",
            "the average test error of ridge regression is within 5 % of theory at 40 and at 400 "
            "training examples",
            _theory,
        ),
        Claim(
            f"{_ID}.shortcut",
            "the target's power outside the learned modes is within 0.05 of the test error",
            _shortcut,
        ),
    ),
    draw=draw,
    not_run={"published": "the paper has no experiment of it"},
)
