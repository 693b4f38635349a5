"""Numbers beside the charts: a table of layers, numbers of the whole model, what is missing."""

import json
from collections.abc import Sequence
from typing import Any

from theodolite.advice.captions import digest_words, layer_count, missing_reason, with_chance
from theodolite.advice.reasons import (
    TOO_FEW_FILTERS,
    in_layers,
    missing_in,
    not_shown,
    shared_words,
    words_of,
)
from theodolite.records import FAMILIES, Group, finite, listed, plain, shown_as
from theodolite.report._depth import Chart, headlines, is_shortcut

# Names and meanings of the measures of the whole model.
_WHOLE = {
    "peak_layer": ("peak layer", "the layer with the highest tangent alignment, counted from 1"),
    "equilibrium_layer": (
        "predicted peak",
        "the layer, counted from 1, that theory predicts for the peak (Lou et al. 2022)",
    ),
    "omega": (
        "Ω, all parameters",
        "agreement of all gradients: 1 if they are equal, 0 if they are unrelated",
    ),
    "in_class_omega": ("Ω within classes", "the same among examples of one class"),
    "omega_contrast": ("gradient contrast", "Ω within classes minus Ω of all examples"),
    "logit_omega_contrast": (
        "logit contrast", "the same for gradients with respect to the outputs"
    ),
    "loss": ("loss", "mean loss on the examples"),
    "held_out_loss": ("held-out loss", "mean loss on the held-out sequences"),
    "carried_over": (
        "carried over",
        "fall of the held-out loss divided by the fall of the training loss, since the first"
        " measurement",
    ),
    "accuracy": (
        "accuracy",
        "share of these examples that the network predicts correctly; the fit is"
        " (accuracy − chance) / (1 − chance)",
    ),
    "held_out_accuracy": ("held-out accuracy", "the same share on held-out examples"),
    "balanced_accuracy": ("balanced accuracy", "mean of the accuracies of the classes"),
    "held_out_balanced_accuracy": (
        "held-out balanced accuracy", "the same mean on held-out examples"
    ),
    "shift_accuracy": (
        "shift of held-out inputs",
        "accuracy of a linear probe that separates held-out from training inputs",
    ),
    "input_neighbour_accuracy": (
        "nearest neighbours on raw inputs",
        "leave-one-out accuracy of nearest neighbours among the raw inputs, without the network",
    ),
    "input_probe_accuracy": (
        "linear probe on raw inputs",
        "leave-one-out accuracy of a linear probe of the raw inputs, without the network",
    ),
    "r2": ("R²", "share of the variance of the targets that the outputs explain"),
    "held_out_r2": ("held-out R²", "the same share on held-out examples"),
    "label_accuracy": ("label accuracy", "share of labels that are predicted correctly"),
    "held_out_label_accuracy": (
        "held-out label accuracy", "the same share on held-out examples"
    ),
    "input_probe_r2": (
        "R² of a linear probe on raw inputs",
        "share of the variance of the targets that a linear probe of the raw inputs explains,"
        " without the network",
    ),
}  # fmt: skip


def table_of(group: Group, charts: Sequence[Chart]) -> dict[str, Any]:
    """A row for each layer, a column for each headline, a number for each run in a cell."""
    types = {
        layer["name"]: "" if layer.get("role") == "input" else str(layer.get("type", ""))
        for layer in group.runs[0].run.head.contents.get("layers", [])
    }
    states = [chart.at(group.steps[-1])["traces"] for chart in charts]
    rows = []
    for place, layer in enumerate(group.layers):
        cells = []
        for chart, traces in zip(charts, states, strict=True):
            shown = [i for i, trace in enumerate(chart.traces) if trace.step is None]
            cells.append([_cell(chart, i, place, traces[i]) for i in shown])
        if any(entry["text"] != "–" for cell in cells for entry in cell):
            kind = f"{plain(types[layer])}, shortcut" if is_shortcut(layer) else types[layer]
            rows.append({"place": place, "layer": plain(layer), "type": kind, "cells": cells})
    runs = [plain(run.name) for run in group.runs]
    names = [[trace.name for trace in chart.traces if trace.step is None] for chart in charts]
    lines = f"{listed(runs)}." if len(runs) > 1 else ""
    for chart, named in zip(charts, names, strict=True):
        more = named[len(runs) :]
        lines += f" In {chart.words.title} also: {'; '.join(more)}." if lines and more else ""
    columns = [(chart.words.title, chart.family) for chart in charts]
    return {"rows": rows, "columns": columns, "lines": lines}


def _cell(chart: Chart, number: int, place: int, state: dict[str, Any]) -> dict[str, Any]:
    run, step, rows = state["where"]
    value = state["y"][place]
    return {
        "key": f"{number}-{place}",
        "text": state["text"][place],
        "value": "" if value is None else value,
        "where": "" if rows[place] is None else f"{run},{step},{rows[place]}",
        "chance": (state.get("chance") or [""] * (place + 1))[place],
        "within": bool((state.get("within") or [0] * (place + 1))[place]),
        "name": chart.traces[number].name,
    }


def notes_of(group: Group) -> list[str]:
    """The reasons for missing numbers, one line each, with the number of layers."""
    present = {family for family, _, _ in headlines(group)}
    hidden: dict[str, list[str]] = {}  # families with one reason share a line
    for key, words in FAMILIES.items():
        if key not in present:
            hidden.setdefault(missing_reason(group, key), []).append(words.title)
    notes = [not_shown(listed(titles), why) for why, titles in hidden.items()]
    said: dict[tuple[str, str], list[str]] = {}
    for run in group.runs:
        for family, measure, heading in headlines(group):
            for layer in group.layers:
                row = run.last.row(family, measure, layer) or {}
                if not finite(row.get("value")) and row.get("reason"):
                    shared = shared_words(run.last.note(family, measure, layer))
                    why = shared or plain(str(row["reason"]))
                    said.setdefault((heading, why), []).append(layer)
        for layer in run.last.layers_with_few_filters:
            said.setdefault((FAMILIES["covariance"].heading, TOO_FEW_FILTERS), []).append(layer)
    notes += [
        missing_in(heading, in_layers(layers, layer_count(group)), why)
        for (heading, why), layers in said.items()
    ]
    cuts = [(run.name, run.last.record.contents.get("cut")) for run in group.runs]
    notes += [
        f"{plain(name)}: {words_of(cut)}." if len(cuts) > 1 else f"{words_of(cut)}."
        for name, cut in cuts
        if cut
    ]
    old = {run.name: digest_words(run.run.head, *run.run.steps) for run in group.runs}
    return notes + [
        f"{plain(name)}: {words}." if len(old) > 1 else f"{words[0].upper()}{words[1:]}."
        for name, words in old.items()
        if words
    ]


def whole_numbers(
    group: Group, family: str, step: int | None = None
) -> list[tuple[str, list[tuple[str, str, str, str]]]]:
    """Numbers of the whole model: run, then name, number, source and meaning of each."""
    found = []
    for run in group.runs:
        numbers = []
        for measure in group.whole_model_measures(family):
            moment = run.latest_with(step, family, measure)
            index = moment.index(family, measure, None)
            name, meaning = _WHOLE.get(measure, (measure.replace("_", " "), ""))
            if index is not None:
                row = moment.record.contents["rows"][index]
                value = row["value"]
                if measure.endswith("accuracy") and finite(row.get("null_mean")):
                    meaning = with_chance(meaning, measure, row["null_mean"])
                source = {
                    "run": run.index,
                    "step": moment.position,
                    "path": ["rows", index, "value"],
                }
                count = measure == "peak_layer" and float(value).is_integer()
                number = f"{value:.0f}" if count else shown_as(measure, value)
                numbers.append((name, number, json.dumps(source), meaning))
        if numbers:
            found.append((plain(run.name), numbers))
    return found
