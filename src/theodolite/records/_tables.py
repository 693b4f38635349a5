"""Runs as tables: a data frame for analysis, columns of text for the terminal."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from theodolite.records._estimates import CHANCE, Estimate
from theodolite.records._files import Record
from theodolite.records._runs import Run
from theodolite.records._words import FAMILIES, MEASURES, PROBES

if TYPE_CHECKING:
    import pandas as pd


_TRUTH, _TRUTH_HEADING = "cka_truth", "CKA to truth"  # if true labels were given with truth=
_COLUMNS = ("layer", "family", "measure", "value", "error", "null_mean", "null_sd", "z_score")
_ROUNDING = 1e-12  # smaller numbers are rounding errors of 0
_WHOLE = "(model)"  # a model that is a single layer; its name is empty
_LAST = ("method", "n", "read_at", "reason")


def frame_of(runs: Sequence[Run], *, names: bool = False) -> "pd.DataFrame":
    """One row per layer, family and measure, and per step and run if there are several."""
    history = any(run.is_history for run in runs)
    rows = [
        ({"run": run.name} if names else {})
        | ({"step": record.contents["step"]} if history else {})
        | _tabled(row)
        for run in runs
        for record in run.steps
        for row in record.contents["rows"]
    ]
    first = (["run"] if names else []) + (["step"] if history else [])
    return table_of(rows, [*first, *_COLUMNS, *_LAST])


def table_of(rows: Iterable[Mapping[str, Any]], columns: list[str] | None = None) -> "pd.DataFrame":
    """A data frame; invalid characters in names (half of a surrogate pair) are escaped."""
    import pandas as pd

    encoded = [{key: _encodable(value) for key, value in row.items()} for row in rows]
    return pd.DataFrame(encoded, columns=columns)


def _tabled(row: Mapping[str, Any]) -> dict[str, Any]:
    keys = ("value", "error", "null_mean", "null_sd")
    numbers = Estimate(row["value"], row["error"], row["null_mean"], row["null_sd"])
    floats = {key: math.nan if row[key] is None else float(row[key]) for key in keys}
    return {**row, **floats, "z_score": numbers.z_score}


def _encodable(value: Any) -> Any:
    return value.encode(errors="backslashreplace").decode() if isinstance(value, str) else value


def layer_table(
    record: Record, *, steps: Mapping[str, int | None] | None = None
) -> tuple[list[str], bool]:
    """Lines of the headline numbers by layer, and whether they have chance levels in brackets."""
    contents = record.contents
    columns, found = _headlines(contents), _readable(contents["rows"])
    if any(measure == _TRUTH for _, measure in found):
        columns[_TRUTH] = (_TRUTH_HEADING, "kernel")
    shown = (row for (_, m), row in found.items() if m in columns and not math.isnan(row["value"]))
    chance = any(row["null_mean"] is not None for row in shown)
    table = _heads(columns)
    if steps is not None:
        table.append(["at step", *(str(steps.get(key, "")) for _, key in columns.values())])
    for name in (layer["name"] for layer in contents["layers"]):
        table.append([name or _WHOLE, *(_cell(found.get((name, m))) for m in columns)])
    return _aligned(table), chance


def _readable(rows: Sequence[Mapping[str, Any]]) -> dict[tuple[str | None, str], Mapping[str, Any]]:
    """Rows by layer and measure; misalignments that say nothing count as undefined."""
    few = layers_with_few_filters(rows)
    known = {(row["layer"], row["measure"]): row for row in rows}
    for layer in few:
        key = (layer, "relative_misalignment")
        known[key] = {**known[key], "value": math.nan}
    return known


def probed_examples(contents: Mapping[str, Any]) -> str:
    """Number of examples measured; "up to 1,500" if some family used fewer.

    Examples:
        >>> probed_examples({"data": {"probe": 1500}, "routes": {"tangent": {"n": 200}}})
        'up to 1,500'
    """
    count = contents["data"].get("probe") or contents["data"].get("n") or 0
    used = (route.get("n") for route in contents.get("routes", {}).values())
    fewer = any(isinstance(n, int) and n < count for n in used)
    return f"{'up to ' if fewer else ''}{count:,}"


def layers_with_few_filters(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Layers whose filters are too few or too isotropic: even aligned ones look like chance."""
    numbers = {(row["measure"], row["layer"]): row for row in rows if row["family"] == "covariance"}
    found = []
    for (measure, layer), row in numbers.items():
        names = ("misalignment_floor", "random_basis_misalignment")
        floor, random = (numbers.get((name, layer), {}).get("value") for name in names)
        if measure != "relative_misalignment" or layer is None or floor is None or random is None:
            continue
        if floor >= random * (1 - CHANCE * (row["null_sd"] or 0.0)):
            found.append(layer)
    return found


def _headlines(contents: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Linear probes and headline measures that the rows have -> heading and family."""
    measured = {row["measure"] for row in contents["rows"]}
    probes = {name: (family.heading, family.key) for name, family in PROBES.items()}
    headlines = {family.headline: (family.heading, family.key) for family in FAMILIES.values()}
    if FAMILIES["kernel"].headline not in measured:  # data without labels
        headlines["cka_input"] = (MEASURES["cka_input"], "kernel")
    return {name: head for name, head in (probes | headlines).items() if name in measured}


def differences_table(first: Record, second: Record) -> tuple[list[str], list[list[str]]]:
    """Headline numbers of the second record minus those of the first, for layers of equal names.

    Returns:
        Lines of the table, and for each record the layers that only it has.
    """
    pair = first.contents, second.contents
    known = [_readable(contents["rows"]) for contents in pair]
    layers = [[layer["name"] for layer in contents["layers"]] for contents in pair]
    columns = {m: head for m, head in _headlines(pair[0]).items() if m in _headlines(pair[1])}
    table = _heads(columns)
    for name in layers[0]:
        if name in layers[1]:
            keys = [(name, measure) for measure in columns]
            differences = [_difference(known[0].get(key), known[1].get(key)) for key in keys]
            table += [[name or _WHOLE, *differences]] * any(differences)
    alone = [
        [name or _WHOLE for name in own if name not in other]
        for own, other in (layers, reversed(layers))
    ]
    return _aligned(table), alone


def _difference(first: Mapping[str, Any] | None, second: Mapping[str, Any] | None) -> str:
    if first is None or second is None:
        return ""
    value = second["value"] - first["value"]
    if math.isnan(value):
        return "undefined"
    text = f"{100 * value:+.0f} points" if first["measure"] in PROBES else f"{value:+.3g}"
    return text.replace("-", "−")


def _heads(columns: Mapping[str, tuple[str, str]]) -> list[list[str]]:
    """Two lines: the first word of every heading, and its other words."""
    heads = [heading.partition(" ") for heading, _ in columns.values()]
    return [["", *(head[0] for head in heads)], ["layer", *(head[2] for head in heads)]]


def _aligned(table: Sequence[Sequence[str]]) -> list[str]:
    """Lines with the first column on the left, and all others on the right."""
    first, *others = (max(map(len, column)) for column in zip(*table, strict=True))
    return [
        "  ".join([row[0].ljust(first), *map(str.rjust, row[1:], others)]).rstrip() for row in table
    ]


def _cell(row: Mapping[str, Any] | None) -> str:
    """A number with its chance level in brackets; the level is 0 if 0 is within its spread."""
    if row is None:
        return ""
    value, chance = row["value"], row["null_mean"]
    share = row["measure"] in PROBES

    def shown(number: float, digits: int) -> str:
        number = 0.0 if abs(number) < _ROUNDING else number
        return f"{100 * number:.0f} %" if share else f"{number:.{digits}g}".replace("-", "−")

    if math.isnan(value):
        return "undefined"
    text = shown(value, 3)
    if chance is None or math.isnan(chance):
        return text
    near = abs(chance) <= (row["null_sd"] or 0.0)
    return f"{text} ({shown(0.0 if near else chance, 2)})"
