"""Pictures of runs over scales: a curve per sigma, Omega and its contrast side by side."""

from collections.abc import Sequence

import numpy as np

from theodolite_papers.ledger import Line, Panel, Result, Results, mean_and_error

__all__ = ["curve_panel", "scale_panels"]

_ALIGNMENT, _CONTRAST = "in-class alignment", "in-class minus overall alignment"
# Quantity -> axis, and of what it is.
_AXES = {
    "train": ("training accuracy", ""),
    "test": ("test accuracy", ""),
    "hidden": (_ALIGNMENT, "hidden-layer gradients"),
    "top": (_ALIGNMENT, "top-layer gradients"),
    "logit": (_ALIGNMENT, "logit gradients"),
    "representation": (_ALIGNMENT, "representations"),
    "hidden_contrast": (_CONTRAST, "hidden-layer gradients"),
    "representation_contrast": (_CONTRAST, "representations"),
    "relative_norm": ("gradient norm / weight norm", "first layer"),
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
    axis, subject = _AXES[name]
    scale = "xy" if name == "relative_norm" else "x"
    return Panel(f"{title}: {subject}" if subject else title, lines, "steps", axis, scale)


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
