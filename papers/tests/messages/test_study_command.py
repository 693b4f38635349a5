"""Mistakes in ``theodolite study``: exit code 2 and one sentence, nothing written."""

import pytest
from typer.testing import CliRunner

from theodolite.cli import app


def refused(folder, *words):
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert list(folder.iterdir()) == []
    return result.stderr


@pytest.mark.parametrize("seeds", ["5-1", ","])
@pytest.mark.parametrize("command", [("study", "run"), ("sweep",)], ids=["run", "sweep"])
def test_seeds_that_are_none(tmp_path, command, seeds):
    words = (*command, "imani2022.fig4", "--size", "smoke", "--results", tmp_path)
    said = refused(tmp_path, *words, "--seeds", seeds)
    assert f"--seeds: expected at least one, got '{seeds}'" in said


@pytest.mark.parametrize(
    "command", [("check", "imani2022.fig4"), ("ledger",)], ids=["check", "ledger"]
)
def test_a_folder_that_is_not_there(tmp_path, command):
    more = ("-o", tmp_path / "ledger") if command == ("ledger",) else ()
    said = refused(tmp_path, "study", *command, "--results", tmp_path / "recrods", *more)
    assert "recrods' does not exist" in said
    assert "theodolite study run STUDY --results FOLDER" in said


@pytest.mark.parametrize("command", [("study", "run"), ("sweep",)], ids=["run", "sweep"])
def test_a_device_that_is_not_there(tmp_path, command):
    words = (*command, "imani2022.fig7", "--size", "smoke", "--results", tmp_path)
    assert "--device: expected cpu, or cuda if this machine has a GPU" in refused(
        tmp_path, *words, "--device", "cuda:99"
    )
