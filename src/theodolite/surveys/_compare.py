"""Results from disk, and several of them side by side."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

from theodolite.errors import DomainError
from theodolite.records import Run, load_run
from theodolite.surveys._history import History
from theodolite.surveys._result import Survey
from theodolite.surveys._shown import Shown

__all__ = ["Comparison", "compare", "load"]


def load(folder: str | os.PathLike[str]) -> Survey | History:
    """Read a survey or a history that was saved.

    Args:
        folder: what ``save`` was given, or the folder of a monitor.

    Raises:
        RecordError: If there is no record, or it is damaged, foreign, or from a newer version; the
            message says which and what to do.
    """
    run = load_run(folder)
    return History(run) if run.is_history else Survey(run.head)


@dataclass(frozen=True)
class Comparison(Shown):
    """Several surveys, or several histories, side by side.

    Args:
        runs: what is compared, under names that differ.
    """

    runs: tuple[Run, ...]

    @property
    def names(self) -> list[str]:
        """What the runs are called."""
        return [run.name for run in self.runs]

    def _shown(self) -> Sequence[Run]:
        return self.runs

    def __repr__(self) -> str:
        return f"Comparison({', '.join(self.names)})"


def compare(*results: Survey | History, names: Sequence[str] | None = None) -> Comparison:
    """Put surveys, or histories, side by side.

    Args:
        *results: at least two of one kind.
        names: what to call them; by default their own names, made unique.

    Raises:
        DomainError: If there are fewer than two, or surveys are mixed with histories.

    Example:
        >>> from torch import nn
        >>> from theodolite.surveys import survey
        >>> x, y = torch.randn(12, 3), torch.arange(12) % 2
        >>> surveys = [survey(nn.Linear(3, 2), (x, y), families="kernel") for _ in range(2)]
        >>> compare(*surveys, names=["first", "second"]).to_frame()["run"].unique().tolist()
        ['first', 'second']
    """
    runs = [result.run for result in results]
    if len(runs) < 2 or len({run.is_history for run in runs}) > 1:
        kinds = ", ".join(type(result).__name__ for result in results) or "nothing"
        raise DomainError(
            f"compare: expected at least two surveys, or at least two histories, got {kinds}"
        )
    chosen = [run.name for run in runs] if names is None else list(names)
    if len(chosen) != len(runs):
        raise DomainError(f"names: expected {len(runs)}, one per result, got {len(chosen)}")
    named = zip(runs, _unique(chosen), strict=True)
    return Comparison(tuple(replace(run, name=name) for run, name in named))


def _unique(names: list[str]) -> list[str]:
    """Names as they are, with a number where one is empty or occurs again."""
    taken: list[str] = []
    for index, name in enumerate(names, start=1):
        plain = name or f"run {index}"
        fresh, number = plain, 2
        while fresh in taken:
            fresh, number = f"{plain} ({number})", number + 1
        taken.append(fresh)
    return taken
