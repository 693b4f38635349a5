"""Commands without a terminal and without a home: only the folder that was named changes."""

import json
import os
import shlex
import subprocess
import sys

import numpy as np
import pytest

TEMPORARY = "temporary" * 12  # the path of a socket has 107 characters at most
MODEL = """
from torch import nn
def build():
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
"""


@pytest.fixture
def place(tmp_path):
    """A folder with a model and data, and one for temporary files, too long for a socket."""
    (tmp_path / TEMPORARY).mkdir()
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "net.py").write_text(MODEL)
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((24, 4)).astype(np.float32), np.arange(24) % 3
    np.savez(tmp_path / "work" / "data.npz", x_train=x, y_train=y)
    return tmp_path


def run(place, *arguments, shell=None, codes=(0,), encoding="utf-8"):
    """Standard input closed, no terminal, no home, one thread; ``shell`` redirects the rest."""
    inherited = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    inherited |= {
        "HOME": "/dev/null/home",
        "TMPDIR": str(place / TEMPORARY),
        "OMP_NUM_THREADS": "1",
    }
    inherited |= {"PYTHONDONTWRITEBYTECODE": "", "PYTHONIOENCODING": encoding}
    command = [sys.executable, "-m", "theodolite.cli", *arguments]
    done = subprocess.run(
        command if shell is None else f"{shlex.join(command)} {shell}",
        shell=shell is not None,
        cwd=place / "work",
        env=inherited,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding=encoding,
        check=False,
    )
    assert done.returncode in codes, done.stderr[-2000:]
    return done.stdout


def files(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_a_survey_and_its_view_write_only_what_was_named(place):
    before = files(place)
    survey = ["survey", "net.py:build", "data.npz", "--family", "kernel", "--permutations", "2"]
    told = json.loads(run(place, *survey, "-o", "out", "--json"))
    assert told["folder"] == "out"
    assert {name.split("/")[:2] == ["work", "out"] for name in files(place) - before} == {True}
    before = files(place)
    run(place, "view", "out", "-o", "page.html")
    assert files(place) - before == {"work/page.html"}


def test_models_in_worker_processes_write_only_what_was_named(place):
    """Workers are started afresh (``spawn``)."""
    before = files(place)
    transfer = ["transfer", "data.npz", "a=net.py:build", "b=net.py:build", "--no-tangent"]
    run(place, *transfer, "--workers", "2", "-o", "out", "--json")
    assert {name.split("/")[:2] == ["work", "out"] for name in files(place) - before} == {True}


# Python ends with 120 where it cannot flush a standard stream. A short survey writes nothing there.
@pytest.mark.parametrize(
    ("log", "code"), [("<&- 2>&-", 0), ("2>/dev/full", 120)], ids=["closed", "full disk"]
)
def test_commands_need_no_standard_error(place, log, code):
    survey = ["survey", "net.py:build", "data.npz", "--family", "kernel", "-o", "one"]
    assert "Record   one\n" in run(place, *survey, shell=log)
    transfer = ["transfer", "data.npz", "a=net.py:build", "b=net.py:build", "--no-tangent"]
    transfer += ["--workers", "2", "-o", "two"]
    assert "Record   two\n" in run(place, *transfer, shell=log, codes=(code,))


def test_a_reader_that_stops_is_no_error(place):
    command = ("survey", "net.py:build", "data.npz", "--family", "kernel")
    run(place, *command, shell="2> said.txt | true")
    assert "error" not in (place / "work" / "said.txt").read_text()


@pytest.mark.parametrize("command", ["--help", "survey --help", "view nowhere"])
def test_output_on_a_full_disk_is_an_error_without_a_traceback(place, command):
    run(place, *command.split(), shell="2> said.txt > /dev/full", codes=(2, 120))
    said = (place / "work" / "said.txt").read_text()
    assert said.startswith("error: ")
    assert "Traceback" not in said


def test_a_log_that_does_not_have_all_letters_gets_them_escaped(place):
    command = ("survey", "net.py:build", "data.npz", "--family", "kernel", "--name", "\u2212\u00b1")
    told = run(place, *command, "-o", "out", encoding="cp1252")
    assert "\\u2212\u00b1" in told
    document = json.loads(run(place, "view", "out", "--json", encoding="cp1252"))
    assert document["name"] == "\u2212\u00b1"
