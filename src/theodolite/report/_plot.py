"""One Plotly figure by name."""

from collections.abc import Mapping, Sequence
from typing import Any

from theodolite.errors import UnknownNameError
from theodolite.records import FAMILIES, Run
from theodolite.report._between import whole_figure
from theodolite.report._catalog import CURVES, headline_figure
from theodolite.report._curves import overlay
from theodolite.report._figure import Figure, Panel, Words, panel_layout, with_ranges
from theodolite.report._images import eigenvector_figure
from theodolite.report._maps import class_map, kernel_maps, step_maps
from theodolite.report._profiles import profile_figure
from theodolite.report._reading import Group, groups_of
from theodolite.report._traces import Line
from theodolite.report.pages import DARK, LIGHT

__all__ = ["plot"]

_MOST_STEPS = 200
_THEMES = {"light": LIGHT, "dark": DARK}
_KERNELS = ("forward_kernel", "backward_kernel")
_CLASS_MAPS = ("class_contrast", "feature_class_contrast", "class_omega")
_IMAGES = ("patch_eigenvectors", "filter_eigenvectors")


def plot(runs: Sequence[Run], name: str, *, step: int | None = None, theme: str = "light") -> Any:
    """A Plotly figure of a family (its headline), a measure or a curve.

    Runs with the same layers share axes; of others, those with the layers of the first are drawn.
    A measure of one history without ``step`` is a map of layers by steps; otherwise numbers stand
    over layers, every run in its own dash.

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
    from theodolite.report._write import require_runs

    require_runs(runs)
    if theme not in _THEMES:
        raise UnknownNameError("theme", theme, _THEMES)
    group = groups_of(runs, _MOST_STEPS)[0]
    figure = _figure(group, name, step)
    if figure is None:
        raise UnknownNameError("family, measure or curve", name, _known(group))
    return _drawn(figure, step, theme)


# A name of the palette means a color at these keys only: layers may be called "ink".
_COLOR_KEYS = {
    "color", "bgcolor", "fillcolor", "gridcolor", "linecolor", "bordercolor", "tickcolor",
    "paper_bgcolor", "plot_bgcolor", "colorscale",
}  # fmt: skip


def _resolved(value: Any, palette: Mapping[str, str], key: str = "") -> Any:
    """A figure's dictionaries with names of colors replaced by colors."""
    if isinstance(value, Mapping):
        return {k: _resolved(v, palette, k) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return (
            [_resolved(item, palette, key) for item in value]
            if key in _COLOR_KEYS or (value and isinstance(value[0], Mapping))
            else value
        )
    return palette.get(value, value) if key in _COLOR_KEYS and isinstance(value, str) else value


def _figure(group: Group, name: str, step: int | None) -> Figure | None:
    words = Words(name.replace("_", " "))
    if name in FAMILIES:
        return headline_figure(group, name)
    if name in CURVES:
        return overlay(group, CURVES[name], words)
    if name in _KERNELS:
        return kernel_maps(group, name, words)
    if name in _CLASS_MAPS:
        return class_map(group, name, words)
    if name in _IMAGES:
        return eigenvector_figure(group)
    for family in FAMILIES:
        if group.measured(family, name):
            if group.is_history and len(group.runs) == 1 and step is None:
                return step_maps(group, family, name)
            return profile_figure(group, family, [Line(name)], words)
        if group.is_history and name in group.whole(family):
            return whole_figure(group, family, name, words)
    return None


def _known(group: Group) -> list[str]:
    moments = [moment for run in group.runs for moment in run.moments]
    rows = {
        m
        for moment in moments
        for _, m, layer in moment.measures()
        if layer is not None or group.is_history
    }
    curves = {name for moment in moments for _, name, _ in moment.curve_names()}
    return [*FAMILIES, *sorted(rows), *sorted(curves)]


def _drawn(figure: Figure, step: int | None, theme: str) -> Any:
    """All panels of a figure, one above the other."""
    from plotly.graph_objects import Figure as PlotlyFigure

    panels = figure.panels
    states = [panel.draw(step) for panel in panels]
    layouts = with_ranges(
        [panel_layout(p) for p in panels], [[s] for s in states], shared=figure.shared
    )
    traces: list[dict[str, Any]] = []
    layout = {k: v for k, v in layouts[0].items() if k not in {"xaxis", "yaxis", "height"}}
    for i, (panel, drawn) in enumerate(zip(panels, states, strict=True)):
        end = "" if i == 0 else str(i + 1)
        traces += [trace | {"xaxis": f"x{end}", "yaxis": f"y{end}"} for trace in drawn]
        layout |= _placed(panel, layouts[i], i, len(panels), end)
    layout["height"] = sum(panel.height for panel in panels) + 60
    layout["title"] = {"text": figure.title, "font": {"size": 15}}
    layout["margin"] = {"l": 60, "r": 20, "t": 50, "b": 50}
    layout["template"] = "none"
    many = len(traces) > 1 and traces[0]["type"] == "scatter"
    layout["showlegend"] = many
    palette = _THEMES[theme]
    return PlotlyFigure(_resolved({"data": traces, "layout": layout}, palette))


def _placed(panel: Panel, layout: dict[str, Any], i: int, count: int, end: str) -> dict[str, Any]:
    top, bottom = 1 - i / count, 1 - (i + 1) / count
    gap = 0.0 if count == 1 else 0.3 / count
    title = layout["yaxis"]["title"]
    if panel.title:
        text = f"{panel.title}: {title['text']}" if title["text"] else panel.title
        title = title | {"text": text}
    return {
        f"xaxis{end}": layout["xaxis"] | {"anchor": f"y{end}"},
        f"yaxis{end}": layout["yaxis"]
        | {"anchor": f"x{end}", "domain": [max(0.0, bottom + gap), top], "title": title},
    }
