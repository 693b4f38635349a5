"""When to stop before the last step: rules on the epochs' losses and the training accuracy."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from theodolite.checks import require_between, require_count

__all__ = ["Stop", "stopping_reason"]


@dataclass(frozen=True)
class Stop:
    """Rules that end a run at the end of an epoch; each is off until it is given a number.

    Args:
        loss: stop when the epoch's mean training loss is at most this.
        accuracy: stop when the training accuracy is at least this; 1 means every example.
        improvement: stop when the loss improved by less than this fraction over ``patience``
            epochs.
        patience: length of that window.

    Example:
        >>> Stop(loss=1e-3, improvement=1e-3, patience=10)
        Stop(loss=0.001, accuracy=None, improvement=0.001, patience=10)

    References:
        [imani2022], section 5; [lou2022], section 5; [mehta2021], section 3.
    """

    loss: float | None = None
    accuracy: float | None = None
    improvement: float | None = None
    patience: int = 10

    def __post_init__(self) -> None:
        if self.loss is not None:
            require_between(0.0, float("inf"), open_high=True, loss=self.loss)
        if self.accuracy is not None:
            require_between(0.0, 1.0, accuracy=self.accuracy)
        if self.improvement is not None:
            require_between(0.0, 1.0, improvement=self.improvement)
        require_count(1, patience=self.patience)


def stopping_reason(
    stop: Stop, epoch_losses: Sequence[float], accuracy: Callable[[], float]
) -> str | None:
    """Why to stop after the latest epoch, or None; asks for the accuracy only if a rule needs it.

    Example:
        >>> stopping_reason(Stop(loss=0.1), [0.5, 0.09], accuracy=lambda: 0.9)
        'loss'
    """
    if not epoch_losses:
        return None
    latest = epoch_losses[-1]
    if stop.loss is not None and latest <= stop.loss:
        return "loss"
    if stop.improvement is not None and len(epoch_losses) > stop.patience:
        before = epoch_losses[-1 - stop.patience]
        if before - latest < stop.improvement * abs(before):
            return "improvement"
    if stop.accuracy is not None and accuracy() >= stop.accuracy:
        return "accuracy"
    return None
