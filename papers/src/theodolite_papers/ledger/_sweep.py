"""Sweeps: a study at every point of a space, on worker processes or on Ray."""

import importlib.util
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol, runtime_checkable

from theodolite.checks import require_choice, require_count
from theodolite.errors import StudyError
from theodolite.report import find_exhibits, write_gallery
from theodolite.sweeps import (
    Failure,
    Keep,
    RayResources,
    Report,
    Space,
    Work,
    run_in_processes,
    run_on_ray,
)
from theodolite_papers.ledger._claims import run_label
from theodolite_papers.ledger._registry import find_study
from theodolite_papers.ledger._results import Measured, Results
from theodolite_papers.ledger._run import Engine, jobs_of, run_jobs
from theodolite_papers.ledger._store import Job, Seconds, load_results, stored_result
from theodolite_papers.ledger._study import Study

__all__ = ["SweepSettings", "SweepTracker", "sweep_study"]

ENGINES = ("auto", "ray", "processes")


@runtime_checkable
class SweepTracker(Protocol):
    """Where runs of a sweep are logged besides their records."""

    def has_run(self, name: str) -> bool:
        """Whether a run of this name was kept before."""

    def log_run(
        self, name: str, parameters: Mapping[str, Any], numbers: Mapping[str, float]
    ) -> None:
        """Keep one run."""

    def log_report(self, path: Path) -> None:
        """Keep a page about all of them."""


@dataclass(frozen=True)
class SweepSettings:
    """How a sweep runs.

    Args:
        engine: "ray", "processes", or "auto": Ray where it is installed.
        resources: trials at a time, cores and GPUs of each, address of a cluster.
        device: where networks are trained.
        seeds: other seeds than the study's own.
        space: other settings than the study's own space.
    """

    engine: str = "auto"
    resources: RayResources = field(default_factory=RayResources)
    device: str = "cpu"
    seeds: Sequence[int] | None = None
    space: Space | None = None


def sweep_study(
    study: Study | str,
    size: str = "lite",
    *,
    results: str | os.PathLike[str] = "study-results",
    settings: SweepSettings | None = None,
    tracker: SweepTracker | None = None,
    report: Report = lambda _share, _text: None,
) -> Results:
    """Run a study at every point of its space; points that have a record are not run again.

    Args:
        study: a study, or its id.
        size: "smoke", "lite" or "paper".
        results: folder of records; one per point and seed.
        settings: engine, resources, and another space than the declared one.
        tracker: is told of every run, those of an earlier call that it does not have included,
            and gets a gallery of all records at the end, also where runs failed.
        report: function of (share done, text).

    Returns:
        All runs of that study and size in the folder.

    Raises:
        StudyError: If runs failed (the others are on disk, and calling again resumes), or there is
            no Ray where it was asked for.
        UnknownNameError: If there is no such study, size or setting.
    """
    found = find_study(study) if isinstance(study, str) else study
    chosen = settings or SweepSettings()
    points = None if chosen.space is None else chosen.space.points()
    jobs = jobs_of(found, size, chosen.seeds, points)
    if tracker is not None:
        _send_stored(found, jobs, results, tracker)
    engine = _engine(chosen, _Tracked(found, tracker))
    try:
        run_jobs(found, jobs, results, device=chosen.device, engine=engine, report=report)
    finally:
        if tracker is not None:
            _send_gallery(Path(results) / found.id / size, tracker)
    return load_results(results, found, size)


def _send_stored(
    study: Study, jobs: Sequence[Job], results: str | os.PathLike[str], tracker: SweepTracker
) -> None:
    for job in jobs:
        if not tracker.has_run(run_label(job.seed, job.point)):
            stored = stored_result(results, job, study)
            if stored is not None:
                _send(tracker, study, job, stored.numbers, stored.seconds)


def _send(
    tracker: SweepTracker, study: Study, job: Job, numbers: Mapping[str, Any], seconds: float
) -> None:
    parameters = {**vars(study.config_at(job.size, job.point)), "seed": job.seed, "size": job.size}
    values = {name: float(value) for name, value in numbers.items()}
    tracker.log_run(run_label(job.seed, job.point), parameters, {**values, "seconds": seconds})


def _send_gallery(records: Path, tracker: SweepTracker) -> None:
    """A page of all records of the study at this size; none where no run was kept."""
    if not any(records.rglob("record.json")):
        return
    with TemporaryDirectory() as folder:
        tracker.log_report(write_gallery(find_exhibits(records), Path(folder) / "gallery.html"))


@dataclass(frozen=True)
class _Tracked:
    study: Study
    tracker: SweepTracker | None

    def __call__(self, keep: Keep) -> Keep:
        """The same keeper, which also tells the tracker."""
        if self.tracker is None:
            return keep
        tracker, study = self.tracker, self.study

        def kept(job: Job, outcome: tuple[Measured, Seconds]) -> None:
            keep(job, outcome)
            _send(tracker, study, job, outcome[0].numbers, outcome[1].wall)

        return kept


def _engine(settings: SweepSettings, tracked: _Tracked) -> Engine:
    require_choice(ENGINES, engine=settings.engine)
    require_count(1, workers=settings.resources.workers)
    has_ray = importlib.util.find_spec("ray") is not None
    needs_ray = settings.engine == "ray" or settings.resources.address is not None
    if needs_ray and not has_ray:
        raise StudyError(
            "a sweep on Ray needs the package ray; install it with pip install 'theodolite[scale]'"
            ", or leave out the engine and the address to use worker processes"
        )

    def on_ray(work: Work, jobs: Sequence[Job], keep: Keep, told: Report) -> list[Failure]:
        return run_on_ray(work, jobs, tracked(keep), resources=settings.resources, report=told)

    def here(work: Work, jobs: Sequence[Job], keep: Keep, told: Report) -> list[Failure]:
        workers = settings.resources.workers
        return run_in_processes(work, jobs, tracked(keep), workers=workers, report=told)

    return on_ray if needs_ray or (settings.engine == "auto" and has_ray) else here
