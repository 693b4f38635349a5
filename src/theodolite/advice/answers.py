"""From the numbers of a survey record to its answers; no torch."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf, isfinite, log, prod
from typing import Any

import numpy as np

from theodolite.advice.findings import (
    CLEAR,
    LABELED,
    REPEATED,
    CarryOver,
    FitOnTraining,
    GroupContrast,
    HeldOutFit,
    LastLayer,
    LayerProbes,
    Measured,
    Unlabelled,
    beyond_best,
    carry_over,
    compare_layers,
)
from theodolite.advice.inputs import CALIBRATED, FitEvidence, InputFinding, judge_inputs
from theodolite.advice.reasons import with_options
from theodolite.advice.sentences import Interface, worded
from theodolite.records import FAMILIES, MEMORISED, NORMAL, Record, require_class

Row = Mapping[str, Any]
Rows = Mapping[tuple[str | None, str], Row]
_TRAINED_ON = ("train", "unknown", None)  # splits that may have been trained on
_PREDICTED = (InputFinding.PREDICT, InputFinding.FIRST_LAYER_PREDICTS)
_INPUT = "input"  # role of the layer that is the raw input


def answers_of(
    contents: Mapping[str, Any],
    arrays: Mapping[str, np.ndarray] | None = None,
    interface: Interface = Interface.PYTHON,
) -> list[dict[str, Any]]:
    """The answers of a survey, as plain data for its record.

    Args:
        contents: contents of a survey record: rows, layers, data and probes.
        arrays: arrays of the same record, with the scores of the linear probes for each example.
        interface: whose arguments the advice names.

    Returns:
        Answers as dictionaries, in the order in which a report prints them.

    Examples:
        >>> answers_of({"rows": [], "layers": [], "data": {"task": "unlabeled"}})[0]["text"]
        'Undecided: the data have no labels, so nothing is compared with labels.'
    """
    require_class(Interface, interface=interface)
    return [worded(finding, interface).to_entry() for finding in findings_of(contents, arrays)]


def worded_for(record: Record, interface: Interface) -> Record:
    """The record of a survey with advice and notes for an interface, to be shown and not saved.

    Args:
        record: A survey. Answers in other words than those of this version stay as they are.
        interface: Whose arguments the advice names.

    Returns:
        The same record with other words in its answers and notes.

    Examples:
        >>> contents = {"rows": [], "layers": [], "data": {"task": "unlabeled"}}
        >>> record = Record({**contents, "answers": answers_of(contents)}, {})
        >>> worded_for(record, Interface.COMMAND).contents["answers"][0]["question"]
        'task'
    """
    require_class(Record, record=record)
    require_class(Interface, interface=interface)
    contents = dict(record.contents)
    if contents.get("answers") == answers_of(contents, record.arrays):
        contents["answers"] = answers_of(contents, record.arrays, interface)
    if interface is Interface.COMMAND:
        kinds = contents.get("skipped_notes") or {}
        contents["skipped"] = {
            family: with_options(kinds.get(family), why)
            for family, why in (contents.get("skipped") or {}).items()
        }
        contents["warnings"] = [_with_options(entry) for entry in contents.get("warnings") or ()]
    return replace(record, contents=contents)


def _with_options(entry: Mapping[str, Any]) -> dict[str, Any]:
    """A note of a record, which names options of the command."""
    said = {key: entry[key] for key in ("text", "reason") if isinstance(entry.get(key), str)}
    return {**entry, **{key: with_options(entry.get("note"), text) for key, text in said.items()}}


def findings_of(
    contents: Mapping[str, Any], arrays: Mapping[str, np.ndarray] | None = None
) -> list[Any]:
    """The typed findings behind the answers: about the task, the layers, the groups.

    Args:
        contents: contents of a survey record: rows, layers, data and probes.
        arrays: arrays of the same record.

    Returns:
        Findings in the order of the answers.

    Examples:
        >>> findings_of({"rows": [], "layers": [], "data": {"task": "unlabeled"}})
        [Unlabelled(one_label=False)]
    """
    require_class(Mapping, contents=contents, arrays={} if arrays is None else arrays)
    for name, kind in {"rows": list, "layers": list, "data": Mapping}.items():
        require_class(kind, **{f"contents[{name!r}]": contents.get(name)})
    rows = {(row["layer"], row["measure"]): row for row in contents["rows"]}
    layers = [layer["name"] for layer in contents["layers"] if layer.get("role", "") != _INPUT]
    data = contents["data"]
    if sum(map(bool, data.get("class_counts") or ())) == 1:
        return [Unlabelled(one_label=True)]
    task: CarryOver | FitOnTraining | HeldOutFit | LastLayer | Unlabelled | None = (
        _carried_gain(rows, data)
        or _fit(rows, contents, layers)
        or _last_layer(rows, layers, contents)
    )
    if task is None and data.get("task") == "unlabeled":
        task = Unlabelled()
    verdict = task.verdict if isinstance(task, CarryOver) else None
    probes = _probes(rows, layers, contents, arrays or {}, memorised=verdict in MEMORISED)
    found = [task, probes, _groups(rows, layers, data)]
    return [finding for finding in found if finding is not None]


def _goal(data: Mapping[str, Any]) -> str:
    several = data.get("task") == "multi-label"
    return "targets" if data.get("num_classes", 0) is None and not several else "labels"


def _carried_gain(rows: Rows, data: Mapping[str, Any]) -> CarryOver | None:
    """For a language model in training: the part of its fall in loss that carries over."""
    share = rows.get((None, "carried_over"))
    if share is None or data.get("split") not in _TRAINED_ON:
        return None
    own, other = (rows[None, name] for name in ("loss", "held_out_loss"))
    losses = (own["value"], own["n"], other["value"], other["n"])
    value = float("nan") if share["value"] is None else share["value"]
    half = NORMAL * (share["error"] or 0.0)
    return CarryOver(None, None, value, value - half, value + half, losses=losses)


def _measured(row: Row, data: Mapping[str, Any]) -> Measured:
    return Measured(row["measure"].removeprefix("held_out_"), row["value"], row["null_mean"],
                    row["n"], row["error"] or 0.0, _noun(data))  # fmt: skip


def _noun(data: Mapping[str, Any]) -> str:
    """What probes and accuracies count."""
    return "positions" if data.get("unit") == "token" else "examples"


def _raw_input(contents: Mapping[str, Any]) -> str | None:
    """The name of the row of the raw inputs; a layer may be called "input" too."""
    names = (layer["name"] for layer in contents["layers"] if layer.get("role", "") == _INPUT)
    return next(names, None)


def _row_of_input(rows: Rows, contents: Mapping[str, Any], measure: str) -> Row | None:
    raw = _raw_input(contents)
    return None if raw is None else rows.get((raw, measure))


def _fit(
    rows: Rows, contents: Mapping[str, Any], layers: Sequence[str]
) -> CarryOver | FitOnTraining | HeldOutFit | None:
    """How well the network does its task, on these examples and on held-out ones."""
    data = contents["data"]
    measures = ("balanced_accuracy", "accuracy", "r2", "label_accuracy")
    known = (rows.get((None, measure)) for measure in measures)
    own = next((row for row in known if row is not None), None)
    if own is None or not isfinite(own["value"]) or not own["null_mean"] < 1:
        return None
    train = _measured(own, data)
    if data.get("split") not in _TRAINED_ON:
        drawn = data.get("num_classes") if data.get("unit") == "token" else None
        return HeldOutFit(train, drawn)
    other = rows.get((None, f"held_out_{own['measure']}"))
    if other is not None and isfinite(other["value"]) and other["null_mean"] < 1:
        shift, left_out = _shift(rows), _left_out(data)
        return carry_over(train, _measured(other, data), shift=shift, left_out=left_out)
    repeated, left_out = _repeated(data), _left_out(data)
    right = rows.get((None, "accuracy"))
    if right is None:
        line = _row_of_input(rows, contents, "probe_r2") or rows.get((None, "input_probe_r2"))
        r2 = None if line is None else line["value"]
        return FitOnTraining(train, input_r2=r2, repeated=repeated, left_out=left_out)
    evidence = _evidence(rows, contents, layers, right)
    judged = InputFinding.UNDEFINED
    if evidence is not None and train.n >= CALIBRATED and not left_out:
        judged = judge_inputs(evidence)
        if judged in _PREDICTED and repeated > REPEATED:  # other examples have the same inputs
            judged = InputFinding.UNDEFINED
    return FitOnTraining(train, judged, evidence, repeated=repeated, left_out=left_out)


def _repeated(data: Mapping[str, Any]) -> float:
    return float(data.get("repeated", 0) / max(data.get("probe", 1), 1))


def _left_out(data: Mapping[str, Any]) -> int:
    return sum(data.get("left_out", {}).values())


def _shift(rows: Rows) -> float | None:
    """Accuracy of the probe that separates held-out inputs; None where it is at chance."""
    row = rows.get((None, "shift_accuracy"))
    if row is None or row["value"] <= row["null_mean"] + CLEAR * row["null_sd"]:
        return None
    return float(row["value"])


def _evidence(
    rows: Rows, contents: Mapping[str, Any], layers: Sequence[str], own: Row
) -> FitEvidence | None:
    """Accuracies of the raw inputs, the first layer and the network."""
    near, line = (
        rows.get((None, f"input_{measure}")) or _row_of_input(rows, contents, measure)
        for measure in ("neighbour_accuracy", "probe_accuracy")
    )
    in_layers = (rows.get((name, "neighbour_accuracy")) for name in layers)
    first = next((row for row in in_layers if row is not None), None)
    if near is None or line is None or first is None:
        return None
    size = max(prod(contents["data"].get("input_shape") or ()), 1)
    numbers = (near["value"], line["value"], first["value"])
    return FitEvidence(own["value"], own["null_mean"], own["n"], size, *numbers)


def _last_layer(rows: Rows, layers: Sequence[str], contents: Mapping[str, Any]) -> LastLayer | None:
    """The headline of the last layer, used if the record has no accuracy of the network."""
    data = contents["data"]
    if data.get("outputs", 0) is None:  # features without a model
        return None
    for family in LABELED:
        headline = FAMILIES[family].headline
        known = [name for name in layers if _finite(rows.get((name, headline)))]
        if not known:
            continue
        row = rows[known[-1], headline]
        chance, spread = row["null_mean"], row["null_sd"]
        drawn = chance is not None and spread
        return LastLayer(
            family,
            known[-1],
            row["value"],
            chance if drawn else None,
            (row["value"] - chance) / spread if drawn else inf,
            trained_on=data.get("split") in _TRAINED_ON,
            goal=_goal(data),
            losses=_losses(rows, contents),
            has_held_out=data.get("held_out") is not None,
        )
    return None


def _finite(row: Row | None) -> bool:
    return row is not None and isfinite(row["value"])


def _losses(rows: Rows, contents: Mapping[str, Any]) -> tuple[float, float] | None:
    """The loss and its chance level; None if the loss is not a cross-entropy of classes."""
    data, loss = contents["data"], rows.get((None, "loss"))
    default = contents.get("config", {}).get("loss") in {None, "default", "cross_entropy"}
    single = data.get("task") in {None, "classification", "sequence"}
    classes = data.get("num_classes")
    if not (default and single and classes and loss and isfinite(loss["value"])):
        return None
    return loss["value"], log(classes)


def _probes(
    rows: Rows,
    layers: Sequence[str],
    contents: Mapping[str, Any],
    arrays: Mapping[str, np.ndarray],
    *,
    memorised: bool,
) -> LayerProbes | None:
    """Linear probes of the layers, compared example by example if the record has their scores."""
    data, kept = contents["data"], contents.get("probes") or {}
    measures = ("probe_accuracy", "probe_r2")
    measure = next((m for m in measures if any(_finite(rows.get((x, m))) for x in layers)), None)
    if measure is None:
        return None
    found = {name: rows[name, measure] for name in layers if _finite(rows.get((name, measure)))}
    values = {name: row["value"] for name, row in found.items()}
    raw = _row_of_input(rows, contents, measure) or rows.get((None, f"input_{measure}"))
    raw = raw if _finite(raw) else None
    shares = measure == "probe_accuracy"
    inputs = _raw_input(contents)
    scores = _scores(kept, arrays, [*values, *([inputs] if raw is not None else [])])
    if scores is not None:
        best, alike = compare_layers(scores, shares=shares)
        input_alike = inputs in alike
        if best == inputs:
            best = max(values, key=values.__getitem__)
            alike |= {best}
    else:
        best, alike = _unpaired(found)
        gap = None if raw is None else _gap(found[best], raw)
        input_alike = gap is not None and gap <= 0
    row = found[best]
    interval = Measured("accuracy" if shares else "r2", row["value"], row["null_mean"] or 0.0,
                        row["n"], row["error"] or 0.0).interval  # fmt: skip
    chance = row["null_mean"] or 0.0
    held_out = kept.get("judged_on") == "held-out"
    return LayerProbes(
        measure,
        values,
        interval,
        chance,
        row["n"],
        best,
        tuple(name for name in values if name in alike),
        None if raw is None else raw["value"],
        input_alike,
        "held-out" if held_out else "left-out",
        kept.get("fitted_on") or row["n"] - 1,
        trained_on=not held_out and data.get("split") in _TRAINED_ON,
        memorised=memorised,
        paired=scores is not None,
        goal=_goal(data),
        model=data.get("outputs", 0) is not None,
        has_held_out=any(name.startswith("held_out_") for _, name in rows),
        above_chance=beyond_best(row["value"], chance, row["null_sd"] or row["error"] or 0.0),
        repeated=0.0 if held_out else _repeated(data),
        noun=_noun(data),
    )


def _scores(
    kept: Mapping[str, Any], arrays: Mapping[str, np.ndarray], names: Sequence[str | None]
) -> dict[str, np.ndarray] | None:
    """Scores of every example by layer; None if a layer has no scores."""
    table = arrays.get(str(kept.get("scores")))
    if table is None:
        return None
    named = dict(zip(kept.get("layers", ()), table, strict=False))
    found = {name: named[name] for name in names if name is not None and name in named}
    return found if len(found) == len(names) else None


def _gap(best: Row, other: Row) -> float:
    """Difference of two numbers minus the unpaired error of this difference."""
    spread = NORMAL * ((best["error"] or 0.0) ** 2 + (other["error"] or 0.0) ** 2) ** 0.5
    floor = 1 / best["n"]  # the error is at least one example, also at 0 % and 100 %
    return float(best["value"] - other["value"] - max(spread, floor))


def _unpaired(found: Mapping[str, Row]) -> tuple[str, set[str]]:
    best = max(found, key=lambda name: found[name]["value"])
    return best, {name for name, row in found.items() if _gap(found[best], row) <= 0}


def _groups(rows: Rows, layers: Sequence[str], data: Mapping[str, Any]) -> GroupContrast | None:
    """Whether gradients agree more within groups, such as data sources, than over all examples."""
    known = {
        name: rows[name, "omega_contrast"]
        for name in layers
        if _finite(rows.get((name, "omega_contrast")))
    }
    whole = rows.get((None, "omega_contrast"))
    if not data.get("groups") or not known or not _finite(whole):
        return None
    top = max(known, key=lambda name: known[name]["value"])
    level, spread = known[top]["null_mean"], known[top]["null_sd"]
    drawn = [row for row in known.values() if row["null_mean"] is not None]
    return GroupContrast(
        tuple(map(str, data["groups"])),
        top,
        known[top]["value"],
        None if level is None or spread is None else (level, spread),
        sum(beyond_best(row["value"], row["null_mean"], row["null_sd"] or 0.0) for row in drawn),
        len(drawn),
        rows[None, "in_class_omega"]["value"],
        rows[None, "omega"]["value"],
    )
