"""Figure 4: two labelings of two arcs, both separable, one far better aligned."""

from dataclasses import dataclass

import torch

from theodolite.measures.representation import alignment_curve
from theodolite.studies import Claim, Judgment, Line, Measured, Panel, Results, Study, Trial, judge
from theodolite.workbench.data import labels_along, two_arcs

__all__ = ["STUDY", "TwoArcs"]


@dataclass(frozen=True)
class TwoArcs:
    """Size of the experiment.

    Args:
        points: number of unit vectors in the plane.
        thresholds: points of the curves.
    """

    points: int = 1000
    thresholds: int = 101


def measure(config: TwoArcs, trial: Trial) -> Measured:
    """Alignment of the labels along each singular direction, over all thresholds."""
    inputs = two_arcs(config.points, generator=trial.generator())
    sigma = torch.linalg.svdvals(inputs)
    grid = torch.linspace(0, 1.1 * float(sigma[0]), config.thresholds, dtype=torch.float64)
    between = (grid > sigma[1]) & (grid <= sigma[0])
    numbers = {"sigma_1": float(sigma[0]), "sigma_2": float(sigma[1])}
    arrays = {"thresholds": grid.float().numpy()}
    curves = {}
    for k in (1, 2):
        labels = labels_along(inputs, k)
        curves[k] = alignment_curve(inputs, labels, grid).values
        arrays[f"curve_{k}"] = curves[k].float().numpy()
        arrays[f"labels_{k}"] = labels.to(torch.int8).numpy()
        fit = inputs @ torch.linalg.lstsq(inputs, labels[:, None]).solution
        numbers[f"accuracy_{k}"] = float(((fit[:, 0] > 0) == (labels > 0)).double().mean())
    numbers["smallest_gap"] = float((curves[1] - curves[2])[between].min())
    return Measured(numbers, arrays)


def _separable(runs: Results) -> Judgment:
    first, second = runs["accuracy_1"][0], runs["accuracy_2"][0]
    return judge(min(first, second) == 1.0, along_v1=first, along_v2=second)


def _better_aligned(runs: Results) -> Judgment:
    return judge(runs["smallest_gap"][0] > 0, smallest_gap=runs["smallest_gap"][0])


def _singular_values(runs: Results) -> Judgment:
    first, second = runs["sigma_1"][0], runs["sigma_2"][0]
    return judge(abs(first / second / 3.37 - 1) < 0.1, sigma_1=first, sigma_2=second)


def draw(runs: Results) -> list[Panel]:
    """The two alignment curves of the first run."""
    run = next(iter(runs))
    x = run.arrays["thresholds"]
    lines = [Line(f"labels along v{k}", x, run.arrays[f"curve_{k}"]) for k in (1, 2)]
    return [Panel("Figure 4", lines, "threshold", "alignment")]


STUDY = Study(
    id="imani2022.fig4",
    title="Two labelings of two arcs",
    shows=("Figure 4",),
    measure=measure,
    configs={"smoke": TwoArcs(points=100), "lite": TwoArcs(), "paper": TwoArcs()},
    claims=(
        Claim("imani2022.fig4.separable", "a linear model separates both labelings", _separable),
        Claim(
            "imani2022.fig4.aligned",
            "alignment along v1 exceeds that along v2 at every threshold in (sigma_2, sigma_1]",
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
)
