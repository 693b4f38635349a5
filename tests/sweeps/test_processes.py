import os
import signal
from dataclasses import dataclass
from pathlib import Path

import pytest

from theodolite.sweeps import run_in_processes


@dataclass(frozen=True)
class Write:
    """Writes a file per job; kills itself or raises where told."""

    folder: str
    kill: int = -1
    fail: int = -1
    always: bool = False

    def __call__(self, job, report):
        report(0.5, f"half of {job}")
        mark = Path(self.folder) / f"killed-{job}"
        if job == self.kill and (self.always or not mark.exists()):
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if job == self.fail:
            raise ValueError(f"job {job} is wrong")
        (Path(self.folder) / f"done-{job}").touch()
        return f"outcome {job}"


def quiet(*_):
    """Where nobody listens."""


def done(folder):
    return sorted(int(path.name.split("-")[1]) for path in folder.glob("done-*"))


@pytest.mark.parametrize("workers", [1, 2])
def test_all_jobs_run_and_a_failure_stops_no_other(tmp_path, workers):
    shares, kept = [], []
    failures = run_in_processes(
        Write(str(tmp_path), fail=2),
        range(5),
        lambda job, outcome: kept.append((job, outcome)),
        workers=workers,
        report=lambda share, text: shares.append(share),
    )
    assert done(tmp_path) == [0, 1, 3, 4]
    assert sorted(kept) == [(job, f"outcome {job}") for job in (0, 1, 3, 4)]
    assert [(f.job, f.reason) for f in failures] == [(2, "ValueError: job 2 is wrong")]
    assert shares == sorted(shares)
    assert shares[-1] > 0.85


def test_a_killed_worker_is_replaced_and_nothing_is_lost(tmp_path):
    task = Write(str(tmp_path), kill=1)
    kept = []
    failures = run_in_processes(
        task, range(4), lambda job, _: kept.append(job), workers=2, report=quiet
    )
    assert failures == []
    assert sorted(kept) == [0, 1, 2, 3]
    assert done(tmp_path) == [0, 1, 2, 3]


def test_a_job_that_always_kills_its_worker_is_given_up(tmp_path):
    task = Write(str(tmp_path), kill=0, always=True)
    failures = run_in_processes(task, range(2), quiet, workers=2, report=quiet)
    assert 0 in [failure.job for failure in failures]
    assert all("died 3 times" in failure.reason for failure in failures)
