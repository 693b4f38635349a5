"""Running studies: every seed and point that has no record yet, resumable at any time."""

import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from theodolite.checks import require_count
from theodolite.errors import StudyError
from theodolite.sweeps import Failure, Keep, Report, Work, run_in_processes
from theodolite_papers.ledger._claims import Verdict, run_label, verdict_of
from theodolite_papers.ledger._registry import find_study
from theodolite_papers.ledger._results import Measured, Results
from theodolite_papers.ledger._store import (
    Job,
    Seconds,
    load_results,
    own_results,
    run_folder,
    save_result,
    stored_result,
)
from theodolite_papers.ledger._study import Study, Trial

__all__ = ["Engine", "check_study", "jobs_of", "run_jobs", "run_study"]

_ERROR = "error.txt"  # of a run that failed, where its record would be
Engine = Callable[[Work, Sequence[Job], Keep, Report], list[Failure]]


def jobs_of(
    study: Study,
    size: str,
    seeds: Sequence[int] | None = None,
    points: Sequence[Mapping[str, Any]] | None = None,
) -> list[Job]:
    """The runs that a size of a study consists of.

    Raises:
        UnknownNameError: If the study has no such size, or no such setting.
    """
    chosen = study.points_at(size) if points is None else points
    for point in chosen:
        study.config_at(size, point)
    return [
        Job(study.id, size, seed, point)
        for point in chosen
        for seed in (study.seeds_at(size) if seeds is None else seeds)
    ]


def run_study(
    study: Study | str,
    size: str = "lite",
    *,
    results: str | os.PathLike[str] = "study-results",
    seeds: Sequence[int] | None = None,
    workers: int = 1,
    device: str = "cpu",
    report: Report = lambda _share, _text: None,
) -> Results:
    """Run a study; seeds that have a record already are not run again.

    Args:
        study: a study, or its id.
        size: "smoke", "lite" or "paper".
        results: folder of records; one per run, written when the run is done.
        seeds: other seeds than the study's own.
        workers: processes of one thread each; 1 runs here.
        device: where networks are trained.
        report: function of (share done, text).

    Returns:
        All runs of that study and size in the folder.

    Raises:
        StudyError: If runs failed; the others are on disk, and calling again resumes.
        RecordError: If a record is damaged, or was made with another config.
        UnknownNameError: If there is no such study or size.
    """
    found = find_study(study) if isinstance(study, str) else study
    require_count(1, workers=workers)
    jobs = jobs_of(found, size, seeds)

    def engine(work: Work, waiting: Sequence[Job], keep: Keep, told: Report) -> list[Failure]:
        return run_in_processes(work, waiting, keep, workers=workers, report=told)

    run_jobs(found, jobs, results, device=device, engine=engine, report=report)
    return load_results(results, found, size)


def run_jobs(
    study: Study,
    jobs: Sequence[Job],
    results: str | os.PathLike[str],
    *,
    device: str,
    engine: Engine,
    report: Report,
) -> None:
    """Give an engine the jobs that have no record yet.

    Raises:
        StudyError: If some of them failed.
    """
    waiting = [job for job in jobs if stored_result(results, job, study) is None]
    if not waiting:
        return
    work = _Work(str(results), device)

    def keep(job: Job, outcome: tuple[Measured, Seconds]) -> None:
        save_result(results, job, study, *outcome)
        (run_folder(results, job) / _ERROR).unlink(missing_ok=True)
        work.forget(job)

    failures = engine(work, waiting, keep, report)
    for failure in failures:
        folder = run_folder(results, failure.job)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _ERROR).write_text(failure.reason + "\n", encoding="utf-8")
    if failures:
        lines = "; ".join(f"{run_label(f.job.seed, f.job.point)}: {f.reason}" for f in failures[:3])
        raise StudyError(
            f"{study.id}: {len(failures)} of {len(waiting)} runs failed ({lines}); the others are "
            f"in {results} beside the errors of these, and running it again tries these alone"
        )


@dataclass(frozen=True)
class _Work:
    """A run, without its record; a class so that it can be pickled."""

    results: str
    device: str

    def __call__(self, job: Job, report: Report) -> tuple[Measured, Seconds]:
        study = find_study(job.study)
        trial = Trial(
            job.seed, torch.device(self.device), self._scratch(job), _labeled(report, job)
        )
        start, start_processor = time.perf_counter(), time.process_time()
        with torch.random.fork_rng(devices=[] if self.device == "cpu" else None):
            torch.manual_seed(job.seed)
            measured = study.measure(study.config_at(job.size, job.point), trial)
        wall, processor = time.perf_counter() - start, time.process_time() - start_processor
        return measured, Seconds(wall, processor)

    def forget(self, job: Job) -> None:
        """Remove the checkpoints of a run that is done."""
        shutil.rmtree(self._scratch(job), ignore_errors=True)

    def _scratch(self, job: Job) -> Path:
        return run_folder(self.results, job) / "checkpoints"


def check_study(
    study: Study | str, size: str, results: str | os.PathLike[str] = "study-results"
) -> list[Verdict]:
    """Judge the claims of a study from its records; nothing is run.

    Runs of a sweep at other settings than the study's own are left aside.

    Raises:
        RecordError: If a record is damaged.
        UnknownNameError: If there is no such study or size.
    """
    found = find_study(study) if isinstance(study, str) else study
    found.config_at(size)
    runs = own_results(results, found, size)
    return [verdict_of(claim, size, runs) for claim in found.claims]


def _labeled(report: Report, job: Job) -> Report:
    return lambda share, text: report(share, f"{job.study} seed {job.seed} {text}")
