"""A folder that holds a run is not written over."""

import itertools
import os
from pathlib import Path

__all__ = ["free_folder", "holds_run"]


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
