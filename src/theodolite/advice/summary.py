"""Records on a terminal: answers, the table of layers or of models, what is missing and why."""

from collections.abc import Mapping, Sequence
from math import isfinite, isnan
from typing import Any

from theodolite.advice.reasons import count_of, in_layers, noted, notes_in, shared_words
from theodolite.records import (
    FAMILIES,
    MEASURES,
    Answer,
    Note,
    Record,
    differences_table,
    layer_table,
    layers_with_few_filters,
    listed,
    probed_examples,
    short_count,
)

_MOST_NOTES = 5


def summary_text(
    record: Record, *, title: str, steps: Mapping[str, int | None] | None = None
) -> str:
    """The headline number of every family and layer, chance in brackets; then skipped families.

    Args:
        record: record of one survey.
        title: the first line.
        steps: family -> the step of its numbers, if steps differ.
    """
    contents = record.contents
    said = [
        line for entry in contents.get("answers") or () for line in Answer.from_entry(entry).lines()
    ]
    table, chance = layer_table(record, steps=steps)
    lines = [*said, *[""] * bool(said), title + ", chance in brackets" * chance, *table]
    reasons: dict[str, list[str]] = {}  # families with one reason share a line
    contrast = any(row["measure"] == FAMILIES["gradient"].headline for row in contents["rows"])
    for family, why in contents["skipped"].items():
        # The table shows the headline of this family, which needs features alone.
        only_features = family == "gradient" and contrast
        name = MEASURES["omega_contrast"] if only_features else family
        reasons.setdefault(why, []).append(name)
    warnings = []
    for entry in contents["warnings"]:
        if entry.get("reason") in reasons:
            reasons[entry["reason"]].append(MEASURES.get(entry["measure"], entry["measure"]))
        else:
            warnings.append(entry)
    lines += [f"{listed(families)}: not measured, {why}" for why, families in reasons.items()]
    total = sum(layer.get("role") != "input" for layer in contents["layers"])
    few, others = layers_with_few_filters(contents["rows"]), []
    for entry in warnings:
        if entry.get("note") == Note.FEW_FILTERS.value and entry["layer"] is not None:
            few.append(entry["layer"])
        else:
            others.append(entry)
    if few:
        heading, which = FAMILIES["covariance"].heading, in_layers(few, total)
        lines.append(f"{heading} undefined in {which}: {shared_words(Note.FEW_FILTERS)}")
    notes = notes_in(others, total)
    lines += [f"note: {note}" for note in notes[:_MOST_NOTES]]
    lines += [f"{len(notes) - _MOST_NOTES} more notes in the record"] * (len(notes) > _MOST_NOTES)
    return "\n".join(line.rstrip() for line in lines)


def survey_title(contents: Mapping[str, Any], name: str) -> str:
    """What was measured, on how many of which examples."""
    data = contents["data"]
    source = data.get("label_source", "given")
    labels = "" if source == "given" else f", {source} labels"
    task = "no labels" if data["task"] == "unlabeled" else data["task"]
    kind = {"train": "training ", "test": "test "}.get(data.get("split", ""), "")
    every = data.get("probe") in (None, data["n"])
    count = probed_examples(contents) + ("" if every else f" of {data['n']:,}")
    return f"{name + ': ' if name else ''}{count} {kind}examples, {task}{labels}"


def history_title(steps: Sequence[int]) -> str:
    """The step of the numbers of a history."""
    return f"step {steps[-1]}, the last of {count_of(len(steps), 'measured step')}"


def differences_text(first: Record, second: Record, names: tuple[str, str]) -> str:
    """Headline numbers of the second record minus those of the first, for layers of equal names.

    Args:
        first: record of one survey.
        second: record of another survey.
        names: names of both surveys.

    Returns:
        Text for a terminal: a table, then the layers that only one of them has.
    """
    table, alone = differences_table(first, second)
    lines = [f"{names[1]} minus {names[0]}", *table]
    for name, layers in zip(names, alone, strict=True):
        lines += [f"in {name} alone: {listed(layers, most=3)}"] * bool(layers)
    return "\n".join(lines)


def measured_text(family: str, rows: Sequence[Mapping[str, Any]]) -> str | None:
    """The headline numbers of a family, from the smallest to the largest; None without any."""
    hidden, headline = {None, *layers_with_few_filters(rows)}, FAMILIES[family].headline
    known = [row for row in rows if row["layer"] not in hidden and isfinite(row["value"])]
    if not known:
        return None
    name = headline if any(row["measure"] == headline for row in known) else rows[0]["measure"]
    values = [row["value"] for row in known if row["measure"] == name]
    if not values:
        return None
    words = FAMILIES[family].heading if name == headline else MEASURES.get(name, name)
    span = f"{min(values):.3g} to {max(values):.3g} in {count_of(len(values), 'layer')}"
    return f"{family}: {words} {span}"


def ranking_text(contents: Mapping[str, Any], answers: Sequence[Answer]) -> str:
    """The answers about a ranking, the table of its models, and its notes."""
    models, data, ties = contents["models"], contents["data"], contents.get("ties") or ()
    measure = models[0]["forecast"]["measure"]
    called = f"{contents['name']}: " if contents["name"] else ""
    title = f"{called}{data['probe']:,} labelled examples, {data['task']}"
    if data["num_classes"]:
        title += f" of {data['num_classes']} classes, chance {100 * data['chance']:.0f} %"
    shown = _per_cent if measure == "accuracy" else _number
    heads = ["", "model", "error", "forecast", "95 % interval", "last-layer probe"]
    table = [[*heads, "best layer", "parameters", "seconds"]]
    for place, model in enumerate(models, 1):
        forecast = model["forecast"]
        table.append(
            [
                "1=" if model["name"] in ties else str(place),
                model["name"],
                _number(model["error"]),
                shown(forecast["value"]),
                f"{shown(forecast['low']).removesuffix(' %')} to {shown(forecast['high'])}",
                shown(model["features"][measure]),
                model["best_layer"] or "(inputs)",
                short_count(model["parameters"]),
                f"{sum(model['seconds'].values()):.1f}",
            ]
        )
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    lines = [line for answer in answers for line in answer.lines()]
    lines += ["", title]
    lines += ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in table]
    tie = " 1= marks a tie." if ties else ""
    lines += [f"Ranked by leave-one-out error (1: always predicting the mean).{tie}"]
    lines += [f"Forecast: {measure} after fine-tuning."]
    lines += [f"{name}: not measured, {why}" for name, why in contents["problems"].items()]
    lines += noted(contents)
    return "\n".join(line.rstrip() for line in lines)


def _number(value: float) -> str:
    return "undefined" if isnan(value) else f"{value:.3f}"


def _per_cent(value: float) -> str:
    return "undefined" if isnan(value) else f"{100 * value:.1f} %"
