"""What a run leaves behind: losses and accuracies at the logged steps, losses of the epochs."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from theodolite.errors import DomainError
from theodolite_papers.lab.training.evaluation import (
    Evaluation,
    GeneralizationGaps,
    generalization_gaps,
)
from theodolite_papers.lab.training.recipe import Recipe

__all__ = ["LogEntry", "TrainingLog", "logged_steps"]

_LOG_POINTS = 200


@dataclass(frozen=True)
class LogEntry:
    """Both sets after so many steps."""

    step: int
    train: Evaluation
    test: Evaluation | None = None


@dataclass(frozen=True)
class TrainingLog:
    """The course of a run.

    Args:
        entries: whole sets at the logged steps, the first and the last step among them.
        epoch_losses: mean training loss of each epoch, taken while it ran.
        steps: steps done.
        stopped: why the run ended: ``"length"``, ``"loss"``, ``"accuracy"``, ``"improvement"`` or
            ``"callback"``.
    """

    entries: tuple[LogEntry, ...]
    epoch_losses: tuple[float, ...]
    steps: int
    stopped: str

    @property
    def final(self) -> LogEntry:
        """The sets at the end of the run."""
        return self.entries[-1]

    @property
    def gaps(self) -> GeneralizationGaps:
        """Generalisation gaps at the end of the run.

        Raises:
            DomainError: If the run had no test set.
        """
        if self.final.test is None:
            raise DomainError("gaps: expected a run with a test set; pass test=(x, y) to train")
        return generalization_gaps(self.final.train, self.final.test)

    def curve(
        self, subset: Literal["train", "test"], quantity: Literal["loss", "accuracy"]
    ) -> tuple[list[int], list[float]]:
        """Steps and values of one quantity, e.g. for :func:`area_under_curve`.

        Raises:
            DomainError: If the run had no test set and its curve is asked for.
        """
        values: list[float] = []
        for entry in self.entries:
            evaluation = entry.train if subset == "train" else entry.test
            if evaluation is None:
                raise DomainError("curve: this run had no test set; pass test=(x, y) to train")
            values.append(evaluation.loss if quantity == "loss" else evaluation.accuracy)
        return [entry.step for entry in self.entries], values

    def to_dict(self) -> dict[str, Any]:
        """Plain data, e.g. for JSON."""
        return asdict(self)


def log_from_dict(plain: dict[str, Any]) -> TrainingLog:
    """The inverse of :meth:`TrainingLog.to_dict`."""
    entries = tuple(
        LogEntry(
            entry["step"],
            Evaluation(**entry["train"]),
            None if entry["test"] is None else Evaluation(**entry["test"]),
        )
        for entry in plain["entries"]
    )
    return TrainingLog(entries, tuple(plain["epoch_losses"]), plain["steps"], plain["stopped"])


def logged_steps(recipe: Recipe, examples: int) -> frozenset[int]:
    """Numbers of finished steps at which the sets are evaluated; 0 and the last are among them.

    Example:
        >>> sorted(logged_steps(Recipe(steps=7, batch_size=4, log=3), examples=8))
        [0, 3, 6, 7]
    """
    total, per_epoch = recipe.total_steps(examples), recipe.steps_per_epoch(examples)
    ends = {0, total}
    if recipe.log == "ends":
        return frozenset(ends)
    if recipe.log == "log":
        spaced = np.geomspace(1, total, min(_LOG_POINTS, total)).round().astype(int)
        return frozenset(ends | set(spaced.tolist()))
    interval = per_epoch if isinstance(recipe.log, str) else recipe.log
    return frozenset(ends | set(range(0, total, interval)))
