"""Pictures of positive and negative transfer: courses, and activations at four moments."""

import numpy as np

from theodolite_papers.ledger import Bars, Line, Panel, Results, mean_and_error
from theodolite_papers.maennel2020._transfer import LABELS

__all__ = ["draw", "runs_of"]

_MOMENTS = ("initial", "pretrained", "real", "random")
_FIGURES = {"positive": "Figure 11", "negative": "Figure 10", "wide": "Figure 11"}


def runs_of(runs: Results, case: str) -> Results:
    """The runs of one case."""
    return runs.chosen(lambda run: run.point.get("case", "positive") == case)


def draw(runs: Results) -> list[Panel]:
    """Figure 1 by case and labels, layer means, and histograms of the last two layers."""
    panels = []
    for case in ("positive", "negative", "wide"):
        part = runs_of(runs, case)
        if len(part):
            panels += [_course_panel(part, case, labels) for labels in LABELS]
            panels += [_means_panel(part, case), _histogram_panel(part, case)]
    return panels


def _course_panel(runs: Results, case: str, labels: str) -> Panel:
    mean, error = mean_and_error(runs.array(labels).astype(np.float64))
    steps = next(iter(runs)).arrays["steps"]
    names = ("scratch, train", "pre-trained, train", "scratch, test", "pre-trained, test")
    rows = range(4) if labels == "real" else range(2)
    lines = [Line(names[k], steps, mean[k], error[k], dashed=k > 1, color=k % 2) for k in rows]
    return Panel(f"Figure 1, {case} case, {labels} labels", lines, "step", "accuracy")


def _means_panel(runs: Results, case: str) -> Panel:
    lines = []
    for moment in _MOMENTS:
        mean, error = mean_and_error(runs.array(f"mean_{moment}"))
        lines.append(Line(_title(moment), np.arange(1, len(mean) + 1), mean, error))
    title = f"{_FIGURES[case]}, {case} case, mean activation"
    return Panel(title, lines, "layer", "fraction active")


def _histogram_panel(runs: Results, case: str) -> Panel:
    """Over neurons, in the last two layers together, at initialisation, before, and after."""
    marks = []
    for moment in ("initial", "pretrained", "random"):
        stacked = runs.array(f"histogram_{moment}").astype(np.float64)[:, -2:, 0].mean(1)
        mean, error = mean_and_error(stacked)
        labels = [f"{k / len(mean):.2f}" for k in range(len(mean))]
        marks.append(Bars(_title(moment), labels, mean, error))
    title = f"Figure 7, {case} case, neurons of the last two layers"
    return Panel(title, marks, "fraction of examples", "share of neurons")


def _title(moment: str) -> str:
    tuned = {"real": "fine-tuned, real labels", "random": "fine-tuned, random labels"}
    return {"initial": "initialisation", "pretrained": "pre-trained", **tuned}[moment]
