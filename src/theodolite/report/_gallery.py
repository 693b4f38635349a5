"""Many records on one page: filter, sort, scatter and compare them."""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from theodolite.errors import RecordError
from theodolite.records import FAMILIES, Record, Run, latest_numbers, load_record, load_run
from theodolite.report.pages import (
    DARK,
    LIGHT,
    content_policy,
    css_variables,
    json_for_html,
    plain,
    render,
    static_text,
)

__all__ = ["Exhibit", "find_exhibits", "write_gallery"]

_FILE = "record.json"
_DIGITS = 5


@dataclass(frozen=True)
class Exhibit:
    """A record as the gallery shows it.

    Args:
        name: what the user calls it, or its folder.
        kind: "survey", "history" or "study".
        folder: where it lies, below the folder that was asked for.
        settings: short words by name: data, labels, the point of a sweep.
        numbers: numbers by name; of a survey or history, its last moment.
        profiles: family -> its headline by layer.
        damage: why it cannot be read; "" if it can.
    """

    name: str
    kind: str
    folder: str
    settings: Mapping[str, str] = field(default_factory=dict)
    numbers: Mapping[str, float] = field(default_factory=dict)
    profiles: Mapping[str, Sequence[float]] = field(default_factory=dict)
    damage: str = ""


def find_exhibits(root: str | os.PathLike[str]) -> list[Exhibit]:
    """Every record below a folder; the steps of a history belong to it.

    A damaged record is listed with what is wrong with it: it must not hide the others.

    Raises:
        RecordError: If there is none at all.
    """
    base = Path(root)
    folders = [path.parent for path in sorted(base.rglob(_FILE)) if "steps" not in path.parts]
    if not folders:
        raise RecordError(f"{base}: expected records below this folder, found none")
    return [_exhibit(folder, base) for folder in folders]


def write_gallery(exhibits: Sequence[Exhibit], path: str | os.PathLike[str]) -> Path:
    """Write one page that needs no other file.

    Returns:
        The path of the file.
    """
    scripts = [static_text("plotly-cartesian.min.js"), static_text("gallery.js")]
    style = f":root{{{css_variables(LIGHT)}}}:root[data-theme=dark]{{{css_variables(DARK)}}}"
    text = render(
        "gallery.html.j2",
        policy=content_policy(scripts),
        scripts=scripts,
        style=style + static_text("gallery.css"),
        columns=_columns(exhibits),
        rows=[_row(exhibit, _columns(exhibits)) for exhibit in exhibits],
        data=json_for_html(_payload(exhibits)),
    )
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text, encoding="utf-8")
    return target


def _exhibit(folder: Path, base: Path) -> Exhibit:
    place = str(folder.relative_to(base))
    try:
        record = load_record(folder)
        if record.contents.get("kind") == "study":
            return _study(record, place)
        return _run(load_run(folder), place)
    except RecordError as error:
        return Exhibit(place, "damaged", place, damage=str(error))


def _study(record: Record, place: str) -> Exhibit:
    contents = record.contents
    settings = {
        "size": str(contents["size"]),
        "seed": str(contents["seed"]),
        **{str(name): str(value) for name, value in contents["point"].items()},
    }
    return Exhibit(str(contents["study"]), "study", place, settings, contents["numbers"])


def _run(run: Run, place: str) -> Exhibit:
    head = run.head.contents
    kind = "history" if run.is_history else "survey"
    if not run.steps:
        return Exhibit(run.name or place, kind, place, damage="the history has no step yet")
    last = latest_numbers(run).record.contents
    data: Mapping[str, Any] = last.get("data", {})
    settings = {name: str(data[name]) for name in ("split", "label_source", "n") if name in data}
    settings |= {"layers": str(len(last["layers"]))}
    if run.is_history:
        settings |= {"step": str(last["step"])}
    profiles = {key: _profile(last, key) for key in FAMILIES}
    shown = {key: values for key, values in profiles.items() if values}
    numbers = {f"{FAMILIES[key].heading}, last layer": v[-1] for key, v in shown.items()}
    numbers |= {str(row["measure"]): row["value"] for row in last["rows"] if row["layer"] is None}
    name = run.name or str(head.get("name") or place)
    return Exhibit(name, kind, place, settings, numbers, shown)


def _profile(contents: Mapping[str, Any], family: str) -> list[float]:
    headline = FAMILIES[family].headline
    return [
        float(row["value"])
        for row in contents["rows"]
        if row["family"] == family and row["measure"] == headline and row["layer"] is not None
    ]


def _columns(exhibits: Sequence[Exhibit]) -> list[str]:
    settings = dict.fromkeys(name for item in exhibits for name in item.settings)
    numbers = dict.fromkeys(name for item in exhibits for name in item.numbers)
    return [*settings, *numbers]


def _row(exhibit: Exhibit, columns: Sequence[str]) -> dict[str, Any]:
    values = {**exhibit.settings, **{k: _shown(v) for k, v in exhibit.numbers.items()}}
    return {
        "name": plain(exhibit.name),
        "kind": exhibit.kind,
        "folder": plain(exhibit.folder),
        "damage": plain(exhibit.damage) if exhibit.damage else "",
        "cells": [plain(values[name]) if name in values else "" for name in columns],
    }


def _payload(exhibits: Sequence[Exhibit]) -> dict[str, Any]:
    return {
        "palettes": {"light": LIGHT, "dark": DARK},
        "families": [
            {"key": key, "title": f"{family.title}: {family.heading}"}
            for key, family in FAMILIES.items()
        ],
        "runs": [
            {
                "name": plain(item.name),
                "settings": {plain(k): plain(v) for k, v in item.settings.items()},
                "numbers": {plain(k): _number(v) for k, v in item.numbers.items()},
                "profiles": {k: [_number(v) for v in line] for k, line in item.profiles.items()},
            }
            for item in exhibits
        ],
    }


def _number(value: float) -> float | None:
    return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None


def _shown(value: float) -> str:
    return f"{value:.4g}" if math.isfinite(value) else "undefined"
