"""Running studies: one record per run, resumable at any time; verdicts from the records."""

import dataclasses
import hashlib
import importlib.util
import json
import math
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol, runtime_checkable

import torch

from theodolite.checks import require_choice, require_count
from theodolite.errors import RecordError, StudyError
from theodolite.records import Record, load_record, save_record
from theodolite.surveys import versions
from theodolite.sweeps import (
    Failure,
    RayResources,
    Report,
    run_in_processes,
    run_on_ray,
)
from theodolite_papers.ledger._published import excuse_of
from theodolite_papers.ledger._results import Measured, Result, Results, counted, run_label
from theodolite_papers.ledger._space import Space, point_name
from theodolite_papers.ledger._study import Study, Trial, find_study
from theodolite_papers.ledger._verdicts import Verdict, judge_claim
from theodolite_papers.ledger.gallery import find_exhibits, write_gallery

__all__ = [
    "SweepSettings",
    "SweepTracker",
    "claims_hash",
    "judge_study",
    "load_results",
    "note_withdrawn",
    "own_results",
    "plain_config",
    "run_study",
    "sweep_study",
    "withdraw_study",
    "withdrawn_verdicts",
]

ENGINES = ("auto", "ray", "processes")
WITHDRAWN = "withdrawn.json"
_ERROR = "error.txt"  # of a run that failed, where its record would be


def run_study(
    study: Study | str,
    size: str | None = None,
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
        size: "smoke", "lite", "reduced" or "published"; None for the study's ``default_size``.
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
    size = size or found.default_size
    require_count(1, workers=workers)
    folder = RunFolder(results, found)
    waiting = folder.without_record(_jobs(found, size, seeds))
    work = _Measure(str(results), device)
    if waiting:
        failures = run_in_processes(work, waiting, folder.save, workers=workers, report=report)
        folder.settle(waiting, failures)
    return load_results(results, found, size)


def judge_study(study: Study | str, size: str, results: Results) -> list[Verdict]:
    """Judge the claims of a study on its results; nothing is run.

    Runs at other settings than the study's own are ignored, because no claim is about them.

    Raises:
        UnknownNameError: If there is no such study or size.
    """
    found = find_study(study) if isinstance(study, str) else study
    found.config_at(size)
    runs = own_results(found, size, results)
    return [
        judge_claim(claim, size, runs, found.repeat, excuse=excuse_of(found, claim.id, size))
        for claim in found.claims
    ]


def own_results(study: Study, size: str, results: Results) -> Results:
    """The runs at the study's own points; sweeps of other settings lie in the same folder."""
    own = {point_name(point) for point in study.points_at(size)}
    return results.chosen(lambda run: point_name(run.point) in own)


@dataclass(frozen=True)
class Job:
    """A run to be made: everything that decides its numbers."""

    study: str
    size: str
    seed: int
    point: Mapping[str, Any]


def _jobs(
    study: Study,
    size: str,
    seeds: Sequence[int] | None = None,
    points: Sequence[Mapping[str, Any]] | None = None,
) -> list[Job]:
    chosen = study.points_at(size) if points is None else points
    for point in chosen:
        study.config_at(size, point)
    seeds = study.seeds_at(size) if seeds is None else seeds
    return [Job(study.id, size, seed, point) for point in chosen for seed in seeds]


@dataclass(frozen=True)
class Conditions:
    """How a run was made.

    Args:
        wall: seconds by the clock.
        processor: seconds that its process computed on the CPU.
        device: where networks were trained, with its name.
        threads: of the process.
    """

    wall: float
    processor: float
    device: str
    threads: int


@dataclass(frozen=True)
class _Measure:
    """Makes a run, without its record; a class so that it can be pickled."""

    results: str
    device: str

    def __call__(self, job: Job, report: Report) -> tuple[Measured, Conditions]:
        study = find_study(job.study)
        folder = job_folder(self.results, job) / "checkpoints"
        trial = Trial(
            job.seed,
            torch.device(self.device),
            folder,
            lambda share, text: report(share, f"{job.study} seed {job.seed} {text}"),
        )
        start, start_processor = time.perf_counter(), time.process_time()
        with torch.random.fork_rng(devices=[] if self.device == "cpu" else None):
            torch.manual_seed(job.seed)
            measured = study.measure(study.config_at(job.size, job.point), trial)
        wall, processor = time.perf_counter() - start, time.process_time() - start_processor
        device = _device_name(trial.device)
        return measured, Conditions(wall, processor, device, torch.get_num_threads())


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return f"cuda ({torch.cuda.get_device_name(device)})"
    return f"{device.type} ({platform.processor() or platform.machine()})"


@cache
def commit() -> str:
    """The commit of the checkout that the laboratory runs from; empty where it is installed.

    A copy without history takes it from the variable ``THEODOLITE_COMMIT``.
    """
    if given := os.environ.get("THEODOLITE_COMMIT"):
        return given
    # "describe --dirty" would write the index and lock it for other git commands.
    git = ["git", "--no-optional-locks", "-C", str(Path(__file__).parent)]
    try:
        name, changes = (
            subprocess.run([*git, *words], capture_output=True, text=True, timeout=10, check=True)
            for words in (
                ["describe", "--always", "--abbrev=12"],
                ["status", "--porcelain", "--untracked-files=no"],
            )
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return name.stdout.strip() + ("-dirty" if changes.stdout else "")


def claims_hash(study: Study) -> str:
    """Digest of a study's claims: their names, sentences, scopes and sizes."""
    lines = [f"{c.id}|{c.scope}|{','.join(c.sizes)}|{c.text}" for c in study.claims]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def job_folder(root: str | os.PathLike[str], job: Job) -> Path:
    """Where the record of a run lies."""
    name = point_name(job.point)
    leaf = f"seed-{job.seed}-{name}" if name else f"seed-{job.seed}"
    return Path(root) / job.study / job.size / leaf


@dataclass(frozen=True)
class RunFolder:
    """The records of a study: which runs are missing, saving those that are made."""

    root: str | os.PathLike[str]
    study: Study

    def without_record(self, jobs: Sequence[Job]) -> list[Job]:
        """The runs that are still to be made."""
        return [job for job in jobs if self.stored(job) is None]

    def stored(self, job: Job) -> Result | None:
        """The run's result if its record is there.

        Raises:
            RecordError: If the record is damaged, or was made with another config.
        """
        folder = job_folder(self.root, job)
        if not (folder / "record.json").exists():
            return None
        try:
            record = _require_study(folder)
        except RecordError as error:
            raise RecordError(f"{error}; delete {folder} to run that seed again") from error
        wanted = plain_config(self.study.config_at(job.size, job.point))
        if record.contents["config"] != wanted:
            raise RecordError(
                f"{folder}: made with another config than {self.study.id} has now; withdraw it "
                f"('theodolite study withdraw {self.study.id}'), or keep results of both in "
                "different folders (--results)"
            )
        return _result(record)

    def save(self, job: Job, made: tuple[Measured, Conditions]) -> None:
        """Write the record of a run; its checkpoints and an earlier error go."""
        measured, conditions = made
        contents = {
            "kind": "study",
            "study": self.study.id,
            "size": job.size,
            "seed": job.seed,
            "point": dict(job.point),
            "config": plain_config(self.study.config_at(job.size, job.point)),
            "numbers": dict(measured.numbers),
            "notes": dict(measured.notes),
            "seconds": conditions.wall,
            "processor_seconds": conditions.processor,
            "date": _today(),
            "commit": commit(),
            "device": conditions.device,
            "threads": conditions.threads,
            "claims": claims_hash(self.study),
            "versions": versions(),
        }
        folder = job_folder(self.root, job)
        save_record(Record(contents, dict(measured.arrays)), folder)
        (folder / _ERROR).unlink(missing_ok=True)
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)

    def settle(self, waiting: Sequence[Job], failures: Sequence[Failure]) -> None:
        """Write the reasons of failed runs to the folders of their records.

        Raises:
            StudyError: If there are such runs.
        """
        for failure in failures:
            folder = job_folder(self.root, failure.job)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / _ERROR).write_text(failure.reason + "\n", encoding="utf-8")
        if failures:
            reasons = ". ".join(_reasons(failures)[:3])
            if len(failures) == len(waiting):
                raise StudyError(f"{self.study.id}: no run could be made: {reasons}")
            raise StudyError(
                f"{self.study.id}: {len(failures)} of {len(waiting)} runs failed ({reasons}). "
                f"Finished runs and these errors are in {self.root}. Run the command again to "
                "repeat only the failed runs."
            )


def _reasons(failures: Sequence[Failure]) -> list[str]:
    """Each reason once, with the runs that failed for it, unless all did."""
    runs: dict[str, list[str]] = {}
    for one in failures:
        runs.setdefault(one.reason, []).append(run_label(one.job.seed, one.job.point))
    if len(runs) == 1 and len(failures) > 1:
        return list(runs)
    return [
        f"{counted(len(labels), 'run') if len(labels) > 2 else ', '.join(labels)}: {reason}"
        for reason, labels in runs.items()
    ]


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


def plain_config(config: Any) -> dict[str, Any]:
    """A config in the types of JSON, as in a record."""
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
        claims=str(contents.get("claims", "")),
        commit=str(contents.get("commit", "")),
        device=str(contents.get("device", "")),
        threads=int(contents.get("threads", 0)),
    )


def withdraw_study(
    study: Study | str, size: str, reason: str, results: str | os.PathLike[str]
) -> Path:
    """Set the records of a study aside, with the verdicts that they had.

    Call it before a judged claim or setting changes. The records move to
    ``STUDY/withdrawn/SIZE-DATE``; ``withdrawn.json`` keeps every verdict for the ledger.

    Returns:
        The folder that has the records now.

    Raises:
        StudyError: If there is nothing to withdraw, or it was done today.
        UnknownNameError: If there is no such study or size.
    """
    found = find_study(study) if isinstance(study, str) else study
    runs = load_results(results, found, size)
    if not len(runs):
        raise StudyError(f"{found.id}: there are no records of size {size} in {results}")
    target = Path(results) / found.id / "withdrawn" / f"{size}-{_today()}"
    if target.exists():
        raise StudyError(
            f"{target}: exists already, because records of {found.id} were withdrawn "
            "today; rename that folder first"
        )
    note_withdrawn(results, judge_study(found, size, runs), reason)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(Path(results) / found.id / size, target)
    return target


def note_withdrawn(
    results: str | os.PathLike[str], verdicts: Sequence[Verdict], reason: str
) -> None:
    """Keep withdrawn verdicts with the sentences of their claims."""
    kept = withdrawn_verdicts(results)
    for verdict in verdicts:
        outcomes = {
            label: {k: v if math.isfinite(v) else None for k, v in one.numbers.items()}
            for label, one in verdict.outcomes.items()
        }
        kept.append(
            {
                "claim": verdict.claim.id,
                "text": verdict.claim.text,
                "size": verdict.size,
                "verdict": str(verdict),
                "numbers": outcomes,
                "reason": reason,
                "date": _today(),
            }
        )
    text = json.dumps(kept, indent=1, ensure_ascii=False, allow_nan=False)
    (Path(results) / WITHDRAWN).write_text(text + "\n", encoding="utf-8")


def withdrawn_verdicts(results: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Verdicts that no longer count, oldest first."""
    file = Path(results) / WITHDRAWN
    return list(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else []


def _today() -> str:
    return time.strftime("%Y-%m-%d", time.gmtime())


@runtime_checkable
class SweepTracker(Protocol):
    """Where runs of a sweep are logged besides their records."""

    def has_run(self, name: str) -> bool:
        """Whether a run of this name was logged before."""

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
    size: str | None = None,
    *,
    results: str | os.PathLike[str] = "study-results",
    settings: SweepSettings | None = None,
    tracker: SweepTracker | None = None,
    report: Report = lambda _share, _text: None,
) -> Results:
    """Run a study at every point of its space; points that have a record are not run again.

    Args:
        study: a study, or its id.
        size: "smoke", "lite", "reduced" or "published"; None for the study's ``default_size``.
        results: folder of records; one per point and seed.
        settings: engine, resources, and another space than the declared one.
        tracker: logs every run, also those of an earlier call that it does not have,
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
    size, chosen = size or found.default_size, settings or SweepSettings()
    on_ray = _uses_ray(chosen)
    points = None if chosen.space is None else chosen.space.points()
    jobs = _jobs(found, size, chosen.seeds, points)
    folder = RunFolder(results, found)
    waiting = folder.without_record(jobs)
    if tracker is not None:
        for job in jobs:
            stored = folder.stored(job)
            if stored is not None and not tracker.has_run(run_label(job.seed, job.point)):
                _log(tracker, found, job, stored.numbers, stored.seconds)

    def keep(job: Job, made: tuple[Measured, Conditions]) -> None:
        folder.save(job, made)
        if tracker is not None:
            _log(tracker, found, job, made[0].numbers, made[1].wall)

    work = _Measure(str(results), chosen.device)
    try:
        failures: list[Failure] = []
        if waiting and on_ray:
            failures = run_on_ray(work, waiting, keep, resources=chosen.resources, report=report)
        elif waiting:
            workers = chosen.resources.workers
            failures = run_in_processes(work, waiting, keep, workers=workers, report=report)
        folder.settle(waiting, failures)
    finally:
        if tracker is not None:
            _log_gallery(Path(results) / found.id / size, tracker)
    return load_results(results, found, size)


def _uses_ray(settings: SweepSettings) -> bool:
    require_choice(ENGINES, engine=settings.engine)
    require_count(1, workers=settings.resources.workers)
    has_ray = importlib.util.find_spec("ray") is not None
    needs_ray = settings.engine == "ray" or settings.resources.address is not None
    if needs_ray and not has_ray:
        raise StudyError(
            "a sweep on Ray needs the package ray; install it with pip install 'theodolite[scale]'"
            ", or leave out the engine and the address to use worker processes"
        )
    return needs_ray or (settings.engine == "auto" and has_ray)


def _log(
    tracker: SweepTracker, study: Study, job: Job, numbers: Mapping[str, Any], seconds: float
) -> None:
    parameters = {**vars(study.config_at(job.size, job.point)), "seed": job.seed, "size": job.size}
    values = {name: float(value) for name, value in numbers.items()}
    tracker.log_run(run_label(job.seed, job.point), parameters, {**values, "seconds": seconds})


def _log_gallery(records: Path, tracker: SweepTracker) -> None:
    """A page of all records of the study at this size; none without records."""
    if not any(records.rglob("record.json")):
        return
    with TemporaryDirectory() as folder:
        tracker.log_report(write_gallery(find_exhibits(records), Path(folder) / "gallery.html"))
