"""Reports as files and fragments."""

import os
from collections.abc import Sequence
from pathlib import Path

from theodolite.errors import RecordError
from theodolite.records import Run

__all__ = ["notebook_html", "require_runs", "write_html"]


def write_html(runs: Sequence[Run], path: str | os.PathLike[str], title: str = "") -> Path:
    """Write one page about a survey, a history, or several of them side by side.

    The page needs no network and no other file. It has an overview that is readable without
    scripts, a section for each family, maps of layers by steps and a slider for histories, and a
    comparison for several runs; runs of networks with the same layers share their figures.

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

    require_runs(runs)
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(page_html(runs, title), encoding="utf-8")
    return target


def notebook_html(runs: Sequence[Run]) -> str:
    """The overview as a fragment without scripts, for ``_repr_html_``.

    Raises:
        RecordError: If there are no runs, or one has no steps.
    """
    from theodolite.report._page import fragment_html

    require_runs(runs)
    return fragment_html(runs)


def require_runs(runs: Sequence[Run]) -> None:
    """Refuse what no page or plot can be made of."""
    if not runs:
        raise RecordError("runs: expected at least one run, got none")
    for run in runs:
        if not run.steps:
            raise RecordError(
                f"runs: expected runs with at least one step, got {run.name!r} with none; "
                "let the monitor measure before writing a report"
            )
