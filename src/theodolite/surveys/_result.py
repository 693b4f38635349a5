"""What ``theodolite.survey`` returns: numbers, curves, pictures and words about one moment."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from theodolite.errors import UnknownNameError
from theodolite.records import Estimate, Record, Run, save_run, summary_text
from theodolite.surveys._shown import Shown

__all__ = ["Survey"]


@dataclass(frozen=True)
class Survey(Shown):
    """All that was measured of one model on one set of examples.

    Args:
        record: plain data and arrays; docs/records.md has the layout.
        writes: False in all but the first of several processes: they have the same numbers, and
            leave files to the first.

    Attributes:
        run: the same as reports and trackers read it, a run of one step.
    """

    record: Record
    writes: bool = field(default=True, repr=False, compare=False)
    run: Run = field(init=False, repr=False)

    def __post_init__(self) -> None:
        run = Run(self.record.contents["name"], self.record, (self.record,))
        object.__setattr__(self, "run", run)

    @property
    def layers(self) -> list[str]:
        """Names of the layers, in order of execution."""
        return [layer["name"] for layer in self.record.contents["layers"]]

    def estimate(self, measure: str, layer: str | None = None) -> Estimate:
        """One number with its uncertainty.

        Args:
            measure: e.g. "cka_target"; ``to_frame()`` lists all of them.
            layer: its layer; None for numbers of the whole model.

        Raises:
            UnknownNameError: If there is no such number.
        """
        rows = [row for row in self.record.contents["rows"] if row["layer"] == layer]
        if not rows:
            raise UnknownNameError("layer", str(layer), self.layers)
        for row in rows:
            if row["measure"] == measure:
                keys = ("value", "error", "null_mean", "null_sd", "method")
                return Estimate(*(row[key] for key in keys))
        raise UnknownNameError("measure", measure, [row["measure"] for row in rows])

    def curve(self, name: str, layer: str | None = None) -> dict[str, np.ndarray]:
        """Arrays of a curve by their role, such as x and y.

        Args:
            name: e.g. "alignment_curve".
            layer: its layer; None for curves of the whole model.

        Raises:
            UnknownNameError: If there is no such curve.
        """
        curves = [curve for curve in self.record.contents["curves"] if curve["layer"] == layer]
        for curve in curves:
            if curve["name"] == name:
                return {role: self.record.arrays[key] for role, key in curve["arrays"].items()}
        raise UnknownNameError("curve", name, [curve["name"] for curve in curves])

    def summary(self) -> str:
        """The headline number of every family and layer, and what to beware of, as text."""
        data = self.record.contents["data"]
        name = self.record.contents["name"]
        title = f"{name + ': ' if name else ''}{data['probe']} of {data['n']} examples, "
        return summary_text(self.record, title=f"{title}{data['task']}, labels {data['labels']}")

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write the record; :func:`theodolite.load` reads it back."""
        return save_run(self.run, folder) if self.writes else Path(folder)

    def _shown(self) -> Sequence[Run]:
        return [self.run]

    def __repr__(self) -> str:
        contents: Mapping[str, Any] = self.record.contents
        families = ", ".join(
            f for f in contents["config"]["families"] if f not in contents["skipped"]
        )
        return (
            f"Survey({len(self.layers)} layers, {contents['data']['probe']} examples: {families})"
        )
