"""What trackers leave where no server is named: a SQLite file and a folder of artifacts."""

import pytest

from theodolite.errors import TrackingError
from theodolite.integrations.mlflow import (
    MLflowTracker,
    RunStore,
    default_tracking_uri,
)
from theodolite.integrations.tracking import parameters, scalars, track

pytestmark = pytest.mark.filterwarnings("ignore")  # of the client's many dependencies


@pytest.fixture(autouse=True)
def _unset(monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """A folder with a database of MLflow, which one migration makes for all tests."""
    folder = tmp_path_factory.mktemp("tracked")
    RunStore(f"sqlite:///{folder}/mlflow.db").start("first")
    return folder


def client_of(folder):
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
    experiment = client.get_experiment_by_name("theodolite").experiment_id
    return client, experiment


def test_a_tracker_without_an_address_takes_the_file_in_the_working_directory(
    results, small_history, report_file, monkeypatch
):
    monkeypatch.chdir(results)
    tracker = MLflowTracker()
    track(small_history.run, tracker, report=report_file)
    tracker.close()
    client, experiment = client_of(results)
    run = client.get_run(tracker.run_id)
    assert run.info.experiment_id == experiment
    assert run.data.metrics == pytest.approx(scalars(small_history.survey(2).record))
    written = parameters(small_history.run.head)
    assert run.data.params == {name: text[:500] for name, text in written.items()}
    assert (written["config.every"], written["data.n"]) == ("1", "48")
    assert [file.path for file in client.list_artifacts(tracker.run_id)] == ["report.html"]
    assert not (results / "mlruns").exists()


def test_settings_that_a_run_has_stay(results):
    store = RunStore(f"sqlite:///{results}/mlflow.db")
    run = store.start()
    store.log_parameters(run, {"a:b": 1})
    store.log_parameters(run, {"a:b": 2, **{f"p{k}": k for k in range(150)}})
    client, _ = client_of(results)
    found = client.get_run(run).data.params
    assert (found["a_b"], found["p149"], len(found)) == ("1", "149", 151)


def test_the_setting_of_mlflow_comes_before_the_file(monkeypatch, tmp_path):
    assert default_tracking_uri(tmp_path) == f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:5000")
    assert default_tracking_uri(tmp_path) == "http://127.0.0.1:5000"


def test_passwords_are_not_shown():
    with pytest.raises(TrackingError, match="'nowhere://host/db' failed") as caught:
        RunStore("nowhere://me:secret@host/db").start()
    assert "secret" not in str(caught.value)
