"""A real MLflow server on loopback with SQLite, written to and read back."""

import os
import socket
import subprocess
import sys
import time
import urllib.request
from dataclasses import replace
from pathlib import Path
from urllib.error import URLError

import pytest

from theodolite.integrations.mlflow import MLflowSweep, MLflowTracker
from theodolite.integrations.tracking import scalars, track

pytestmark = pytest.mark.filterwarnings("ignore")  # of the client's many dependencies


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def answers(uri: str) -> bool:
    try:
        with urllib.request.urlopen(f"{uri}/health", timeout=1) as reply:
            return reply.status == 200
    except (URLError, OSError):
        return False


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mlflow")
    uri = f"http://127.0.0.1:{(port := free_port())}"
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{folder / 'runs.db'}"]
    command += ["--artifacts-destination", str(folder / "artifacts")]
    quiet = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    environment = {**os.environ, "NO_PROXY": "127.0.0.1", **quiet}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, env=environment)
    try:
        for _ in range(300):
            assert process.poll() is None, (folder / "log").read_text()
            if answers(uri):
                break
            time.sleep(0.2)
        yield uri
    finally:
        process.terminate()
        process.wait(timeout=20)


@pytest.fixture(autouse=True)
def _loopback(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")


def test_scalars_and_report_come_back(server, small_history, report_file, tmp_path):
    from mlflow import MlflowClient

    tracker = MLflowTracker(tracking_uri=server)
    track(small_history.run, tracker, report=report_file)
    tracker.close()
    client = MlflowClient(server)
    run = client.get_run(tracker.run_id)
    assert run.info.status == "FINISHED"
    assert run.data.metrics == pytest.approx(scalars(small_history.survey(2).record))
    tag = "kernel/cka_target/0"
    read = {metric.step: metric.value for metric in client.get_metric_history(run.info.run_id, tag)}
    written = {s: scalars(small_history.survey(s).record)[tag] for s in (0, 1, 2)}
    assert read == pytest.approx(written)
    copied = client.download_artifacts(run.info.run_id, "report.html", str(tmp_path))
    assert Path(copied).read_text() == report_file.read_text()


def test_a_given_run_stays_open(server, small_history):
    from mlflow import MlflowClient

    client = MlflowClient(server)
    given = client.create_run("0").info.run_id
    tracker = MLflowTracker(given, server)
    track(small_history.run, tracker)
    tracker.close()
    assert client.get_run(given).info.status == "RUNNING"


def test_a_sweep_is_a_run_with_runs_below_it(server, tmp_path):
    from mlflow import MlflowClient

    from theodolite.sweeps import Space
    from theodolite_papers.ledger import SweepSettings, sweep_study

    tracker = MLflowSweep("imani2022.fig4", server)
    settings = SweepSettings(engine="processes", seeds=[1, 2], space=Space({"points": [20, 30]}))
    one_worker = replace(settings, resources=replace(settings.resources, workers=1))
    results = sweep_study(
        "imani2022.fig4", "smoke", results=tmp_path, settings=one_worker, tracker=tracker
    )
    tracker.close()
    client = MlflowClient(server)
    parent = client.get_run(tracker.run_id)
    children = client.search_runs(
        [parent.info.experiment_id], f"tags.mlflow.parentRunId = '{tracker.run_id}'"
    )
    assert parent.info.status == "FINISHED"
    written = {(str(run.point["points"]), str(run.seed)): run["sigma_1"] for run in results}
    read = {
        (run.data.params["points"], run.data.params["seed"]): run.data.metrics["sigma_1"]
        for run in children
    }
    assert read == pytest.approx(written)
    assert len(read) == 4
    copied = client.download_artifacts(tracker.run_id, "gallery.html", str(tmp_path))
    assert "imani2022.fig4" in Path(copied).read_text()
