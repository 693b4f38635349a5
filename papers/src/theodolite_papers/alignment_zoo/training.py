"""Training with about twenty checkpoints: evaluations and weights at each.

A network is trained until its loss on the training examples is at most :data:`TARGET`, or for
:data:`LIMIT` steps; it is looked at, and its weights are kept, at :data:`LOOKS`.
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
    "LEVELS_OF_LOSS",
    "LIMIT",
    "LOOKS",
    "TARGET",
    "Look",
    "TrainedNetwork",
    "evaluate",
    "moments",
    "train",
]

TARGET = 0.02
LIMIT = 1000
_FEWEST = 46  # steps before a run may end, so that there are looks enough
LOOKS = (
    0, 3, 6, 10, 15, 22, 32, 46, 64, 90, 125, 170, 220, 280, 350, 430, 520, 620, 730, 860, LIMIT,
)  # fmt: skip
LEVELS_OF_LOSS = (75, 50, 25, 10)  # % of that of guessing


@dataclass(frozen=True)
class Look:
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
        looks: in order.
        reached: whether the loss came down to the target.
        finite: whether it stayed finite; else the last look is the last that was.
    """

    model: nn.Module
    looks: list[Look] = field(default_factory=list)
    reached: bool = False
    finite: bool = True

    @property
    def steps(self) -> int:
        """Steps up to the last checkpoint."""
        return self.looks[-1].step

    def steps_to(self, share: float, classes: int) -> float:
        """Steps until the training loss is at most that share of log(classes); nan if it never is.

        Between checkpoints the loss is interpolated linearly.
        """
        level, before = share * log(classes), None
        for look in self.looks:
            loss = look.values["train_loss"]
            if loss <= level:
                if before is None:
                    return float(look.step)
                above = before.values["train_loss"]
                return before.step + (look.step - before.step) * (above - level) / (above - loss)
            before = look
        return float("nan")


def evaluate(model: nn.Module, x: Tensor, y: Tensor) -> tuple[float, float, Tensor]:
    """Mean loss, accuracy and predictions, in evaluation mode."""
    model.eval()
    with torch.no_grad():
        outputs = model(x)
    told = outputs.argmax(1)
    return cross_entropy(outputs, y).item(), (told == y).double().mean().item(), told


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
    order, place, told = torch.randperm(len(task.x), generator=generator), 0, None
    due = [look for look in LOOKS if look < limit] + [limit]
    for step in range(limit + 1):
        if step in due:
            values, told = _look(model, task, told)
            if not all(map(_finite, values.values())):
                run.finite = False
                model.load_state_dict(run.looks[-1].weights)
                break
            run.looks.append(Look(step, values, copy.deepcopy(model.state_dict())))
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


def _look(model: nn.Module, task: Task, before: Tensor | None) -> tuple[dict[str, float], Tensor]:
    train_loss, train_accuracy, told = evaluate(model, task.x, task.y)
    held_loss, held_accuracy, _ = evaluate(model, task.x_validation, task.y_validation)
    test_loss, test_accuracy, test_told = evaluate(model, task.x_test, task.y_test)
    as_given = (test_told == task.y_test_noisy).double().mean().item()
    changes = 1.0 if before is None else (told != before).double().mean().item()
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
    return values, told


def _finite(value: float) -> bool:
    return abs(value) < float("inf")


def moments(run: TrainedNetwork, classes: int, limit: int = LIMIT) -> dict[str, Look]:
    """Six checkpoints of a run, by name.

    init; early, at 1 % of the limit; tenth and third, at 10 and 30 % of the steps taken; level,
    the first with at most 25 % of the loss of guessing, where there is one; final.
    """

    def nearest(step: float) -> Look:
        return min(run.looks, key=lambda look: abs(log((look.step + 1) / (step + 1))))

    found = {
        "init": run.looks[0],
        "early": nearest(0.01 * limit),
        "tenth": nearest(0.1 * run.steps),
        "third": nearest(0.3 * run.steps),
        "final": run.looks[-1],
    }
    below = [look for look in run.looks if look.values["train_loss"] <= 0.25 * log(classes)]
    if below:
        found["level"] = below[0]
    return {name: found[name] for name in MOMENTS if name in found}
