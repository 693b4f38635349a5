"""What every result has in common: it shows its runs as a table, a figure, a page."""

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from theodolite.records import Run, frame_of

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Shown"]


class Shown(ABC):
    """Runs that show themselves; the report is loaded when one is asked for.

    Attributes:
        writes: whether this process writes files; of several, all but the first leave it to that.
    """

    writes: bool = True

    @abstractmethod
    def _shown(self) -> Sequence[Run]:
        """The runs, as reports read them."""

    def to_frame(self) -> "pd.DataFrame":
        """One row per layer, family and measure; per run and step too where there are several."""
        return frame_of(self._shown(), names=len(self._shown()) > 1)

    def plot(self, name: str, **options: Any) -> Any:
        """A Plotly figure of a family, a measure or a curve."""
        from theodolite.report import plot

        return plot(self._shown(), name, **options)

    def to_html(self, path: str | os.PathLike[str], title: str = "") -> Path:
        """Write a page that needs nothing else; returns its path."""
        if not self.writes:
            return Path(path)
        from theodolite.report import write_html

        return Path(write_html(self._shown(), path, title=title))

    def _repr_html_(self) -> str:
        from theodolite.report import notebook_html

        return str(notebook_html(self._shown()))
