"""Runs on disk (a survey, or a history with its steps), free folders, and the latest numbers."""

import os
import re
import secrets
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from warnings import warn

from theodolite.errors import RecordError
from theodolite.records._disk import folders_in, made_folder
from theodolite.records._files import (
    LARGEST_RECORD,
    MOST_READS,
    Place,
    Record,
    claimed,
    holds_run,
    load_record,
    numbered,
    packed_record,
)
from theodolite.records._layout import require_history_head, require_survey
from theodolite.records._words import listed


def free_folder(
    folder: str | os.PathLike[str], *, overwrite: bool = False, below: bool = False
) -> Path:
    """The folder if it has no run, otherwise the first free one of ``name-2``, ``name-3``, ...

    Args:
        folder: the requested folder.
        overwrite: return it in any case.
        below: whether runs in folders directly below it count too.

    Returns:
        The path of the folder, which may not exist yet.

    Examples:
        >>> import tempfile
        >>> from theodolite.records import Record, save_record
        >>> with tempfile.TemporaryDirectory() as place:
        ...     _ = save_record(Record({}), free_folder(f"{place}/run"))
        ...     free_folder(f"{place}/run").name
        'run-2'
    """
    if overwrite:
        return Path(folder)
    return next(place for place in numbered(folder) if not holds_run(place, below=below))


_STEPS, _STEPS_KEY = "steps", "steps_folder"
_STEPS_NAME = re.compile("steps(-[0-9a-f]{8})?")


@dataclass(frozen=True)
class Run:
    """The records of a survey or of a training run; docs/records.md has the layout.

    Args:
        name: the name that the user gave, or "".
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
        """Whether this is a training run; otherwise it is one moment."""
        return bool(self.head.contents.get("kind") == "history")


def save_run(run: Run, folder: str | os.PathLike[str], *, overwrite: bool = True) -> Path:
    """Write a run: one record, and for a history one more for each of its steps.

    Args:
        run: the run.
        folder: the folder; created if it does not exist. An existing run is replaced in one step: a
            killed process leaves the old run or the new one.
        overwrite: False keeps an existing run, and writes to the first of ``name-2``, ``name-3``,
            ... without a run.

    Returns:
        The path of the head's ``record.json``.

    Raises:
        RecordError: If the contents are not plain data.
        WriteError: If the disk is full, or the folder cannot be written.
    """
    with claimed(folder, overwrite=overwrite) as place:
        return _write_run(run, place)[0]


def _write_run(run: Run, place: Place) -> tuple[Path, Path]:
    """Write a run over an existing one; writing its head commits the run with all steps.

    Returns:
        The head's path, and the folder of the steps.
    """
    steps = place.folder / _STEPS
    # The old run stays complete until its head is replaced. No name is used twice: a reader tells
    # a new run from the old one by its head, which has this name.
    if (place.folder / "record.json").exists() or steps.exists() or not place.alone:
        steps = place.folder / f"{_STEPS}-{secrets.token_hex(4)}"
    contents = dict(run.head.contents)
    if run.is_history and steps.name != _STEPS:
        contents[_STEPS_KEY] = steps.name
    try:
        for step in run.steps if run.is_history else ():
            _write_step(step, place, steps)
        path = packed_record(replace(run.head, contents=contents)).write(place)
    except BaseException:
        shutil.rmtree(steps, ignore_errors=True)
        raise
    if place.alone:
        for stale in place.folder.glob(f"{_STEPS}*"):
            if _STEPS_NAME.fullmatch(stale.name) and stale != steps:
                shutil.rmtree(stale, ignore_errors=True)
    return path, steps


def _write_step(step: Record, place: Place, steps: Path) -> Path:
    with made_folder(steps / f"{step.contents['step']:010d}") as folder:
        return packed_record(step).write(replace(place, folder=folder))


def _steps_name(head: Record, folder: str | os.PathLike[str]) -> str:
    """The folder of the steps of a history; its first history does not name one."""
    name = head.contents.get(_STEPS_KEY, _STEPS)
    if not isinstance(name, str) or not _STEPS_NAME.fullmatch(name):
        raise RecordError(f"{folder}: damaged: {_STEPS_KEY}: expected the name of a folder")
    return name


class HistoryWriter:
    """Writes a history while it grows. A full or missing disk does not end the training.

    Steps that cannot be written are kept, and tried again with the next step. If another run has
    taken the folder in the meantime, this run moves to the next free ``name-2``.

    Args:
        folder: where to write.
        overwrite: whether the first step replaces an existing run.

    Attributes:
        folder: the folder of the steps.
        waiting: step -> record, for steps that are not on disk.
        problem: why they are not on disk, or None.
    """

    def __init__(self, folder: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        self.folder = Path(folder)
        self.waiting: dict[int, Record] = {}
        self.problem: str | None = None
        self._overwrite = overwrite
        self._head: tuple[int, int] | None = None  # identity of the file that this object wrote
        self._steps = self.folder

    def write(self, run: Run) -> None:
        """Write the last step of a run, and the waiting steps; see :attr:`problem`."""
        last = run.steps[-1]
        self.waiting[last.contents["step"]] = last
        self.flush(run)

    def flush(self, run: Run) -> None:
        """Try again to write the waiting steps.

        Args:
            run: the whole run; it is written again if another run has taken the folder.
        """
        try:
            if self._head is not None:
                with claimed(self.folder, overwrite=True) as place:
                    if self._stamp(place.folder) == self._head:
                        self._write_waiting(place)
                        return
                self._head, self._overwrite = None, False  # another run has replaced this one
                self.waiting = {step.contents["step"]: step for step in run.steps}
            with claimed(self.folder, overwrite=self._overwrite) as place:
                self.folder = place.folder
                _, self._steps = _write_run(replace(run, steps=()), place)
                self._head = self._stamp(place.folder)
                self._write_waiting(place)
        except (OSError, RecordError) as error:
            self.problem = str(error)

    def _write_waiting(self, place: Place) -> None:
        for number in list(self.waiting):
            _write_step(self.waiting[number], place, self._steps)
            del self.waiting[number]
        self.problem = None

    def _stamp(self, folder: Path) -> tuple[int, int] | None:
        """The identity of the head file, which changes with every write; None without a head."""
        try:
            found = (folder / "record.json").stat()
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_mtime_ns


def load_run(folder: str | os.PathLike[str], *, max_bytes: int | None = LARGEST_RECORD) -> Run:
    """Read a survey or a history and check it.

    The last step of a history is left out if it has no record, because a killed process leaves it
    like this. An earlier step without a record is left out with a warning. Damage raises an error.

    Args:
        folder: the folder of the run.
        max_bytes: limit for each of its records, as in :func:`load_record`.

    Returns:
        The run, with its steps in increasing order.

    Raises:
        RecordError: If there is no run, or one of its records is damaged, too large, of another
            program or of a newer version.
    """
    found = load_result(folder, max_bytes=max_bytes)
    if isinstance(found, Record):
        raise RecordError(
            f"{folder}: expected a record of a survey or a history, got kind "
            f"{found.contents.get('kind')!r}; read it with load_record"
        )
    return found


def load_result(
    folder: str | os.PathLike[str], *, max_bytes: int | None = LARGEST_RECORD
) -> Run | Record:
    """Read a survey or a history as :func:`load_run` does, or the record of another kind."""
    head = load_record(folder, max_bytes=max_bytes)
    for _ in range(MOST_READS):
        if head.contents.get("kind") != "history":
            survey = head.contents.get("kind") == "survey"
            return _read_run(head, folder, max_bytes) if survey else head
        problem = None
        try:
            run = _read_run(head, folder, max_bytes)
        except RecordError as error:
            problem = error
        now = load_record(folder, max_bytes=max_bytes)
        if now.digest == head.digest:
            if problem is not None:
                raise problem
            return run
        head = now  # another process has replaced the run in the meantime
    raise RecordError(
        f"{folder}: other processes replace it faster than it can be read; try again when "
        "they have finished"
    )


def _read_run(head: Record, folder: str | os.PathLike[str], max_bytes: int | None) -> Run:
    kind, name = head.contents["kind"], head.contents.get("name", "")
    if not isinstance(name, str):
        raise RecordError(f"{folder}: damaged: name: expected text, got {name!r}")
    if kind == "survey":
        head = require_survey(_in_current_terms(head), folder)
        return Run(name, head, (head,))
    below = Path(folder) / _steps_name(head, folder)
    contents = {key: value for key, value in head.contents.items() if key != _STEPS_KEY}
    head = require_history_head(_in_current_terms(replace(head, contents=contents)), folder)
    places = folders_in(below)
    committed = [path for path in places if not _without_record(path)]
    lost = [path.name for path in places[:-1] if path not in committed]
    if lost:
        warn(
            f"{below}: left out, since there is no record.json: {listed(lost, most=5)}. The files "
            "were removed, or a process was killed while it wrote them.",
            stacklevel=3,
        )
    steps = [
        require_survey(
            _in_current_terms(load_record(path, max_bytes=max_bytes)), path, of_history=True
        )
        for path in committed
    ]
    return Run(name, head, tuple(sorted(steps, key=lambda step: step.contents["step"])))


def _without_record(folder: Path) -> bool:
    """Whether a folder has no record. One that cannot be read counts: loading it says why."""
    try:
        (folder / "record.json").stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        pass
    return False


# Section -> name of a field in records of version 0.1 -> its name now.
_RENAMED = {
    "config": {"nulls": "permutations", "bootstrap": "half_samples", "probes": "sketch_vectors"},
    "data": {"labels": "label_source"},
}
# Measures of versions 0.1 and 0.2 -> their names now.
_MEASURES = {
    "readout_accuracy": "probe_accuracy",
    "readout_r2": "probe_r2",
    "input_readout_accuracy": "input_probe_accuracy",
    "input_readout_r2": "input_probe_r2",
}


def _in_current_terms(record: Record) -> Record:
    """A record of an older version with the current names of fields and measures."""
    contents = dict(record.contents)
    for section, names in _RENAMED.items():
        fields = contents.get(section)
        if isinstance(fields, dict):
            contents[section] = {names.get(key, key): value for key, value in fields.items()}
    data = contents.get("data")
    if isinstance(data, dict) and data.get("label_source") == "shuffled":
        contents["data"] = data | {"label_source": "random"}
    for section in ("rows", "warnings"):
        entries = contents.get(section)
        if isinstance(entries, list):
            contents[section] = [_with_current_measure(entry) for entry in entries]
    if isinstance(contents.get("answers"), list):
        contents["answers"] = [_current_answer(entry) for entry in contents["answers"]]
    return replace(record, contents=contents)


def _current_answer(entry: Any) -> Any:
    """Convert an answer of version 0.2: "why" was its evidence, "evidence" its figures."""
    if not isinstance(entry, dict) or "why" not in entry:
        return entry
    sure = "undecided" if entry.get("certainty") == "open" else entry.get("certainty")
    figures = entry.get("evidence")
    renamed = {"evidence": entry["why"], "figures": figures if isinstance(figures, list) else []}
    return {key: entry[key] for key in entry if key != "why"} | renamed | {"certainty": sure}


def _with_current_measure(entry: Any) -> Any:
    measure = entry.get("measure") if isinstance(entry, dict) else None
    if not isinstance(measure, str):
        return entry
    return entry | {"measure": _MEASURES.get(measure, measure)}


@dataclass(frozen=True)
class Latest:
    """The last step of a run, completed by the families that only earlier steps measured.

    Args:
        record: the last step, with rows and warnings of these families.
        steps: family -> the step of its numbers.
    """

    record: Record
    steps: Mapping[str, int | None]

    @property
    def earlier(self) -> dict[int | None, list[str]]:
        """Earlier steps -> the families that they provide."""
        found: dict[int | None, list[str]] = {}
        for family, step in self.steps.items():
            if step != self.record.contents["step"]:
                found.setdefault(step, []).append(family)
        return found


def latest_numbers(run: Run) -> Latest:
    """The numbers of every family at the last step that measured it.

    If no step measured a family, the reason comes from the first step, because later ones may only
    say that it was not due. For a survey, and for a closed run, this is the last step itself.

    Args:
        run: a run with at least one step.

    Returns:
        The last step, completed by the families that only earlier steps measured.
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
    """The last step that measured a family."""
    taken = (r.contents for r in reversed(run.steps) if family not in r.contents["skipped"])
    return next(taken, None)


def _joined(
    found: Mapping[str, Mapping[str, Any]], last: Mapping[str, Any], part: str
) -> list[Mapping[str, Any]]:
    """Entries of the last step, and of earlier steps for the families that it lacks."""
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
