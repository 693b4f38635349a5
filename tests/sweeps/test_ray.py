"""Sweeps on a real Ray cluster: one machine of two cores, which drivers join by its address."""

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
from theodolite.sweeps import RayResources, ray_tune, run_on_ray

ray = pytest.importorskip("ray", reason="needs pip install 'theodolite[scale]'")


@pytest.fixture(scope="module")
def address():
    from ray.cluster_utils import Cluster

    # Ray's workers give way to all other programs; beside tests they would not get to work.
    head = {"num_cpus": 2, "include_dashboard": False, "_system_config": {"worker_niceness": 0}}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    yield cluster.address
    cluster.shutdown()


def test_a_killed_worker_is_retried_once_and_then_reported(address, tmp_path):
    kept, shares = [], []
    failures = run_on_ray(
        Write(str(tmp_path), kill=1, fail=3, doomed=4),
        range(6),
        lambda job, outcome: kept.append((job, outcome)),
        resources=RayResources(address),
        report=lambda share, text: shares.append(share),
    )
    assert (tmp_path / "killed-1").exists()
    assert sorted(kept) == [(job, f"outcome {job}") for job in (0, 1, 2, 5)]
    assert [(failure.job, failure.reason, failure.kind) for failure in failures] == [
        (3, "ValueError: job 3 is wrong", ValueError),
        (4, "its worker process died 2 times (killed, or out of memory)", None),
    ]
    assert done(tmp_path) == [0, 1, 2, 5]
    assert not ray.is_initialized()


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
    try:
        while not model_records(folder) and time.monotonic() < end and driver.poll() is None:
            time.sleep(0.01)
    finally:
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


def test_no_cluster_is_said_so():
    resources = RayResources(address="127.0.0.1:1")
    with pytest.raises(StudyError, match=r"no Ray cluster at '127.0.0.1:1'.*ray start --head"):
        run_on_ray(Write("nowhere"), [1], quiet, resources=resources, report=quiet)


def test_a_cluster_of_this_process_writes_no_token_into_the_home_folder(tmp_path, monkeypatch):
    started = []
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ray_tune._TOKEN_NAMES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(ray, "init", lambda **_: started.append(os.environ["RAY_AUTH_TOKEN"]))
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    with ray_tune._connected(RayResources()):
        pass
    assert len(started[0]) == 64
    monkeypatch.delenv("RAY_AUTH_TOKEN")


def test_a_cluster_that_does_not_start_is_said_so(monkeypatch):
    def fail(**_options):
        raise Exception("the node timed out")

    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setattr(ray, "init", fail)
    with pytest.raises(StudyError, match=r"Ray does not start .*timed out.*--engine processes"):
        run_on_ray(Write("nowhere"), [1], quiet, resources=RayResources(), report=quiet)


def test_workers_need_no_ray(tmp_path, monkeypatch):
    """Processes serve where Ray is not installed."""
    monkeypatch.setitem(sys.modules, "ray", None)
    command = ["sweep", "imani2022.fig4", "--size", "smoke", "--set", "points=20,22"]
    run = CliRunner().invoke(app, [*command, "--seeds", "1", "--results", str(tmp_path), "--json"])
    assert run.exit_code == 0, run.stderr[-2000:]
    assert len(list(tmp_path.glob("*/*/*/record.json"))) == 2
