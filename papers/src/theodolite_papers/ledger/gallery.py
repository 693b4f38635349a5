"""Many records on one page: filter, sort, scatter and compare them."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from theodolite.errors import RecordError
from theodolite.records import (
    FAMILIES,
    Moment,
    Record,
    Run,
    latest_numbers,
    load_record,
    load_run,
    plain,
)
from theodolite.report.pages import (
    DARK,
    LIGHT,
    content_policy,
    css_variables,
    json_for_html,
    page_numbers,
    static_text,
    write_page,
)

__all__ = ["Exhibit", "find_exhibits", "write_gallery"]

_FILE = "record.json"
_DIGITS = 5


@dataclass(frozen=True)
class Exhibit:
    """A record in the gallery.

    Args:
        name: name that the user gave, or the folder.
        kind: "survey", "history" or "study".
        folder: its folder, relative to the folder of the gallery.
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
    """Every study, survey and history below a folder; the steps of a history belong to it.

    A damaged record is listed with its problem, because it must not hide the others.

    Raises:
        RecordError: If there is none at all.
    """
    base = Path(root)
    folders = [path.parent for path in sorted(base.rglob(_FILE)) if "steps" not in path.parts]
    found = [exhibit for folder in folders if (exhibit := _exhibit(folder, base)) is not None]
    if not found:
        raise RecordError(f"{base}: expected records below this folder, found none")
    return found


def write_gallery(exhibits: Sequence[Exhibit], path: str | os.PathLike[str]) -> Path:
    """Write one page that needs no other file; it draws rows when they become visible.

    Returns:
        The path of the file.
    """
    from jinja2 import Environment, StrictUndefined

    scripts = [static_text("plotly-cartesian.min.js"), _file("static/gallery.js")]
    style = f":root{{{css_variables(LIGHT)}}}:root[data-theme=dark]{{{css_variables(DARK)}}}"
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    text = environment.from_string(_file("templates/gallery.html.j2")).render(
        policy=content_policy(scripts),
        scripts=scripts,
        style=style + _file("static/gallery.css"),
        count=len(exhibits),
        data=json_for_html(_payload(exhibits)),
    )
    return write_page(path, text)


def _file(name: str) -> str:
    return resources.files("theodolite_papers.ledger").joinpath(name).read_text(encoding="utf-8")


def _exhibit(folder: Path, base: Path) -> Exhibit | None:
    """The entry of a record; None for rankings of models, which have other numbers."""
    place = str(folder.relative_to(base))
    try:
        record = load_record(folder)
        kind = record.contents.get("kind")
        if kind in ("transfer", "transfer-model"):
            return None
        if kind == "study":
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
    kind = "history" if run.is_history else "survey"
    if not run.steps:
        return Exhibit(run.name or place, kind, place, damage="the history has no step yet")
    moment = Moment(0, 0, latest_numbers(run).record)
    contents = moment.record.contents
    data: Mapping[str, Any] = contents.get("data", {})
    settings = {name: str(data[name]) for name in ("split", "label_source", "n") if name in data}
    settings |= {"layers": str(sum(e.get("role") != "input" for e in contents["layers"]))}
    if run.is_history:
        settings |= {"step": str(contents["step"])}
    layers = [layer["name"] for layer in contents["layers"]]
    profiles, numbers = {}, {}
    for key, family in FAMILIES.items():
        known = [la for la in layers if moment.index(key, family.headline, la) is not None]
        if known:
            profiles[key] = [moment.value(key, family.headline, layer) for layer in known]
        if known and known[-1] == layers[-1]:
            numbers[f"{family.heading}, last layer"] = profiles[key][-1]
    numbers |= {row["measure"]: row["value"] for row in contents["rows"] if row["layer"] is None}
    return Exhibit(run.name or place, kind, place, settings, numbers, profiles)


def _payload(exhibits: Sequence[Exhibit]) -> dict[str, Any]:
    return {
        "palettes": {"light": LIGHT, "dark": DARK},
        "families": [{"key": k, "title": f.heading} for k, f in FAMILIES.items()],
        "runs": [
            {
                "name": plain(item.name),
                "kind": item.kind,
                "folder": plain(item.folder),
                "damage": plain(item.damage) if item.damage else "",
                "settings": {plain(k): plain(v) for k, v in item.settings.items()},
                "numbers": dict(
                    zip(map(plain, item.numbers), page_numbers(item.numbers.values(), _DIGITS),
                        strict=True)
                ),
                "profiles": {k: page_numbers(line, _DIGITS) for k, line in item.profiles.items()},
            }
            for item in exhibits
        ],
    }  # fmt: skip
