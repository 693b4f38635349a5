"""What a monitor leaves behind: a survey per step."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from theodolite.errors import UnknownNameError
from theodolite.records import Run, latest_numbers, save_run, summary_text
from theodolite.surveys._result import Survey
from theodolite.surveys._shown import Shown

__all__ = ["History"]


@dataclass(frozen=True)
class History(Shown):
    """All that was measured while a model trained.

    Args:
        run: settings, and a survey record per step; docs/records.md has the layout.
        writes: False in all but the first of several processes, which leave files to the first.
    """

    run: Run
    writes: bool = field(default=True, repr=False, compare=False)

    @property
    def steps(self) -> list[int]:
        """Steps at which there are numbers, increasing."""
        return [record.contents["step"] for record in self.run.steps]

    @property
    def layers(self) -> list[str]:
        """Names of the layers, in order of execution."""
        return [layer["name"] for layer in self.run.head.contents["layers"]]

    def survey(self, step: int) -> Survey:
        """The survey of one step.

        Raises:
            UnknownNameError: If nothing was measured at this step.
        """
        for record in self.run.steps:
            if record.contents["step"] == step:
                return Survey(record, writes=self.writes)
        raise UnknownNameError("step", str(step), map(str, self.steps))

    def summary(self) -> str:
        """The headline numbers as text: of every family those of the last step that took it.

        That is the last step for all of them once the monitor was closed; before, and after a
        crash, a line says which steps they are from.
        """
        if not self.run.steps:
            return "no step was measured"
        latest = latest_numbers(self.run)
        title = f"step {self.steps[-1]}, {len(self.steps)} measured"
        steps = latest.steps if latest.earlier else None
        return summary_text(latest.record, title=title, steps=steps)

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write a folder of records; :func:`theodolite.load` reads it back."""
        return save_run(self.run, folder) if self.writes else Path(folder)

    def _shown(self) -> Sequence[Run]:
        return [self.run]

    def __repr__(self) -> str:
        return f"History({len(self.steps)} steps, {len(self.layers)} layers)"
