"""Pictures of a study as plain data: panels of lines, points, bars, heat maps and image tiles."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["Bars", "Heat", "Line", "Mark", "Panel", "Points", "Tiles", "mean_and_error"]


@dataclass(frozen=True)
class Line:
    """A curve, with a band of its standard error where ``error`` is given.

    Args:
        color: number of the color; None takes the next one. Curves that belong together share it.
    """

    name: str
    x: Sequence[float | int] | np.ndarray
    y: Sequence[float | int] | np.ndarray
    error: Sequence[float | int] | np.ndarray | None = None
    dashed: bool = False
    color: int | None = None


@dataclass(frozen=True)
class Points:
    """A scatter of points, each with a text to show on hovering."""

    name: str
    x: Sequence[float | int] | np.ndarray
    y: Sequence[float | int] | np.ndarray
    text: Sequence[str] = ()
    color: int | None = None


@dataclass(frozen=True)
class Bars:
    """Bars by label, with error bars where ``error`` is given."""

    name: str
    labels: Sequence[str]
    y: Sequence[float | int] | np.ndarray
    error: Sequence[float | int] | np.ndarray | None = None
    color: int | None = None


@dataclass(frozen=True)
class Heat:
    """A matrix by rows (downwards) and columns."""

    values: np.ndarray
    rows: Sequence[str] = ()
    columns: Sequence[str] = ()
    diverging: bool = False


@dataclass(frozen=True)
class Tiles:
    """Small images in rows: (rows, count, height, width) gray or (..., 3) color.

    Each tile is scaled by its largest magnitude about zero, so that zero is the same gray
    everywhere.
    """

    images: np.ndarray
    rows: Sequence[str] = ()


Mark = Line | Points | Bars | Heat | Tiles


@dataclass(frozen=True)
class Panel:
    """One set of axes.

    Args:
        title: what stands above it, with the figure's number: ``"Figure 7, MNIST"``.
        marks: what is drawn.
        x: name of the horizontal axis.
        y: name of the vertical axis.
        log: which axes are logarithmic: "", "x", "y" or "xy".
    """

    title: str
    marks: Sequence[Mark]
    x: str = ""
    y: str = ""
    log: str = ""


def mean_and_error(stacked: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard error over the first axis; the error of one run is zero."""
    runs = len(stacked)
    spread = stacked.std(axis=0, ddof=1) if runs > 1 else np.zeros_like(stacked[0])
    return stacked.mean(axis=0), spread / np.sqrt(runs)
