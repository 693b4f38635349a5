"""Figure 3 and Tables 1 to 3, drawn from networks of many depths."""

from math import inf

import numpy as np
import torch

from theodolite.measures.tangent import relative_alignment
from theodolite_papers.ledger import Heat, Line, Panel, Points, Results
from theodolite_papers.lou2022._depths import (
    balance_line,
    by_depth,
    data_sets,
    depth_fit,
    fitted_loss,
    peaks_of,
)
from theodolite_papers.lou2022._tables import ROWS

__all__ = ["TABLES", "draw"]

TABLES = {"mnist": "Table 3", "fashion_mnist": "Table 2", "cifar10": "Table 1"}


def draw(runs: Results) -> list[Panel]:
    """Per data set: peaks with the three lines, the map of alignments, the table's accuracies."""
    return [
        panel
        for name, part in data_sets(runs).items()
        for panel in (*_figure(name, part), _map(name, part), *_table(name, part))
    ]


def _shown(name: str, part: Results) -> float:
    """Largest training loss of what is drawn: all networks where none fitted its data."""
    most_loss = fitted_loss(name)
    return most_loss if len(peaks_of(part, most_loss)[0]) else inf


def _figure(name: str, part: Results) -> list[Panel]:
    depths, peaks = peaks_of(part, _shown(name, part))
    if not len(depths):
        return []
    x = np.unique(depths)
    cosine = part.mean("cosine")
    marks: list[Line | Points] = [Points("peaks", depths, peaks)]
    marks.append(Line("exact balance", x, balance_line(x, cosine)))
    if len(x) > 1:
        fit = depth_fit(depths, peaks, cosine)
        marks.append(Line("slope 3/5", x, np.exp(fit["constant"]) * x**0.6, dashed=True))
        offset = float(np.mean(np.log(peaks) - fit["slope"] * np.log(depths)))
        marks.append(Line(f"slope {fit['slope']:.2f}", x, np.exp(offset) * x ** fit["slope"]))
    return [Panel(f"Figure 3, {name}", marks, "depth", "layer of the peak", "xy")]


def _map(name: str, part: Results) -> Panel:
    """Mean alignment of the networks of each depth; blank where none is drawn."""
    most_loss = _shown(name, part)
    columns = sorted(by_depth(part).items())
    deepest = columns[-1][0]
    values = np.full((deepest, len(columns)), np.nan)
    for index, (depth, same) in enumerate(columns):
        losses = np.concatenate([run.arrays["final_losses"] for run in same])
        curves = np.concatenate([run.arrays["curves"] for run in same]).astype(np.float64)
        curves = curves[(losses <= most_loss) & np.isfinite(curves).all(1)]
        if len(curves):
            mean = torch.as_tensor(curves.mean(0))
            values[:depth, index] = relative_alignment(mean).numpy()
    rows = [str(layer) for layer in range(1, deepest + 1)]
    heat = Heat(values, rows, [str(depth) for depth, _ in columns])
    return Panel(f"{name}, alignment over its maximum", [heat], "depth", "layer")


def _table(name: str, part: Results) -> list[Panel]:
    """Test accuracy of every network beside the published one, where there is one."""
    if name not in TABLES:
        return []
    rows = dict(sorted(ROWS[name].items()))
    published = [row.accuracy for row in rows.values()]
    accuracies = [run.arrays["test_accuracies"] for run in part]
    depths = [run.arrays["curves"].shape[1] for run in part for _ in run.arrays["peaks"]]
    marks: list[Line | Points] = [
        Points("measured", depths, np.concatenate(accuracies)),
        Line("published", [*rows], published, dashed=True),
    ]
    return [Panel(f"{TABLES[name]}, {name}", marks, "depth", "test accuracy (percent)")]
