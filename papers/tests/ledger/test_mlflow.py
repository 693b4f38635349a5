"""A sweep of a study in MLflow: on a real server, and in a SQLite file with its records."""

from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.integrations.mlflow_server import running_server
from theodolite.cli import app
from theodolite.integrations import MLflowSweep
from theodolite.sweeps import Space
from theodolite_papers.ledger import SweepSettings, sweep_study

pytestmark = pytest.mark.filterwarnings("ignore")  # of the client's many dependencies

STUDY = "imani2022.fig4"


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    (tmp_path / "server").mkdir()
    with running_server(tmp_path / "server") as uri:
        yield uri


def test_a_sweep_is_a_run_with_runs_below_it(server, tmp_path):
    from mlflow import MlflowClient

    tracker = MLflowSweep(STUDY, server)
    settings = SweepSettings(engine="processes", seeds=[1, 2], space=Space({"points": [20, 30]}))
    one_worker = replace(settings, resources=replace(settings.resources, workers=1))
    results = sweep_study(
        STUDY,
        "smoke",
        results=tmp_path / "results",
        settings=one_worker,
        tracker=tracker,
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
    assert STUDY in Path(copied).read_text()


@pytest.fixture
def _unset(monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")


def swept(results, points, *more):
    words = ["sweep", STUDY, "--size", "smoke", "--seeds", "1,2", "--engine", "processes"]
    words += ["--workers", "1", "--results", str(results), "--set", f"points={points}", "--json"]
    result = CliRunner().invoke(app, [*words, *more])
    assert result.exit_code == 0, result.output
    return result


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """A folder with two records that no tracker was told of."""
    folder = tmp_path_factory.mktemp("swept") / "results"
    swept(folder, "20")
    assert not list(folder.glob("mlflow*"))
    return folder


def client_of(folder):
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
    experiment = client.get_experiment_by_name("theodolite").experiment_id
    return client, experiment


def runs_of(folder, query=""):
    client, experiment = client_of(folder)
    return {run.info.run_name: run for run in client.search_runs([experiment], query)}


@pytest.mark.usefixtures("_unset")
def test_track_alone_makes_a_database_beside_the_records(results):
    assert "mlflow.db, run " in swept(results, "20,30", "--track").stderr
    client, _ = client_of(results)
    parent = runs_of(results)[STUDY]
    assert parent.info.status == "FINISHED"
    assert parent.data.params == {"study": STUDY, "size": "smoke", "device": "cpu"}
    below = runs_of(results, f"tags.mlflow.parentRunId = '{parent.info.run_id}'")
    assert set(below) == {f"seed {s}, points {p}" for s in (1, 2) for p in (20, 30)}
    assert [file.path for file in client.list_artifacts(parent.info.run_id)] == ["gallery.html"]
    (page,) = (results / "mlflow-artifacts").rglob("gallery.html")
    records = [path.name for path in (results / STUDY / "smoke").glob("seed-*")]
    assert len(records) == 4
    assert all(record in page.read_text() for record in records)


@pytest.mark.usefixtures("_unset")
def test_a_sweep_that_goes_on_stays_one_run_and_counts_none_twice(results):
    swept(results, "20,30", "--track")
    before = runs_of(results)
    swept(results, "20,30,40", "--track")
    client, experiment = client_of(results)
    names = [run.info.run_name for run in client.search_runs([experiment])]
    assert len(names) == len(set(names)) == 7
    after = runs_of(results)
    assert after[STUDY].info.run_id == before[STUDY].info.run_id
    again = "seed 1, points 20"
    assert after[again].info.run_id == before[again].info.run_id
    assert after["seed 2, points 40"].data.params["points"] == "40"
