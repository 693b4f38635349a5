"""What every engine does: work on jobs anywhere, keep the outcomes in one place."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["Failure", "Keep", "Report", "Work", "reason_of"]

Report = Callable[[float, str], None]  # share of the work that is done, and what is being done
Work = Callable[[Any, Report], Any]  # (job, report) -> outcome; picklable
Keep = Callable[[Any, Any], None]  # (job, outcome); where the records are


@dataclass(frozen=True)
class Failure:
    """A job that raised, or whose worker died every time."""

    job: Any
    reason: str


def reason_of(error: BaseException) -> str:
    """The error in one line."""
    return f"{type(error).__name__}: {error}"
