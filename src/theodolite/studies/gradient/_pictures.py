"""Pictures of runs over scales: a curve per sigma, Omega and its contrast side by side."""

from collections.abc import Sequence

import numpy as np

from theodolite.studies import Line, Panel, Result, Results, mean_and_error

__all__ = ["curve_panel", "scale_panels"]

_AXES = {
    "train": "training accuracy",
    "test": "test accuracy",
    "hidden": "in-class alignment, hidden-layer gradients",
    "top": "in-class alignment, top-layer gradients",
    "logit": "in-class alignment, logit gradients",
    "representation": "in-class alignment, representations",
    "hidden_contrast": "contrast (in-class minus overall), hidden-layer gradients",
    "representation_contrast": "contrast (in-class minus overall), representations",
    "relative_norm": "gradient norm / weight norm, first layer",
}


def curve_panel(title: str, runs: Results, name: str) -> Panel:
    """A quantity against steps, one line per sigma, with the standard error over runs."""
    shortest = min(runs, key=lambda run: len(run.arrays["step"]))
    steps = shortest.arrays["step"]
    stacked = np.stack([run.arrays[name][:, : len(steps)] for run in runs])
    mean, error = mean_and_error(stacked)
    lines = [
        Line(f"σ = {sigma:g}", steps[1:], mean[k, 1:], error[k, 1:])
        for k, sigma in enumerate(shortest.arrays["sigma"].tolist())
    ]
    scale = "xy" if name == "relative_norm" else "x"
    return Panel(title, lines, "steps", _AXES[name], scale)


def scale_panels(figure: str, runs: Results, names: Sequence[str]) -> list[Panel]:
    """One panel per quantity and data set."""
    parts: dict[str, list[Result]] = {}
    for run in runs:
        parts.setdefault(str(run.point.get("data", "")), []).append(run)
    return [
        curve_panel(f"{figure}, {data}" if data else figure, Results(tuple(part)), name)
        for data, part in parts.items()
        for name in names
    ]
