import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

import pytest

from theodolite.sweeps import processes, run_in_processes


@dataclass(frozen=True)
class Write:
    """Writes a file per job; kills itself or raises where told."""

    folder: str
    kill: int = -1  # once
    doomed: int = -1  # killed every time
    fail: int = -1

    def __call__(self, job, report):
        report(0.5, f"half of {job}")
        mark = Path(self.folder) / f"killed-{job}"
        if job == self.doomed or (job == self.kill and not mark.exists()):
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
    task = Write(str(tmp_path), doomed=0)
    failures = run_in_processes(task, range(2), quiet, workers=2, report=quiet)
    assert 0 in [failure.job for failure in failures]
    assert all("died 3 times" in failure.reason for failure in failures)
    assert all(failure.kind is None for failure in failures)


INTERRUPTED = """
import signal
import time
from pathlib import Path
from theodolite.sweeps import run_in_processes

def work(job, report):
    Path(f"begun-{job}").touch()
    time.sleep(60 * job)
    return job

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in the background ignore it
    keep = lambda job, outcome: Path(f"kept-{outcome}").touch()
    run_in_processes(work, range(3), keep, workers=2, report=lambda share, text: None)
"""


@pytest.mark.parametrize("whom", [os.kill, os.killpg], ids=["driver", "terminal"])
def test_an_interrupt_ends_the_workers_at_once_and_without_their_tracebacks(tmp_path, whom):
    script = tmp_path / "run.py"
    script.write_text(INTERRUPTED)
    driver = subprocess.Popen(
        [sys.executable, str(script)],
        cwd=tmp_path,
        start_new_session=True,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not all((tmp_path / name).exists() for name in ("kept-0", "begun-1", "begun-2")):
        assert driver.poll() is None
        time.sleep(0.02)
    whom(driver.pid, signal.SIGINT)
    _, err = driver.communicate(timeout=30)
    assert err.count("Traceback") == 1
    assert err.endswith("KeyboardInterrupt\n")


def test_workers_end_with_a_driver_that_is_killed(tmp_path):
    script = tmp_path / "run.py"
    script.write_text(INTERRUPTED)
    command = [sys.executable, str(script)]
    streams = {"cwd": tmp_path, "start_new_session": True, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **streams) as driver:
        try:
            while not all((tmp_path / name).exists() for name in ("begun-1", "begun-2")):
                assert driver.poll() is None
                time.sleep(0.02)
            driver.kill()
            driver.communicate(timeout=30)  # ends when no process has the stream any more
        finally:
            with suppress(ProcessLookupError):
                os.killpg(driver.pid, signal.SIGKILL)


FULL_DISK = """
import time
from theodolite.sweeps import run_in_processes

def work(job, report):
    time.sleep(60 * job)

def keep(job, outcome):
    raise OSError("no space left")

if __name__ == "__main__":
    run_in_processes(work, range(3), keep, workers=2, report=lambda share, text: None)
"""


def test_what_cannot_be_kept_ends_the_run(tmp_path):
    script = tmp_path / "run.py"
    script.write_text(FULL_DISK)
    command = [sys.executable, str(script)]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=30)
    assert ended.returncode == 1
    assert ended.stderr.endswith("OSError: no space left\n")


def test_a_worker_hands_its_result_over_before_it_stops(monkeypatch):
    monkeypatch.setattr(processes, "_stopped", False)
    monkeypatch.setattr(processes, "_channel", SimpleQueue())
    assert processes._work(lambda job, report: job, 7, 0).value == 7
    processes._stop()  # here half of a result may be in the pipe: nothing is raised
    with pytest.raises(KeyboardInterrupt):
        processes._work(lambda job, report: job, 8, 1)


def test_a_worker_stops_within_a_job(monkeypatch):
    monkeypatch.setattr(processes, "_stopped", False)
    with pytest.raises(KeyboardInterrupt):
        processes._work(lambda job, report: processes._stop(), 7, 0)
