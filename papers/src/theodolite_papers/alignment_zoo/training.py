"""Training with about twenty checkpoints: evaluations and weights at each.

A network is trained until its loss on the training examples is at most :data:`TARGET`, or for
:data:`LIMIT` steps. At :data:`CHECKPOINTS` it is evaluated and its weights are kept.
"""

import copy
from dataclasses import dataclass, field
from math import log

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from theodolite_papers.alignment_zoo.data import Task
from theodolite_papers.alignment_zoo.design import MOMENTS, Network

__all__ = [
    "CHECKPOINTS",
    "LEVELS_OF_LOSS",
    "LIMIT",
    "TARGET",
    "Checkpoint",
    "TrainedNetwork",
    "evaluate",
    "moments",
    "train",
]

TARGET = 0.02
LIMIT = 1000
_FEWEST = 46  # fewest steps of a run, so that it has enough checkpoints
CHECKPOINTS = (
    0, 3, 6, 10, 15, 22, 32, 46, 64, 90, 125, 170, 220, 280, 350, 430, 520, 620, 730, 860, LIMIT,
)  # fmt: skip
LEVELS_OF_LOSS = (75, 50, 25, 10)  # % of that of guessing


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint: a network at one step.

    Args:
        step: of training.
        values: name -> number: losses, accuracies, changes.
        weights: its state.
    """

    step: int
    values: dict[str, float]
    weights: dict[str, Tensor]


@dataclass
class TrainedNetwork:
    """A trained network.

    Args:
        model: at its last step.
        checkpoints: in order.
        reached: whether the loss came down to the target.
        finite: whether it stayed finite; else the last checkpoint is the last that was.
    """

    model: nn.Module
    checkpoints: list[Checkpoint] = field(default_factory=list)
    reached: bool = False
    finite: bool = True

    @property
    def steps(self) -> int:
        """Steps up to the last checkpoint."""
        return self.checkpoints[-1].step

    def steps_to(self, share: float, classes: int) -> float:
        """Steps until the training loss is at most that share of log(classes); nan if it never is.

        Between checkpoints the loss is interpolated linearly.
        """
        level, before = share * log(classes), None
        for checkpoint in self.checkpoints:
            loss = checkpoint.values["train_loss"]
            if loss <= level:
                if before is None:
                    return float(checkpoint.step)
                above = before.values["train_loss"]
                return before.step + (checkpoint.step - before.step) * (above - level) / (
                    above - loss
                )
            before = checkpoint
        return float("nan")


def evaluate(model: nn.Module, x: Tensor, y: Tensor) -> tuple[float, float, Tensor]:
    """Mean loss, accuracy and predictions, in evaluation mode."""
    model.eval()
    with torch.no_grad():
        outputs = model(x)
    predicted = outputs.argmax(1)
    return cross_entropy(outputs, y).item(), (predicted == y).double().mean().item(), predicted


def train(network: Network, model: nn.Module, task: Task, limit: int = LIMIT) -> TrainedNetwork:
    """Train a network, in place.

    Args:
        network: its factors.
        model: at initialisation.
        task: its data.
        limit: steps at most.
    """
    generator = torch.Generator().manual_seed(network.seed)
    if network.optimiser == "adam":
        chosen: torch.optim.Optimizer = torch.optim.AdamW(
            model.parameters(), network.rate, weight_decay=network.decay, fused=True
        )
    else:
        chosen = torch.optim.SGD(
            model.parameters(), network.rate, 0.9, weight_decay=network.decay, fused=True
        )
    run = TrainedNetwork(model)
    order, place, predicted = torch.randperm(len(task.x), generator=generator), 0, None
    due = [checkpoint for checkpoint in CHECKPOINTS if checkpoint < limit] + [limit]
    for step in range(limit + 1):
        if step in due:
            values, predicted = _evaluated(model, task, predicted)
            if not all(map(_finite, values.values())):
                run.finite = False
                model.load_state_dict(run.checkpoints[-1].weights)
                break
            run.checkpoints.append(Checkpoint(step, values, copy.deepcopy(model.state_dict())))
            run.reached = values["train_loss"] <= TARGET
            if run.reached and step >= min(_FEWEST, limit):
                break
            model.train()
        if place + network.batch > len(order):
            order, place = torch.randperm(len(task.x), generator=generator), 0
        rows = order[place : place + network.batch]
        place += network.batch
        chosen.zero_grad()
        loss: Tensor = cross_entropy(model(task.x[rows]), task.y[rows])
        loss.backward()  # type: ignore[no-untyped-call]
        chosen.step()
    model.eval()
    return run


def _evaluated(
    model: nn.Module, task: Task, before: Tensor | None
) -> tuple[dict[str, float], Tensor]:
    train_loss, train_accuracy, predicted = evaluate(model, task.x, task.y)
    held_loss, held_accuracy, _ = evaluate(model, task.x_validation, task.y_validation)
    test_loss, test_accuracy, test_predicted = evaluate(model, task.x_test, task.y_test)
    as_given = (test_predicted == task.y_test_noisy).double().mean().item()
    changes = 1.0 if before is None else (predicted != before).double().mean().item()
    values = {
        "train_loss": train_loss,
        "train_accuracy": train_accuracy,
        "validation_loss": held_loss,
        "validation_accuracy": held_accuracy,
        "test_loss": test_loss,
        "test_accuracy": test_accuracy,
        "test_accuracy_as_given": as_given,
        "prediction_changes": changes,
    }
    return values, predicted


def _finite(value: float) -> bool:
    return abs(value) < float("inf")


def moments(run: TrainedNetwork, classes: int, limit: int = LIMIT) -> dict[str, Checkpoint]:
    """Six checkpoints of a run, by name.

    init; early, at 1 % of the limit; tenth and third, at 10 and 30 % of the steps taken; level,
    the first with at most 25 % of the loss of guessing, where there is one; final.
    """

    def nearest(step: float) -> Checkpoint:
        return min(
            run.checkpoints, key=lambda checkpoint: abs(log((checkpoint.step + 1) / (step + 1)))
        )

    found = {
        "init": run.checkpoints[0],
        "early": nearest(0.01 * limit),
        "tenth": nearest(0.1 * run.steps),
        "third": nearest(0.3 * run.steps),
        "final": run.checkpoints[-1],
    }
    below = [
        checkpoint
        for checkpoint in run.checkpoints
        if checkpoint.values["train_loss"] <= 0.25 * log(classes)
    ]
    if below:
        found["level"] = below[0]
    return {name: found[name] for name in MOMENTS if name in found}
