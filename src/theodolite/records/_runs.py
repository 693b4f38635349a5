"""Runs on disk, a survey or a history with its steps; folders that are free; the newest numbers."""

import itertools
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from theodolite.errors import RecordError
from theodolite.records._files import Record, load_record, save_record
from theodolite.records._layout import require_history_head, require_survey

__all__ = [
    "Latest",
    "Run",
    "free_folder",
    "holds_run",
    "latest_numbers",
    "load_run",
    "save_run",
    "save_step",
]


def holds_run(folder: str | os.PathLike[str], *, below: bool = False) -> bool:
    """Whether a record, or a step of a history, was written there; or in a folder right below."""
    path = Path(folder)
    if (path / "record.json").exists() or any(path.glob("steps/*/record.json")):
        return True
    return below and any(holds_run(other) for other in path.glob("*/"))


def free_folder(
    folder: str | os.PathLike[str], *, overwrite: bool = False, below: bool = False
) -> Path:
    """The folder itself where it holds no run, else the first of ``name-2``, ``name-3``, ...

    Args:
        folder: where somebody wants to write a run.
        overwrite: take it in any case.
        below: whether runs in folders right below it count, too.

    Example:
        >>> import tempfile
        >>> from theodolite.records import Record, save_record
        >>> with tempfile.TemporaryDirectory() as place:
        ...     _ = save_record(Record({}), free_folder(f"{place}/run"))
        ...     free_folder(f"{place}/run").name
        'run-2'
    """
    path = Path(folder)
    if overwrite or not holds_run(path, below=below):
        return path
    numbered = (path.with_name(f"{path.name}-{number}") for number in itertools.count(2))
    return next(other for other in numbered if not holds_run(other, below=below))


_KINDS = ("survey", "history")


@dataclass(frozen=True)
class Run:
    """What a survey or a watched training run leaves behind; the layout is in docs/records.md.

    Args:
        name: what the user calls it, or "".
        head: settings, data and layers; of a survey, the record itself.
        steps: a survey record per step, in increasing order; of a survey, the record alone.
    """

    name: str
    head: Record
    steps: tuple[Record, ...]

    def __repr__(self) -> str:
        return f"Run({self.name!r}, {len(self.steps)} steps, {self.head!r})"

    @property
    def is_history(self) -> bool:
        """Whether this was a training run; otherwise it is one moment."""
        return bool(self.head.contents.get("kind") == "history")


def save_run(run: Run, folder: str | os.PathLike[str]) -> Path:
    """Write a run: one record, and for a history one more for each of its steps.

    Args:
        run: what to write.
        folder: created if it does not exist; steps of an earlier history in it are replaced.

    Returns:
        The path of the head's ``record.json``.

    Raises:
        RecordError: If the contents hold something that is no plain data.
    """
    target = Path(folder)
    if run.is_history:
        kept = {save_step(step, target).parent for step in run.steps}
        for stale in set((target / "steps").glob("*")) - kept:
            (stale / "record.json").unlink(missing_ok=True)  # a kill from here on leaves no record
            shutil.rmtree(stale)
    return save_record(run.head, target)


def save_step(step: Record, folder: str | os.PathLike[str]) -> Path:
    """Write one step of a history below the folder of its run."""
    return save_record(step, Path(folder) / "steps" / f"{step.contents['step']:010d}")


def load_run(folder: str | os.PathLike[str]) -> Run:
    """Read a survey or a history back, checked.

    A step of a history whose first record was never committed is left out: that is what a killed
    process leaves behind. Damage raises.

    Raises:
        RecordError: If there is no run, or a record of it is damaged, foreign or newer.
    """
    head = load_record(folder)
    kind, name = head.contents.get("kind"), head.contents.get("name", "")
    if kind not in _KINDS or not isinstance(name, str):
        raise RecordError(
            f"{folder}: expected a record of a survey or a history, got kind {kind!r}; "
            "read it with load_record"
        )
    head = _in_todays_words(head)
    if kind == "survey":
        return Run(name, require_survey(head, folder), (head,))
    folders = sorted((Path(folder) / "steps").glob("*"))
    committed = [path for path in folders if (path / "record.json").exists()]
    steps = [
        require_survey(_in_todays_words(load_record(path)), path, of_history=True)
        for path in committed
    ]
    require_history_head(head, folder)
    return Run(name, head, tuple(sorted(steps, key=lambda step: step.contents["step"])))


# Section -> name of a field in records of version 0.1 -> its name now.
_RENAMED = {
    "config": {"nulls": "permutations", "bootstrap": "half_samples", "probes": "sketch_vectors"},
    "data": {"labels": "label_source"},
}


def _in_todays_words(record: Record) -> Record:
    """A record of an older version with the names that fields have now."""
    contents = dict(record.contents)
    for section, names in _RENAMED.items():
        fields = contents.get(section)
        if isinstance(fields, dict):
            contents[section] = {names.get(key, key): value for key, value in fields.items()}
    return replace(record, contents=contents)


@dataclass(frozen=True)
class Latest:
    """The last step of a run, completed by what steps before it measured and it did not.

    Args:
        record: the last step, with rows and warnings of the families that it left out.
        steps: family -> the step that its numbers are from.
    """

    record: Record
    steps: Mapping[str, int | None]

    @property
    def earlier(self) -> dict[int | None, list[str]]:
        """Steps before the last -> the families that are from there."""
        found: dict[int | None, list[str]] = {}
        for family, step in self.steps.items():
            if step != self.record.contents["step"]:
                found.setdefault(step, []).append(family)
        return found


def latest_numbers(run: Run) -> Latest:
    """Of every family the numbers of the last step that took it.

    A family that no step took is left out, with the reason that the first step gives: later ones
    may say that it was not its turn. Of a run that was closed, and of a survey, this is the last
    step itself.

    Args:
        run: with at least one step.
    """
    last = run.steps[-1].contents
    families = dict.fromkeys(row["family"] for step in run.steps for row in step.contents["rows"])
    sources = {family: _source(run, family) for family in families}
    found = {family: contents for family, contents in sources.items() if contents is not None}
    parts = {
        "rows": _joined(found, last, "rows"),
        "warnings": _joined(found, last, "warnings"),
        "skipped": {
            family: run.steps[0].contents["skipped"].get(family, why)
            for family, why in last["skipped"].items()
            if family not in found
        },
    }
    steps = {family: contents["step"] for family, contents in found.items()}
    return Latest(replace(run.steps[-1], contents={**last, **parts}), steps)


def _source(run: Run, family: str) -> Mapping[str, Any] | None:
    """The last step that took a family."""
    taken = (r.contents for r in reversed(run.steps) if family not in r.contents["skipped"])
    return next(taken, None)


def _joined(
    found: Mapping[str, Mapping[str, Any]], last: Mapping[str, Any], part: str
) -> list[Mapping[str, Any]]:
    """Entries of the last step, and those of other steps that it has no newer ones for."""
    entries = list(last[part])
    known = {_name(entry) for entry in entries}
    for family, contents in found.items():
        if contents is not last:
            entries += _of(contents[part], family, known)
    return entries


def _of(
    entries: Iterable[Mapping[str, Any]], family: str, known: set[tuple[Any, ...]]
) -> list[Mapping[str, Any]]:
    return [e for e in entries if e.get("family") == family and _name(e) not in known]


def _name(entry: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(entry.get(key) for key in ("layer", "family", "measure"))
