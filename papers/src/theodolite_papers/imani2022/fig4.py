"""Figure 4: two labelings of two arcs. Both are separable, and one is better aligned."""

from dataclasses import dataclass

import torch

from theodolite.linalg import thin_svd
from theodolite.measures.representation import alignment_curve
from theodolite_papers.imani2022._illustrations import labels_along, two_arcs
from theodolite_papers.ledger import (
    Claim,
    Line,
    Measured,
    Outcome,
    Panel,
    Points,
    Result,
    Results,
    Study,
    Trial,
    above,
    below,
    between,
    decided,
    inside,
    named,
)

__all__ = ["STUDY", "TwoArcs"]


@dataclass(frozen=True)
class TwoArcs:
    """Size of the experiment.

    Args:
        points: number of unit vectors in the plane.
        thresholds: points of the curves.
        shown: how many of the points are kept for the picture.
    """

    points: int = 1000
    thresholds: int = 101
    shown: int = 300


def measure(config: TwoArcs, trial: Trial) -> Measured:
    """Alignment of the labels along each singular direction, over all thresholds."""
    inputs = two_arcs(config.points, generator=trial.generator())
    _, sigma, right = thin_svd(inputs)
    grid = torch.linspace(0, 1.1 * float(sigma[0]), config.thresholds, dtype=torch.float64)
    between = (grid > sigma[1]) & (grid <= sigma[0])
    spaced = slice(None, None, max(1, config.points // config.shown))  # from both arcs
    numbers = {"sigma_1": float(sigma[0]), "sigma_2": float(sigma[1])}
    arrays = {
        "thresholds": grid.float().numpy(),
        "points": inputs[spaced].to(torch.float16).numpy(),
    }
    curves = {}
    for k in (1, 2):
        labels = labels_along(inputs, k)
        curve = alignment_curve(inputs, labels, grid, rows="none", scale="absolute")
        curves[k] = curve.values
        arrays[f"curve_{k}"] = curves[k].float().numpy()
        arrays[f"labels_{k}"] = labels[spaced].to(torch.int8).numpy()
        margins = labels * (inputs @ right[:, k - 1])
        numbers[f"smallest_margin_{k}"] = float((margins * margins.sum().sign()).min())
    numbers["smallest_gap"] = float((curves[1] - curves[2])[between].min())
    numbers["lowest_along_v1"] = float(curves[1][between].min()) / config.points
    numbers["highest_along_v2"] = float(curves[2][between].max()) / config.points
    return Measured(numbers, arrays)


def _better_aligned(runs: Results) -> Outcome:
    found = runs.means(named("smallest_gap", "lowest_along_v1", "highest_along_v2"))
    gap, first, second = found.values()
    return decided(
        above("smallest_gap", gap),
        above("lowest_along_v1", first, 0.95),
        below("highest_along_v2", second, 0.05),
    )


def _singular_values(runs: Results) -> Outcome:
    sigma = runs.means(named("sigma_1", "sigma_2"))
    ratio = sigma["sigma_1"] / sigma["sigma_2"]
    return decided(inside("ratio", ratio, 0.9 * 3.37, 1.1 * 3.37), **sigma)


def draw(runs: Results) -> list[Panel]:
    """The two labelings and their alignment curves, of the first run."""
    run = runs.first
    x = run.arrays["thresholds"]
    lines = [Line(f"labels along v{k}", x, run.arrays[f"curve_{k}"]) for k in (1, 2)]
    return [
        *(_labeling(run, k) for k in (1, 2)),
        Panel("Figure 4", lines, "threshold", "alignment"),
    ]


def _labeling(run: Result, k: int) -> Panel:
    points, labels = run.arrays["points"].astype(float), run.arrays[f"labels_{k}"]
    marks = [
        Points(f"label {sign:+d}", points[labels == sign, 0], points[labels == sign, 1])
        for sign in (1, -1)
    ]
    return Panel(f"Figure 4, labels along v{k}", marks, "first input", "second input")


STUDY = Study(
    id="imani2022.fig4",
    title="Two labelings of two arcs",
    shows=("Figure 4",),
    measure=measure,
    configs={"smoke": TwoArcs(points=100), "published": TwoArcs()},
    claims=(
        Claim(
            "imani2022.fig4.separable",
            "a linear model separates both labelings: every example has a positive margin along "
            "its own singular direction (by construction of the labels)",
            # The labels are signs of the inputs along v_k up to the sign of v_k: v_k separates.
            between({f"margin_along_v{k}": f"smallest_margin_{k}" for k in (1, 2)}, low=0.0),
            unit="calculation",
        ),
        Claim(
            "imani2022.fig4.aligned",
            "alignment along v1 exceeds that along v2 at every threshold in (sigma_2, sigma_1]: "
            "above 95 % of the label mass along v1, below 5 % along v2",
            _better_aligned,
        ),
        Claim(
            "imani2022.fig4.spectrum",
            "sigma_1 / sigma_2 is within 10 % of the printed ratio 3.37 (the printed values "
            "themselves are those of 100 points)",
            _singular_values,
            published={"sigma_1": 9.58, "sigma_2": 2.84},
        ),
    ),
    draw=draw,
    not_run={"lite": "the published size takes seconds"},
)
