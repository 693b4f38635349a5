"""Records as the terminal shows them: a row per layer and a column per family, or JSON."""

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from theodolite.records import Record, Run, latest_numbers

__all__ = ["HEADLINES", "print_headlines", "print_json", "print_latest", "run_document", "value_of"]

# The measure that stands for each family, and its heading.
HEADLINES = {
    "representation": ("alignment_area", "label\nalignment"),
    "covariance": ("relative_misalignment", "misalignment\n/ random"),
    "kernel": ("cka_target", "CKA to\nlabels"),
    "tangent": ("tangent_alignment", "tangent\nalignment"),
    "gradient": ("omega_contrast", "gradient\ncontrast"),
}


def value_of(record: Record, measure: str, layer: str | None) -> float:
    """A number of a record; nan where it was not measured."""
    for row in record.contents["rows"]:
        if row["measure"] == measure and row.get("layer") == layer:
            return float(row["value"])
    return math.nan


def print_headlines(console: Console, record: Record, title: str) -> None:
    """One survey: a title, the five headline numbers of every layer, and notes."""
    console.print(escape(title), style="bold", highlight=False)
    console.print(_headline_table(record))
    _print_notes(console, record)
    console.print()


def print_latest(console: Console, run: Run, name: str) -> None:
    """What a run measured last, each family at the last step that took it."""
    latest = latest_numbers(run)
    step = latest.record.contents["step"]
    when = "" if step is None else f", step {step}"
    others = (f"{', '.join(families)} at step {at}" for at, families in latest.earlier.items())
    print_headlines(console, latest.record, "; ".join([f"{name}{when}", *others]))


def _headline_table(record: Record) -> Table:
    columns = _columns(record)
    table = Table(show_edge=False, pad_edge=False)
    table.add_column("layer", overflow="fold")
    for heading in columns.values():
        table.add_column(heading, justify="right")
    for layer in record.contents["layers"]:
        cells = [_shown(value_of(record, measure, layer["name"])) for measure in columns]
        table.add_row(escape(layer["name"] or "(model)"), *cells)
    return table


def _columns(record: Record) -> dict[str, str]:
    """Measure -> heading: a headline per family, and the true labels where they were given."""
    rows = record.contents["rows"]
    measured = {row["family"] for row in rows}
    columns = {}
    for family, (measure, heading) in HEADLINES.items():
        if family in measured:
            columns[measure] = heading
        if family == "kernel" and any(row["measure"] == "cka_truth" for row in rows):
            columns["cka_truth"] = "CKA to\ntruth"
    return columns


def _shown(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.3f}"


def _print_notes(console: Console, record: Record, most: int = 5) -> None:
    """Families that did not run, and warnings, one line each; equal texts once."""
    for family, sentence in record.contents["skipped"].items():
        console.print(f"[yellow]not measured[/] {family}: {escape(sentence)}")
    texts: dict[str, tuple[list[str], list[str]]] = {}
    for warning in record.contents["warnings"]:
        measures, layers = texts.setdefault(warning["text"], ([], []))
        measures.append(warning["measure"])
        layers.append(warning.get("layer") or "the model")
    for text, (measures, layers) in list(texts.items())[:most]:
        told = f"{_listed(measures)}: {text} ({_listed(layers)})"
        console.print(f"[yellow]note[/] {escape(told)}")
    if len(texts) > most:
        console.print(f"[yellow]note[/] {len(texts) - most} more in the record")


def _listed(names: list[str]) -> str:
    distinct = list(dict.fromkeys(names))
    return ", ".join(distinct[:3]) + (f" and {len(distinct) - 3} more" if len(distinct) > 3 else "")


def run_document(run: Run, files: Mapping[str, str]) -> dict[str, Any]:
    """What ``--json`` prints about a run: everything in its records but curves."""
    head = run.head.contents
    return {
        "name": run.name,
        "kind": head["kind"],
        **files,
        "data": head.get("data"),
        "config": head.get("config"),
        "layers": head.get("layers"),
        "steps": [
            {key: step.contents.get(key) for key in ("step", "rows", "skipped", "warnings")}
            for step in run.steps
        ],
    }


def print_json(document: Any) -> None:
    """Strict JSON on standard output: nan is null, infinity is text."""
    typer.echo(json.dumps(_strict(document), indent=1, allow_nan=False, ensure_ascii=False))


def _strict(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _strict(item) for key, item in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, str):
        return [_strict(item) for item in value]
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, float) and math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value
