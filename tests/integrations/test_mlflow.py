"""A real MLflow server on loopback with SQLite, written to and read back."""

from pathlib import Path

import pytest

from tests.integrations.mlflow_server import running_server
from theodolite.integrations import MLflowTracker, scalars, track

pytestmark = pytest.mark.filterwarnings("ignore")  # of the client's many dependencies


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with running_server(tmp_path_factory.mktemp("mlflow")) as uri:
        yield uri


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
