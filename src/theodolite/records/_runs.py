"""Runs: a survey is one record, a history a record for its head and one for every step."""

import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from theodolite.errors import RecordError
from theodolite.records._files import Record, load_record, save_record
from theodolite.records._layout import require_history_head, require_survey

__all__ = ["Run", "load_run", "save_run", "save_step"]

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
