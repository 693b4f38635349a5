"""``theodolite transfer``: the ranking on the terminal, as JSON and as a page."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from theodolite.cli.app import app
from theodolite.records import load_record

NETWORKS = """
from torch import nn

def small():
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 4), nn.ReLU(), nn.Linear(4, 3))

def wide():
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 3))

def colored():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Networks and 60 grey images of 4 x 4 pixels in three classes."""
    (tmp_path / "net.py").write_text(NETWORKS)
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 3
    images = rng.random((60, 4, 4)) + np.eye(4)[labels][:, None, :]
    parts = {"x_train": images, "y_train": labels, "x_test": images[:6], "y_test": labels[:6]}
    np.savez(tmp_path / "data.npz", **parts)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*words):
    return CliRunner().invoke(app, ["transfer", *words])


def test_ranks_and_writes(folder):
    answer = run(
        "data.npz", "small=net.py:small", "net.py:wide", "gone=net.py:nothing", "-o", "out"
    )
    assert answer.exit_code == 0, answer.output
    assert "60 labelled examples, classification of 3 classes" in answer.output
    assert "gone: not measured" in answer.output
    assert (folder / "out" / "record.json").exists()
    assert "Which model?" in (folder / "out" / "report.html").read_text()
    shown = CliRunner().invoke(app, ["view", "out", "--no-open"])
    assert shown.exit_code == 0
    assert "net.py:wide" in shown.output


def test_a_full_disk_does_not_lose_the_ranking(folder, full_disk):
    words = ("data.npz", "small=net.py:small", "net.py:wide", "--no-tangent", "-o", "out")
    with full_disk(100):
        answer, document = run(*words), run(*words, "--json")
    assert (answer.exit_code, document.exit_code) == (2, 2)
    assert "1  net.py:wide" in answer.stdout
    assert answer.stdout.endswith("Report   not written\nRecord   not written\n")
    assert answer.stderr.splitlines()[-1].startswith("error: out/")
    assert "Warning" not in answer.stderr
    told = json.loads(document.stdout)
    assert (told["folder"], told["report"]) == (None, None)
    assert "cannot be written" in told["problem"]
    assert len(told["contents"]["models"]) == 2
    assert not (folder / "out").exists()


def test_view_marks_a_ranking_without_a_digest(folder):
    run("data.npz", "net.py:small", "--no-tangent", "-o", "out")
    path = folder / "out" / "record.json"
    document = json.loads(path.read_text())
    del document["digest"]
    path.write_text(json.dumps(document | {"schema": 1}))
    view = ["view", "out", "--no-open"]
    assert (
        "\nno digest: a version before 0.3 wrote this file" in CliRunner().invoke(app, view).stdout
    )
    told = json.loads(CliRunner().invoke(app, [*view, "--json"]).stdout)
    assert told["no_digest"] is True


def test_labelled_examples_are_enough(folder):
    """Nobody who wants to know which model to start from has a test set to hand over."""
    with np.load("data.npz") as stored:
        np.savez("own.npz", x_train=stored["x_train"], y_train=stored["y_train"])
    answer = run("own.npz", "net.py:small", "--no-tangent", "-o", "out")
    assert answer.exit_code == 0, answer.output
    assert "60 labelled examples" in answer.output
    answer = run("own.npz", "net.py:small", "--split", "test")
    assert "expected the arrays x_test, y_test, but they are missing" in answer.output


def test_overwrite_replaces_the_run(folder):
    """With other options too: what is told is what lies in the folder."""
    for count in (30, 60):
        words = ("data.npz", "net.py:small", "--no-tangent", "--examples", str(count), "-o", "out")
        answer = run(*words, "--overwrite", "--json")
        assert answer.exit_code == 0, answer.output
        contents = load_record("out").contents
        assert contents["data"]["probe"] == count
        assert contents["models"] == json.loads(answer.stdout)["contents"]["models"]
    assert not (folder / "out-2").exists()


def test_images_are_resized_and_colored(folder):
    words = ("data.npz", "net.py:colored", "--image-size", "8", "--rgb", "--no-tangent", "--json")
    answer = run(*words)
    assert answer.exit_code == 0, answer.output
    model = json.loads(answer.stdout)["contents"]["models"][0]
    assert model["name"] == "net.py:colored"
    assert model["tangent"] is None


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("a=net.py:small", "a=net.py:wide"), "expected each name once"),
        (("net.py:small", "--head", "nowhere"), "unknown head"),
        (("=net.py:small",), "expected MODEL or NAME=MODEL"),
    ],
    ids=["twice", "head", "no name"],
)
def test_what_cannot_be_used_is_one_sentence(folder, words, told):
    answer = run("data.npz", *words)
    assert answer.exit_code == 2
    assert told in answer.output + answer.stderr
