"""A sweep of a study in MLflow, in a SQLite file beside its records.

``test_tracking.py`` has the tracker of a sweep itself.
"""

import pytest
from typer.testing import CliRunner

from theodolite.cli import app
from theodolite.records import load_record

pytestmark = pytest.mark.filterwarnings("ignore")  # of the client's many dependencies

STUDY = "imani2022.fig4"


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
    saved = [load_record(path.parent) for path in results.glob("*/*/*/record.json")]
    written = sorted(record.contents["numbers"]["sigma_1"] for record in saved)
    assert sorted(run.data.metrics["sigma_1"] for run in below.values()) == pytest.approx(written)
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
