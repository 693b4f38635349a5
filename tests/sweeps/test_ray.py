"""Sweeps on a real Ray cluster: a head and a machine of two cores that works."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from tests.sweeps.test_processes import Write, done, quiet
from theodolite.cli import app
from theodolite.errors import StudyError
from theodolite.sweeps import RayResources, run_on_ray

ray = pytest.importorskip("ray", reason="needs pip install 'theodolite[scale]'")


@pytest.fixture(scope="module")
def address():
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    cluster.add_node(num_cpus=2)
    yield cluster.address
    cluster.shutdown()


def test_a_killed_worker_loses_nothing_and_an_error_is_kept(address, tmp_path):
    kept, shares = [], []
    failures = run_on_ray(
        Write(str(tmp_path), kill=1, fail=3),
        range(5),
        lambda job, outcome: kept.append((job, outcome)),
        resources=RayResources(address),
        report=lambda share, text: shares.append(share),
    )
    assert (tmp_path / "killed-1").exists()
    assert sorted(kept) == [(job, f"outcome {job}") for job in (0, 1, 2, 4)]
    assert [(f.job, f.reason) for f in failures] == [(3, "ValueError: job 3 is wrong")]
    assert done(tmp_path) == [0, 1, 2, 4]
    assert shares[-1] == 1
    assert not ray.is_initialized()


def test_a_worker_that_dies_again_is_retried_once_and_reported(address, tmp_path):
    kept = []
    failures = run_on_ray(
        Write(str(tmp_path), kill=1, always=True),
        range(3),
        lambda job, outcome: kept.append(job),
        resources=RayResources(address),
        report=quiet,
    )
    assert sorted(kept) == [0, 2]
    assert [failure.job for failure in failures] == [1]
    assert "its worker process died 2 times" in failures[0].reason


TRANSFER = """
import sys, torch
from torch import nn
import theodolite as th
from theodolite.sweeps import RayResources

torch.manual_seed(0)
x = torch.randn(40, 6)
y = (x[:, 0] > 0).long()
models = {name: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2)) for name in "abc"}
th.transfer(models, (x, y), tangent=False, folder=sys.argv[1], ray=RayResources(sys.argv[2]))
"""


def model_records(folder):
    return {path: path.stat().st_mtime_ns for path in folder.glob("models/*/record.json")}


def test_a_ranking_whose_driver_is_killed_goes_on_with_the_models_that_are_left(address, tmp_path):
    folder = tmp_path / "run"
    command = [sys.executable, "-c", TRANSFER, str(folder), address]
    driver = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
    end = time.monotonic() + 300
    while not model_records(folder) and time.monotonic() < end and driver.poll() is None:
        time.sleep(0.01)
    os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()
    before = model_records(folder)
    assert before
    again = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert again.returncode == 0, again.stderr[-2000:]
    after = model_records(folder)
    assert len(after) == 3
    assert {path: after[path] for path in before} == before


INTERRUPTED = """
import os, signal, sys, time
from theodolite.sweeps import RayResources, run_on_ray

# Whatever runs in the background of a shell inherits a Ctrl-C that is ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)

def stalling(job, report):
    if job:
        time.sleep(120)
    return "outcome"

def interrupt(job, outcome):
    os.kill(os.getpid(), signal.SIGINT)

try:
    run_on_ray(stalling, range(3), interrupt, resources=RayResources(sys.argv[1]),
               report=lambda share, text: None)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_an_interruption_is_no_failure_of_what_did_not_run(address):
    """In a process of its own: Tune leaves files open when it is interrupted."""
    command = [sys.executable, "-c", INTERRUPTED, address]
    run = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert run.stdout == "interrupted\n", run.stderr[-2000:]


def sweep_command(address, results, points):
    return [
        sys.executable, "-m", "theodolite.cli", "sweep", "imani2022.fig4", "--size", "smoke",
        "--set", f"points={points}", "--seeds", "1", "--results", str(results),
        "--address", address, "--json",
    ]  # fmt: skip


def records(results):
    return {path: path.stat().st_mtime_ns for path in results.glob("*/*/*/record.json")}


def test_a_killed_driver_resumes_where_it_stopped(address, tmp_path):
    results = tmp_path / "results"
    # One point after the other; the second takes a second or more.
    command = [*sweep_command(address, results, "20,3000000"), "--cpus", "2"]
    driver = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
    end = time.monotonic() + 300
    while not records(results) and time.monotonic() < end and driver.poll() is None:
        time.sleep(0.02)
    os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()
    before = records(results)
    assert len(before) == 1
    again = CliRunner().invoke(app, command[3:])
    assert again.exit_code == 0, again.stderr[-2000:]
    after = records(results)
    assert len(after) == 2
    assert {path: after[path] for path in before} == before
    verdicts = json.loads(again.stdout)
    assert {verdict["status"] for verdict in verdicts} == {"not run"}  # at the study's own point


def test_no_cluster_is_said_so():
    resources = RayResources(address="127.0.0.1:1")
    with pytest.raises(StudyError, match=r"no Ray cluster at '127.0.0.1:1'.*ray start --head"):
        run_on_ray(Write("nowhere"), [1], quiet, resources=resources, report=quiet)


def test_workers_need_no_ray(tmp_path, monkeypatch):
    """Processes serve where Ray is not installed."""
    monkeypatch.setitem(sys.modules, "ray", None)
    command = sweep_command("unused", tmp_path, "20,22")[3:]
    where = command.index("--address")
    run = CliRunner().invoke(app, command[:where] + command[where + 2 :])
    assert run.exit_code == 0, run.stderr[-2000:]
    assert len(records(tmp_path)) == 2
