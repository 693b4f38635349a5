"""The course of one network's run: what was logged so far, and when to stop."""

from collections.abc import Callable

from theodolite_papers.lab.training.divergence import require_finite_losses
from theodolite_papers.lab.training.evaluation import Evaluation
from theodolite_papers.lab.training.log import LogEntry, TrainingLog
from theodolite_papers.lab.training.recipe import Recipe
from theodolite_papers.lab.training.stopping import stopping_reason

__all__ = ["Course", "Sets", "epoch_loss"]

Sets = tuple[Evaluation, Evaluation | None]  # training set, test set


def epoch_loss(losses: list[float], recipe: Recipe, examples: int) -> float:
    """Mean over the examples of an epoch: a short last batch weighs less.

    Example:
        >>> epoch_loss([1.0, 4.0], Recipe(batch_size=2, epochs=1), examples=3)
        2.0
    """
    sizes = [recipe.batch_size] * len(losses)
    if len(losses) == recipe.steps_per_epoch(examples) and not recipe.drop_last:
        sizes[-1] = examples - sum(sizes[:-1])
    return sum(loss * size for loss, size in zip(losses, sizes, strict=True)) / sum(sizes)


class Course:
    """Entries of the log and losses of the epochs; evaluates a step at most once."""

    def __init__(self, recipe: Recipe, examples: int, evaluate: Callable[[], Sets]) -> None:
        self._recipe, self._examples, self._evaluate = recipe, examples, evaluate
        self.entries: list[LogEntry] = []
        self.epoch_losses: list[float] = []

    def record(self, step: int) -> LogEntry:
        """Evaluate both sets after so many steps."""
        if not self.entries or self.entries[-1].step != step:
            self.entries.append(LogEntry(step, *self._evaluate()))
        return self.entries[-1]

    def check(self, losses: list[float], step: int, network: int | None = None) -> None:
        """The latest losses, up to a number of steps done, are finite."""
        first = step - len(losses)
        require_finite_losses(losses, first, self._recipe, self.epoch_losses, network)

    def close_epoch(self, losses: list[float], step: int) -> str | None:
        """Take an epoch's losses, and say why to stop."""
        self.epoch_losses.append(epoch_loss(losses, self._recipe, self._examples))
        return stopping_reason(
            self._recipe.stop, self.epoch_losses, lambda: self.record(step).train.accuracy
        )

    def log(self, step: int, stopped: str) -> TrainingLog:
        """What there is so far."""
        return TrainingLog(tuple(self.entries), tuple(self.epoch_losses), step, stopped)
