"""How many steps a run has, and which learning rate each of them uses."""

from math import ceil
from typing import Literal

from theodolite.checks import require_choice, require_count
from theodolite.errors import DomainError

__all__ = ["SCHEDULES", "Schedule", "schedule_factor", "steps_per_epoch"]

Schedule = Literal["constant", "thirds", "linear", "step_decay"]
SCHEDULES: tuple[Schedule, ...] = ("constant", "thirds", "linear", "step_decay")
_DECAY, _DECAY_EPOCHS = 0.1, 30


def schedule_factor(schedule: Schedule, step: int, total_steps: int, epoch: int = 0) -> float:
    r"""Factor of the learning rate at a step, counted from 0.

    .. math:: \text{thirds: } 3^{-([3t \ge T] + [3t \ge 2T])}, \qquad
              \text{linear: } 1 - t/T, \qquad
              \text{step decay: } 10^{-\lfloor \text{epoch}/30 \rfloor}

    Args:
        schedule: which of them, or ``"constant"``.
        step: :math:`t`.
        total_steps: :math:`T`.
        epoch: of this step, counted from 0; only the step decay reads it.

    Raises:
        DomainError: If the schedule is unknown or the step outside the run.

    Example:
        >>> [round(schedule_factor("thirds", step, 9), 4) for step in (0, 2, 3, 5, 6, 8)]
        [1.0, 1.0, 0.3333, 0.3333, 0.1111, 0.1111]

    References:
        [maennel2020], appendix A.3; [canatar2022], section IV; [imani2022], appendix D.
    """
    require_choice(SCHEDULES, schedule=schedule)
    require_count(1, total_steps=total_steps)
    if not 0 <= step < total_steps:
        raise DomainError(f"step: expected 0 <= step < {total_steps}, got {step}")
    if schedule == "thirds":
        return 1.0 / 3 ** ((3 * step >= total_steps) + (3 * step >= 2 * total_steps))
    if schedule == "linear":
        return 1.0 - step / total_steps
    return float(_DECAY ** (epoch // _DECAY_EPOCHS)) if schedule == "step_decay" else 1.0


def steps_per_epoch(examples: int, batch_size: int, drop_last: bool = False) -> int:
    """Batches in one pass over the data.

    Raises:
        DomainError: If the last batch is dropped and there is no other.

    Example:
        >>> steps_per_epoch(20_000, 256, drop_last=True), steps_per_epoch(50_000, 256)
        (78, 196)
    """
    require_count(1, examples=examples, batch_size=batch_size)
    if not drop_last:
        return ceil(examples / batch_size)
    if examples < batch_size:
        raise DomainError(
            f"batch_size: expected at most the {examples} examples where incomplete batches are "
            f"dropped, got {batch_size}; pass a smaller batch_size or drop_last=False"
        )
    return examples // batch_size
