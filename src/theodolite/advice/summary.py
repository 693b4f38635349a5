"""The record of a survey on a terminal: answers, the table of layers, what is missing and why."""

from collections.abc import Mapping, Sequence
from typing import Any

from theodolite.advice.reasons import shared_words
from theodolite.records import (
    FAMILIES,
    Answer,
    Note,
    Record,
    layer_table,
    listed,
    unreadable_layers,
)

__all__ = ["summary_text"]


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
    lines += [f"{family}: not measured, {why}" for family, why in contents["skipped"].items()]
    total = sum(layer.get("role") != "input" for layer in contents["layers"])
    few, others = unreadable_layers(contents["rows"]), []
    for entry in contents["warnings"]:
        if entry.get("note") == Note.FEW_FILTERS.value and entry["layer"] is not None:
            few.append(entry["layer"])
        else:
            others.append(entry)
    if few:
        heading, which = FAMILIES["covariance"].heading, _share(list(dict.fromkeys(few)), total)
        lines.append(f"{heading} undefined in {which}: {shared_words(Note.FEW_FILTERS)}")
    lines += _notes(others, total)
    return "\n".join(line.rstrip() for line in lines)


def _share(layers: Sequence[str], total: int) -> str:
    """Layers within a note: "6 of 20 layers (a, b, c and 3 more)"."""
    names = listed((name or "(model)" for name in layers), most=3)
    return f"{len(layers)} of {total} layers ({names})"


def _notes(warnings: Sequence[Mapping[str, Any]], total: int, most: int = 5) -> list[str]:
    """One line for each warning, with its measures and layers."""
    said: dict[str, tuple[list[str], list[str | None]]] = {}
    for entry in warnings:
        text = shared_words(entry.get("note")) or entry["text"]
        measures, layers = said.setdefault(text, ([], []))
        measures.append(entry["measure"])
        layers.append(entry["layer"])
    lines = []
    for text, (measures, layers) in list(said.items())[:most]:
        names = [name for name in dict.fromkeys(layers) if name is not None]
        where = f" in {_share(names, total)}" if names else ""
        lines.append(f"note: {listed(dict.fromkeys(measures), 3)}{where}: {text}")
    return lines + [f"{len(said) - most} more notes in the record"] * (len(said) > most)
