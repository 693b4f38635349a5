"""Runs to files, fragments and figures; pages and Plotly are loaded when one is asked for."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from theodolite.errors import RecordError, UnknownNameError
from theodolite.records import Run
from theodolite.report._reading import groups_of
from theodolite.report.pages import DARK, LIGHT

__all__ = ["notebook_html", "plot", "write_html"]

_MOST_STEPS = 200
_THEMES = {"light": LIGHT, "dark": DARK}


def write_html(runs: Sequence[Run], path: str | os.PathLike[str], title: str = "") -> Path:
    """Write one page about a survey, a history, or several of them side by side.

    The page needs no network and no other file. It begins with three sentences and an overview
    that are readable without scripts; a section for each family, maps of layers by steps and a
    comparison are folded below. Runs of networks with the same layers share their figures.

    Args:
        runs: what to show, at least one.
        path: file to write; its folder is created.
        title: heading of the page; the names of the runs if it is "".

    Returns:
        The path of the file.

    Raises:
        RecordError: If there are no runs, or one has no steps.
    """
    from theodolite.report._page import page_html

    _require_runs(runs)
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(page_html(runs, title), encoding="utf-8")
    return target


def notebook_html(runs: Sequence[Run]) -> str:
    """The sentences and the overview as a fragment without scripts, for ``_repr_html_``.

    Raises:
        RecordError: If there are no runs, or one has no steps.
    """
    from theodolite.report._page import fragment_html

    _require_runs(runs)
    return fragment_html(runs)


def plot(runs: Sequence[Run], name: str, *, step: int | None = None, theme: str = "light") -> Any:
    """A Plotly figure of a family (its headline), a measure or a curve.

    Runs with the same layers share axes; of others, those with the layers of the first are drawn.
    A measure of one history without ``step`` is a map of layers by steps; otherwise numbers stand
    over layers, every run in its own color.

    Args:
        runs: what to show, at least one.
        name: e.g. "representation", "cka_target" or "alignment_curve".
        step: the training step; the latest measured one up to it is drawn.
        theme: "light" or "dark".

    Returns:
        A ``plotly.graph_objects.Figure``; each trace has the path of its numbers in ``meta``.

    Raises:
        RecordError: If there are no runs, or one has no steps.
        UnknownNameError: If the records hold nothing of that name, or there is no such theme.
    """
    from theodolite.report._catalog import named_figure, plotly_figure

    _require_runs(runs)
    if theme not in _THEMES:
        raise UnknownNameError("theme", theme, _THEMES)
    group = groups_of(runs, _MOST_STEPS)[0]
    return plotly_figure(named_figure(group, name, step), step, _THEMES[theme])


def _require_runs(runs: Sequence[Run]) -> None:
    """Refuse what no page or plot can be made of."""
    if not runs:
        raise RecordError("runs: expected at least one run, got none")
    for run in runs:
        if not run.steps:
            raise RecordError(
                f"runs: expected runs with at least one step, got {run.name!r} with none; "
                "let the monitor measure before writing a report"
            )
