"""Figure 3: a good and a bad alignment curve, and what the order of two curves implies."""

from dataclasses import dataclass

import torch
from torch import Tensor

from theodolite.linalg import LabelProjections
from theodolite.measures.representation import curve_from_projections
from theodolite.theory.convergence import gradient_descent_loss, process_goals
from theodolite_papers.ledger import (
    Claim,
    Line,
    Measured,
    Outcome,
    Panel,
    Results,
    Study,
    Trial,
    named,
    outcome,
)

__all__ = ["STUDY", "TwoCurves"]


@dataclass(frozen=True)
class TwoCurves:
    """Two spectra of label mass over the same singular values.

    Args:
        directions: number of singular values, spread evenly up to the largest.
        largest: the largest of them.
        decay: mass falls (good) or grows (bad) by this factor from one direction to the next.
        thresholds: points of the curves.
        steps: of gradient descent at the common step size.
    """

    directions: int = 50
    largest: float = 10.0
    decay: float = 0.85
    thresholds: int = 101
    steps: int = 2000


def measure(config: TwoCurves, trial: Trial) -> Measured:
    """Both curves, and both losses of gradient descent at one step size."""
    grid = torch.linspace(0, 1.1 * config.largest, config.thresholds, dtype=torch.float64)
    spectra = _spectra(config, trial.generator())
    steps = torch.arange(config.steps + 1)
    curves, losses, norms = {}, {}, {}
    for name, spectrum in spectra.items():
        curves[name] = curve_from_projections(spectrum, grid, scale="absolute").values
        losses[name] = gradient_descent_loss(spectrum, 1 / config.largest**2, steps)
        norms[name] = process_goals(spectrum).norm()
    gaps = curves["good"] - curves["bad"]
    numbers = {
        "gap_at_zero": float(gaps[0].abs()),
        "smallest_gap": float(gaps.min()),
        "largest_gap": float(gaps.max()),
        "smallest_lead": float((losses["bad"] - losses["good"]).min()),
        "norm_good": float(norms["good"]),
        "norm_bad": float(norms["bad"]),
    }
    shown = [t for t in (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000) if t <= config.steps]
    arrays = {"thresholds": grid.float().numpy(), "steps": steps[shown].numpy()}
    arrays |= {f"curve_{name}": curve.float().numpy() for name, curve in curves.items()}
    arrays |= {f"loss_{name}": loss[shown].float().numpy() for name, loss in losses.items()}
    return Measured(numbers, arrays)


def _spectra(config: TwoCurves, generator: torch.Generator) -> dict[str, LabelProjections]:
    """The same masses, once on the largest singular values first, once on the smallest."""
    k = torch.arange(config.directions, dtype=torch.float64)
    sigma = config.largest * (1 - k / config.directions)
    jitter = 0.9 + 0.2 * torch.rand(config.directions, generator=generator, dtype=torch.float64)
    mass = (config.decay**k * jitter).sort(descending=True).values
    mass = mass / mass.sum()
    return {"good": _spectrum(sigma, mass), "bad": _spectrum(sigma, mass.flip(0))}


def _spectrum(sigma: Tensor, mass: Tensor) -> LabelProjections:
    return LabelProjections(sigma, mass.sqrt().unsqueeze(1), torch.zeros(1).double(), len(sigma))


def _ordered(runs: Results) -> Outcome:
    gaps = runs.means(named("gap_at_zero", "smallest_gap", "largest_gap"))
    at_zero, smallest, largest = gaps.values()
    return outcome(at_zero < 1e-9 and smallest > -1e-9 and largest > 0.5, **gaps)


def _faster(runs: Results) -> Outcome:
    found = runs.means(named("smallest_lead", "norm_good", "norm_bad"))
    lead, good, bad = found.values()
    return outcome(lead > -1e-9 and good <= bad, **found)


def draw(runs: Results) -> list[Panel]:
    """The two curves of the first run, and the losses that they imply."""
    arrays = runs.first.arrays
    names = ("good", "bad")
    curves = [Line(n, arrays["thresholds"], arrays[f"curve_{n}"]) for n in names]
    losses = [Line(n, arrays["steps"][1:], arrays[f"loss_{n}"][1:]) for n in names]
    return [
        Panel("Figure 3", curves, "threshold", "alignment"),
        Panel("Loss at a common step size", losses, "step", "loss", log="x"),
    ]


STUDY = Study(
    id="imani2022.fig3",
    title="A good and a bad alignment curve",
    shows=("Figure 3",),
    measure=measure,
    configs={"smoke": TwoCurves(steps=50), "lite": TwoCurves()},
    claims=(
        Claim(
            "imani2022.fig3.ordered",
            "both curves start at the same value, and the good one is nowhere below the bad one",
            _ordered,
        ),
        Claim(
            "imani2022.fig3.faster",
            "with a common step size the loss of the higher curve is lower after every step, and "
            "its least-squares weights are no longer",
            _faster,
        ),
    ),
    draw=draw,
    stand_in={"lite": "the paper shows a drawing without data"},
    not_run={"published": "the paper has no data for it"},
)
