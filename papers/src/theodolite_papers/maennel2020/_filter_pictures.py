"""Pictures of first filters while they train: misalignment, and f(sigma)."""

import numpy as np

from theodolite_papers.ledger import Line, Panel, Results, mean_and_error
from theodolite_papers.maennel2020._transfer import LABELS

__all__ = ["draw"]


def draw(runs: Results) -> list[Panel]:
    """Figure 2 by kind of label, and the three panels of Figure 4."""
    epochs = runs.array("epochs")[0]
    floor = runs.mean("floor")
    panels = []
    for labels in LABELS:
        value, error = mean_and_error(runs.array(f"{labels}_value"))
        base, base_error = mean_and_error(runs.array(f"{labels}_baseline").mean(-1))
        marks = [
            Line("eigenvectors of the data", epochs, value, error),
            Line("random bases", epochs, base, base_error),
            Line("floor", epochs, np.full(len(epochs), floor), dashed=True),
        ]
        panels.append(Panel(f"Figure 2, {labels} labels", marks, "epoch", "misalignment"))
    sigma, tau = runs.array("gaussian_sigma")[0], runs.array("gaussian_tau")
    left = Line("f", sigma, *mean_and_error(tau))
    panels.append(Panel("Figure 4, Gaussian data", [left], "sigma", "tau"))
    return panels + [_curves(runs, labels, epochs) for labels in reversed(LABELS)]


def _curves(runs: Results, labels: str, epochs: np.ndarray) -> Panel:
    tau = runs.array(f"{labels}_tau")
    chosen = [0, *np.linspace(0, len(epochs) - 1, 5).round().astype(int)[1:]]
    lines = []
    for index in chosen:
        mean, error = mean_and_error(tau[:, index])
        lines.append(Line(f"epoch {epochs[index]:g}", runs.array("sigma")[0], mean, error))
    return Panel(f"Figure 4, CIFAR-10, {labels} labels", lines, "sigma", "tau", log="x")
