"""Figures 1 to 6 and Table I, drawn from the runs of the grid."""

import numpy as np

from theodolite_papers.canatar2022._grid_runs import profiles, setting_text, shown
from theodolite_papers.canatar2022._profiles import DEBIASED, NULL
from theodolite_papers.canatar2022._spectrum_claims import chosen_models
from theodolite_papers.canatar2022._table_claims import COLUMNS, PUBLISHED, ROWS, coefficients
from theodolite_papers.ledger import Heat, Line, Panel, Points, Results, mean_and_error

__all__ = ["draw"]

_SHOWN = (1, 4, 7, 9, 10)  # layers of Figure 1; ten curves are too many
_STAGES = ("start", "middle", "end")
_WORDS = {"skip": "skip", "batch_size": "batch size", "learning_rate": "learning rate"}


def draw(runs: Results) -> list[Panel]:
    """The figures over the runs that the paper would keep (all of them where none is)."""
    order = sorted(shown(runs), key=lambda run: run["test_accuracy"])
    ordered = Results(tuple(order))
    return [
        *_figure_1(ordered),
        *_figure_2(ordered),
        *_figures_3_to_5(runs),
        *_figure_6(ordered),
        *_table_1(ordered),
    ]


def _figure_1(runs: Results) -> list[Panel]:
    text = [setting_text(run) for run in runs]
    x = 100 * runs["test_accuracy"]
    panels = []
    sets = {"a": "target_train", "b": "target_test", "c": "input_train"}
    titles = {"a": "target, training set", "b": "target, test set", "c": "input, training set"}
    for part, name in sets.items():
        values = profiles(runs, name)
        marks = [Points(f"layer {k}", x, values[:, k - 1], text) for k in _SHOWN]
        title = f"Figure 1{part}, CKA with {titles[part]}"
        panels.append(Panel(title, marks, "test accuracy of the run in %", "CKA"))
    return panels


def _figure_2(runs: Results) -> list[Panel]:
    train, test = profiles(runs, "target_train"), profiles(runs, "target_test")
    layers = np.arange(1, train.shape[1] + 1)
    names = [f"layer {k}" for k in layers]
    points = Points("layers, mean over runs", train.mean(0), test.mean(0), names)
    lines: list[Line] = []
    rows = {"": 0, ", debiased": DEBIASED, ", permuted labels": NULL}
    for kind, row in rows.items():
        mean, error = mean_and_error(profiles(runs, "target_train", row))
        lines.append(Line(f"target{kind}", layers, mean, error, dashed=bool(kind)))
    for kind, row in {"": 0, ", debiased": DEBIASED}.items():
        mean, error = mean_and_error(profiles(runs, "input_train", row))
        lines.append(Line(f"input{kind}", layers, mean, error, dashed=bool(kind)))
    before, error = mean_and_error(profiles(runs, "initial_train"))
    lines.append(Line("target, before training", layers, before, error, dashed=True))
    return [
        Panel("Figure 2a", [points], "CKA with target, training set", "CKA with target, test set"),
        Panel("Figure 2b, training set", lines, "layer", "CKA"),
    ]


def _figures_3_to_5(runs: Results) -> list[Panel]:
    first = runs.by_seed()[runs.runs[0].seed]
    models = chosen_models(first)
    panels = []
    for number, name in ((3, "worst"), (4, "best"), (5, "misleading")):
        run = models[name]
        spectra: list[Line] = []
        power: list[Line] = []
        for color, layer in enumerate((9, 10)):
            modes = run.arrays[f"modes_{layer}"]
            for stage, label in enumerate(_STAGES):
                if stage == 1 and layer == 9:
                    continue  # four and five curves are legible, six are not
                dashed, hue = stage < 2, color if stage != 1 else 2
                title = f"layer {layer}, {label}"
                eta = run.arrays[f"eigenvalues_{layer}"][stage]
                shown = eta > 0
                spectra.append(Line(title, modes[shown], eta[shown], dashed=dashed, color=hue))
                curve = run.arrays[f"power_{layer}"][stage]
                power.append(Line(title, modes, curve, dashed=dashed, color=hue))
        title = f"Figure {number}, {name} model ({100 * run['test_accuracy']:.1f} %)"
        panels.append(Panel(f"{title}: spectrum", spectra, "mode", "eigenvalue", "xy"))
        panels.append(Panel(f"{title}: target", power, "mode", "cumulative power", "x"))
    return panels


def _figure_6(runs: Results) -> list[Panel]:
    place, text = np.arange(1, len(runs) + 1), [setting_text(run) for run in runs]
    accuracies = [
        Points(name, place, 100 * runs[f"{key}_accuracy"], text)
        for key, name in (("train", "training set"), ("test", "test set"))
    ]
    averages = [
        Points(name, place, profiles(runs, f"target_{key}").mean(1), text)
        for key, name in (("train", "training set"), ("test", "test set"))
    ]
    x = "run, by test accuracy"
    return [
        Panel("Figure 6a", accuracies, x, "accuracy in %"),
        Panel("Figure 6b", averages, x, "layer-averaged CKA with target"),
    ]


def _table_1(runs: Results) -> list[Panel]:
    if len(runs) < 3:
        return []
    rows = [_WORDS.get(row, row.replace("_", " ")) for row in ROWS]
    columns = [column.replace("_", " ") for column in COLUMNS]
    tables = {f"over {len(runs)} runs": coefficients(runs), "published": PUBLISHED}
    return [
        Panel(f"Table I, {name}", [Heat(table, rows, columns, diverging=True)])
        for name, table in tables.items()
    ]
