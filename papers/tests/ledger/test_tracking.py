"""The runs of a sweep in MLflow, in a SQLite file."""

from pathlib import Path

import pytest

from theodolite.integrations.mlflow import RunStore
from theodolite_papers.ledger.tracking import MLflowSweep

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


def test_a_run_that_is_made_again_takes_the_place_of_the_old_one(results):
    uri = f"sqlite:///{results}/mlflow.db"
    for value in (1.0, 2.0):
        with MLflowSweep("twice", uri, "again", key="the same") as sweep:
            assert sweep.has_run("seed 1") == (value == 2.0)
            sweep.log_run("seed 1", {"lr": 0.1}, {"loss": value, "undefined": float("nan")})
    client, _ = client_of(results)
    found = client.search_runs([client.get_experiment_by_name("again").experiment_id])
    assert sorted(run.info.run_name for run in found) == ["seed 1", "twice"]
    (child,) = (run for run in found if run.info.run_name == "seed 1")
    assert child.data.metrics == {"loss": 2.0}


def test_a_run_that_was_cut_off_while_it_was_sent_is_sent_again(results, monkeypatch):
    uri = f"sqlite:///{results}/mlflow.db"
    sweep = MLflowSweep("cut", uri, "cuts", key="cut")
    monkeypatch.setattr(sweep._store, "log_numbers", raised(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt), sweep:
        sweep.log_run("seed 1", {"lr": 0.1}, {"loss": 1.0})
    with MLflowSweep("cut", uri, "cuts", key="cut") as sweep:
        assert not sweep.has_run("seed 1")
        sweep.log_run("seed 1", {"lr": 0.1}, {"loss": 1.0})
        assert sweep.has_run("seed 1")
    client, _ = client_of(results)
    found = client.search_runs([client.get_experiment_by_name("cuts").experiment_id])
    assert sorted(run.info.run_name for run in found) == ["cut", "seed 1"]
    assert {run.info.status for run in found} == {"FINISHED"}


def raised(error):
    def fail(*_given):
        raise error

    return fail


@pytest.mark.parametrize(
    ("error", "status"), [(ValueError, "FAILED"), (KeyboardInterrupt, "KILLED")]
)
def test_the_run_of_a_sweep_says_how_it_ended(results, error, status):
    sweep = MLflowSweep(status, f"sqlite:///{results}/mlflow.db", "ends")
    with pytest.raises(error), sweep:
        raise error
    client, _ = client_of(results)
    assert client.get_run(sweep.run_id).info.status == status


def test_runs_of_a_sweep_are_below_its_run(results, tmp_path):
    report_file = tmp_path / "drawn" / "report.html"
    report_file.parent.mkdir()
    report_file.write_text("<p>five angles</p>")
    with MLflowSweep("sweep", f"sqlite:///{results}/mlflow.db") as sweep:
        for seed in (1, 2):
            sweep.log_run(f"seed {seed}", {"seed": seed}, {"loss": seed / 4})
        sweep.log_report(report_file)
    client, _ = client_of(results)
    parent = client.get_run(sweep.run_id)
    assert parent.info.status == "FINISHED"
    below = client.search_runs(
        [parent.info.experiment_id], f"tags.mlflow.parentRunId = '{sweep.run_id}'"
    )
    read = {run.data.params["seed"]: run.data.metrics["loss"] for run in below}
    assert read == {"1": 0.25, "2": 0.5}
    copied = client.download_artifacts(sweep.run_id, "report.html", str(tmp_path))
    assert Path(copied).read_text() == report_file.read_text()
