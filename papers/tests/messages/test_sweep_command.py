"""Mistakes in ``theodolite sweep``: exit code 2 and one sentence before anything runs."""

import re
import sys

import pytest
from typer.testing import CliRunner

from theodolite.cli import app

pytestmark = pytest.mark.filterwarnings("ignore")  # of MLflow's many dependencies


def refused(results, *more, study="imani2022.fig4"):
    words = ["sweep", study, "--size", "smoke", "--results", str(results), "--engine", "processes"]
    result = CliRunner().invoke(app, [*words, *map(str, more)])
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert not list(results.rglob("record.json"))
    return result.stderr.splitlines()[-1]


@pytest.fixture(autouse=True)
def _quiet(monkeypatch):
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.mark.parametrize(
    ("uri", "part"),
    [
        ("nowhere://host", "tracking in 'nowhere://host' failed: .*unsupported URI"),
        (
            "http://127.0.0.1:9",
            "tracking in 'http://127.0.0.1:9' failed: .*a running MLflow server",
        ),
    ],
    ids=["scheme", "server"],
)
def test_an_address_that_cannot_be_tracked_to(tmp_path, uri, part):
    assert re.search(part, refused(tmp_path, "--tracking-uri", uri))


def test_a_file_that_is_no_database(tmp_path):
    (tmp_path / "notes.db").write_text("not a database, but long enough to have a header " * 9)
    said = refused(tmp_path, "--tracking-uri", f"sqlite:///{tmp_path}/notes.db")
    assert "file is not a database" in said
    assert "sqlite:///runs.db" in said


def test_no_mlflow(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    said = refused(tmp_path, "--track")
    assert "--track: mlflow is not installed; run pip install 'theodolite[track]'" in said


def test_an_unknown_study_opens_no_run(tmp_path):
    assert "unknown study 'imani2022.fig99'" in refused(
        tmp_path, "--track", study="imani2022.fig99"
    )
    assert not list(tmp_path.iterdir())
