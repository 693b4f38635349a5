"""From runs to files, fragments and figures; pages and Plotly are loaded on request."""

import os
from collections.abc import Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any

from theodolite.advice.pairs import LayerPairs
from theodolite.errors import RecordError, UnknownNameError
from theodolite.records import Run, groups_of, require_class
from theodolite.report.pages import DARK, LIGHT, write_page

_MOST_STEPS = 200
_THEMES = {"light": LIGHT, "dark": DARK}


def write_html(
    runs: Sequence[Run],
    path: str | os.PathLike[str],
    title: str = "",
    *,
    pairs: LayerPairs | None = None,
) -> Path:
    """Write one page about a survey, a history, or several of them side by side.

    The page works offline. It begins with sentences and charts over depth, which need no scripts. A
    table, a section for each family and maps of layers by steps are folded below. Runs of networks
    with the same layers share their figures.

    Args:
        runs: at least one run.
        path: file to write; its folder is created.
        title: heading of the page; the names of the runs if it is "".
        pairs: similarities of the layers of the first two runs.

    Returns:
        The path of the file.

    Raises:
        RecordError: If there are no runs, or one has no steps.
    """
    from theodolite.report._page import page_html

    _require_runs(runs)
    return write_page(path, page_html(runs, title, pairs))


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

    Only runs with the layers of the first run are drawn; they share axes. For one history without
    ``step`` the figure is a map of layers by steps. Otherwise layers are on the horizontal axis,
    and every run has a color.

    Args:
        runs: at least one run.
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
    require_class(str, name=name)
    if step is not None:
        require_class(Integral, step=step)
    palette = _palette(theme)
    group = groups_of(runs, _MOST_STEPS)[0]
    return plotly_figure(named_figure(group, name, step), step, palette)


def plot_pairs(
    pairs: LayerPairs, name: str, names: tuple[str, str], *, theme: str = "light"
) -> Any:
    """A Plotly heat map of a similarity of every pair of layers of two models.

    Args:
        pairs: similarities of the layers.
        name: "cka" or "neighbours".
        names: names of the models.
        theme: "light" or "dark".

    Returns:
        A ``plotly.graph_objects.Figure``.

    Raises:
        UnknownNameError: If there is no such theme.
    """
    from theodolite.report._catalog import plotly_figure
    from theodolite.report._maps import pair_maps

    figures = {figure.key: figure for figure in pair_maps(pairs, names)}
    return plotly_figure(figures[f"pairs-{name}"], None, _palette(theme))


def _palette(theme: str) -> Mapping[str, str]:
    if not isinstance(theme, str) or theme not in _THEMES:
        raise UnknownNameError("theme", theme, _THEMES)
    return _THEMES[theme]


def _require_runs(runs: Sequence[Run]) -> None:
    """Refuse runs without steps, and an empty list."""
    if not runs:
        raise RecordError("runs: expected at least one run, got none")
    for run in runs:
        if not run.steps:
            place = repr(run.name) if run.head.file is None else str(run.head.file)
            raise RecordError(
                f"runs: expected runs with at least one step, got {place} with none; "
                "let the monitor measure before writing a report"
            )
