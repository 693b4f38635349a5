"""Figure 8: a fast and a slow process, and how much of the loss each owns."""

from dataclasses import dataclass

import numpy as np
import torch

from theodolite.measures.representation import label_projections
from theodolite.theory.convergence import (
    gradient_descent_loss,
    gradient_descent_weights,
    phases,
    process_goals,
)
from theodolite_papers.imani2022._illustrations import two_processes
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
    between,
    outcome,
)

__all__ = ["STUDY", "TwoProcesses"]

_CASES = {"well": 0.95, "poorly": 0.5}  # share of the loss that the fast process owns

_CHOICES = (
    "shares of 95 % and 50 %, the step size and the end of the fast phase (1 % of its loss left) "
    "are ours; nothing is random"
)


@dataclass(frozen=True)
class TwoProcesses:
    """Gradient descent on two processes with singular values 6 and 1.

    Args:
        step_size: on half the sum of squares.
        threshold: singular values from here on are fast.
        remaining: share of the fast loss that ends the fast phase.
    """

    step_size: float = 0.5 / 36
    threshold: float = 2.0
    remaining: float = 0.01


def measure(config: TwoProcesses, trial: Trial) -> Measured:
    """Where both processes stand when the fast one is done."""
    numbers: dict[str, float] = {}
    arrays: dict[str, np.ndarray] = {}
    for case, share in _CASES.items():
        found = label_projections(*two_processes(share))
        split = phases(found, config.step_size, 0, config.threshold, config.remaining)
        end = int(split.fast_end)
        weights = gradient_descent_weights(found, config.step_size, torch.tensor([end]))[0, :, 0]
        goals = process_goals(found)[:, 0]
        numbers[f"end_{case}"] = end
        numbers[f"left_{case}"] = float(gradient_descent_loss(found, config.step_size, end))
        numbers[f"slow_way_left_{case}"] = float((goals[1] - weights[1]).abs() / goals[1].abs())
        arrays[f"sigma_{case}"] = found.singular_values.numpy()
        arrays[f"weights_{case}"] = weights.abs().numpy()
        arrays[f"goals_{case}"] = goals.abs().numpy()
    return Measured(numbers, arrays)


def _left(runs: Results) -> Outcome:
    well, poorly = runs["left_well"][0], runs["left_poorly"][0]
    holds = abs(well - 0.048) < 0.002 and abs(poorly - 0.449) < 0.002
    same_end = runs["end_well"][0] == runs["end_poorly"][0] == 4
    return outcome(holds and same_end, left_well=well, left_poorly=poorly, end=runs["end_well"][0])


def draw(runs: Results) -> list[Panel]:
    """The loss of each process over its weight, with start and end of the fast phase."""
    run = runs.first
    return [_panel(run, case) for case in _CASES]


def _panel(run: Result, case: str) -> Panel:
    sigma, goals, weights = (run.arrays[f"{n}_{case}"] for n in ("sigma", "goals", "weights"))
    marks: list[Line | Points] = []
    for index, name in enumerate(("fast", "slow")):
        w = np.linspace(-0.2, 1.4, 81)

        def loss(at: np.ndarray, i: int = index) -> np.ndarray:
            return np.asarray(sigma[i] ** 2 * (at - goals[i]) ** 2)

        inside = w[loss(w) <= 1.2]
        marks.append(Line(f"{name} process", inside, loss(inside), color=index))
        marks.append(Points(f"{name}: start", [0.0], loss(np.zeros(1)), color=2 + index))
        marks.append(
            Points(f"{name}: end of fast phase", [weights[index]], loss(weights[index : index + 1]),
                   color=4 + index)
        )  # fmt: skip
    return Panel(f"Figure 8, {case} aligned", marks, "weight", "loss")


STUDY = Study(
    id="imani2022.fig8",
    title="Fast and slow processes",
    shows=("Figure 8",),
    measure=measure,
    configs={size: TwoProcesses() for size in ("smoke", "lite")},
    claims=(
        Claim(
            "imani2022.fig8.left",
            "both fast phases end after 4 steps; the loss left is then small (0.048) where the "
            "fast process owns 95 % of it, and about half (0.449) where it owns 50 %",
            _left,
            sizes=(),
        ),
        Claim(
            "imani2022.fig8.slow-weight",
            "where the processes own half each, the slow weight then has more than half of its "
            "way to its goal before it",
            between({"share_of_the_way_left": "slow_way_left_poorly"}, low=0.5),
            sizes=(),
        ),
    ),
    draw=draw,
    stand_in={"lite": _CHOICES},
    seeds={"lite": (101,)},
    not_run={"published": "the paper shows a drawing without numbers"},
)
