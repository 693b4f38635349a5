"""Runs of studies on disk: one record per run, found by study, size, seed and point."""

import dataclasses
import json
import math
import os
import platform
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from theodolite._version import __version__
from theodolite.errors import RecordError
from theodolite.records import Record, load_record, save_record
from theodolite.sweeps import point_name
from theodolite_papers.ledger._results import Measured, Result, Results
from theodolite_papers.ledger._study import Study

__all__ = [
    "Job",
    "Seconds",
    "load_results",
    "own_results",
    "run_folder",
    "save_result",
    "stored_result",
]


@dataclass(frozen=True)
class Job:
    """A run to be made: everything that decides its numbers."""

    study: str
    size: str
    seed: int
    point: Mapping[str, Any]


@dataclass(frozen=True)
class Seconds:
    """How long a run took by the clock, and how long its process computed on the CPU."""

    wall: float
    processor: float


def run_folder(root: str | os.PathLike[str], job: Job) -> Path:
    """Where the record of a run lies."""
    name = point_name(job.point)
    leaf = f"seed-{job.seed}-{name}" if name else f"seed-{job.seed}"
    return Path(root) / job.study / job.size / leaf


def save_result(
    root: str | os.PathLike[str], job: Job, study: Study, measured: Measured, seconds: Seconds
) -> Path:
    """Write the record of a run."""
    import torch

    contents = {
        "kind": "study",
        "study": study.id,
        "size": job.size,
        "seed": job.seed,
        "point": dict(job.point),
        "config": plain_config(study.config_at(job.size, job.point)),
        "numbers": dict(measured.numbers),
        "notes": dict(measured.notes),
        "seconds": seconds.wall,
        "processor_seconds": seconds.processor,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "versions": {
            "theodolite": __version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
    }
    return save_record(Record(contents, dict(measured.arrays)), run_folder(root, job))


def stored_result(root: str | os.PathLike[str], job: Job, study: Study) -> Result | None:
    """The run's result if its record is there.

    Raises:
        RecordError: If the record is damaged, or was made with another config.
    """
    folder = run_folder(root, job)
    if not (folder / "record.json").exists():
        return None
    try:
        contents = _require_study(folder)
    except RecordError as error:
        raise RecordError(f"{error}; delete {folder} to run that seed again") from error
    wanted = plain_config(study.config_at(job.size, job.point))
    if contents.contents["config"] != wanted:
        raise RecordError(
            f"{folder}: made with another config than {study.id} has now; delete it to run that "
            "seed again, or keep results of both in different folders (--results)"
        )
    return _result(contents)


def load_results(root: str | os.PathLike[str], study: Study, size: str) -> Results:
    """All runs of a study at one size, by point and seed; none where nothing was run.

    Raises:
        RecordError: If a record is damaged or no study's; the message names its folder.
    """
    folders = sorted((Path(root) / study.id / size).glob("seed-*/record.json"))
    results = [_result(_require_study(path.parent)) for path in folders]
    order = {point_name(p): k for k, p in enumerate(study.points_at(size))}
    last = len(order)
    return Results(
        tuple(sorted(results, key=lambda r: (order.get(point_name(r.point), last), r.seed)))
    )


def own_results(root: str | os.PathLike[str], study: Study, size: str) -> Results:
    """The runs at the study's own points, which its claims are about.

    Sweeps of other settings leave their records in the same folder; no claim was made for these.

    Raises:
        RecordError: If a record is damaged or no study's; the message names its folder.
    """
    own = {point_name(point) for point in study.points_at(size)}
    return load_results(root, study, size).chosen(lambda run: point_name(run.point) in own)


def plain_config(config: Any) -> dict[str, Any]:
    """A config as it stands in a record: JSON's types only."""
    return dict(json.loads(json.dumps(dataclasses.asdict(config), allow_nan=False)))


def _require_study(folder: Path) -> Record:
    record = load_record(folder)
    contents = record.contents
    if contents.get("kind") != "study":
        raise RecordError(
            f"{folder}: expected the record of a study, got kind {contents.get('kind')!r}"
        )
    parts = {"numbers": dict, "point": dict, "config": dict, "seed": int, "size": str}
    for key, kind in parts.items():
        if not isinstance(contents.get(key), kind):
            raise RecordError(f"{folder}: damaged: expected {key!r} as a {kind.__name__}")
    return record


def _result(record: Record) -> Result:
    contents = record.contents
    return Result(
        numbers=contents["numbers"],
        arrays=record.arrays,
        notes=contents.get("notes", {}),
        point=contents["point"],
        seed=contents["seed"],
        size=contents["size"],
        seconds=float(contents.get("seconds", 0.0)),
        processor_seconds=float(contents.get("processor_seconds", math.nan)),
        config=contents["config"],
    )
