"""Saved runs below the folders that a user names."""

from collections.abc import Sequence
from pathlib import Path

from theodolite.errors import RecordError
from theodolite.surveys import History, Survey
from theodolite.surveys._compare import load

__all__ = ["saved_results"]

_FILE = "record.json"


def saved_results(folders: Sequence[Path]) -> dict[Path, Survey | History]:
    """Load every run; a folder that is none stands for the runs right below it.

    Raises:
        RecordError: If a record is missing or damaged, or a history has no step yet.
    """
    paths = [path for folder in folders for path in _runs(folder)]
    results = {path: load(path) for path in paths}
    for path, result in results.items():
        if not result.run.steps:
            raise RecordError(f"{path}: the history has no step yet; nothing to show")
    return results


def _runs(folder: Path) -> list[Path]:
    if (folder / _FILE).exists():
        return [folder]
    below = sorted(path.parent for path in folder.glob(f"*/{_FILE}"))
    return below or [folder]  # loading it says what is missing
