"""Command lines with arguments that fit and arguments that do not: exit code 0, 2 or 3."""

import os
from functools import cache
from pathlib import Path
from random import Random

import numpy as np
from typer.testing import CliRunner

from tests.fuzz.records import mutated, originals
from theodolite.cli.app import app
from theodolite.records import save_run

MODEL = """
from torch import nn
def build(width=4): return nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 3))
def wide(): return nn.Linear(9, 3)
def broken(): raise RuntimeError("no such luck")
def nothing(): return None
number = 3
"""
WORDS = (
    "", "-", "--", "0", "-1", "nan", "1e9", "a=b", "=", "x=[", "\u00fc", "a b", "*", "../..", "%s",
    "{}", "None", "kernel", "representation", "0x10", "100000000000000000000", "\n", "'", "--help",
    ":", "::",
)  # fmt: skip


@cache
def place(root: Path) -> Path:
    """Files that commands may name."""
    root.mkdir(parents=True, exist_ok=True)
    (root / "model.py").write_text(MODEL)
    (root / "syntax.py").write_text("def build(:")
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((24, 4)).astype(np.float32), np.arange(24) % 3
    np.savez(root / "data.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    np.savez(root / "odd.npz", x_train=x[:5], y_train=y)
    np.savez(root / "objects.npz", x_train=np.array([None, {}]), y_train=y[:2])
    np.save(root / "plain.npy", x)
    (root / "cut.npz").write_bytes((root / "data.npz").read_bytes()[:-30])
    (root / "text.csv").write_text("a,b\n1,2\n,\n")
    (root / "empty.npz").write_bytes(b"")
    save_run(originals()["survey"], root / "run")
    save_run(originals()["history"], root / "history")
    broken = root / "broken"
    save_run(originals()["survey"], broken)
    path = broken / "record.json"
    path.write_bytes(mutated(path.read_bytes(), Random(1)))
    return root


def try_one(rng: Random, folder: Path) -> str:
    """One command; its exit code says that it worked or that there is something to correct."""
    root = place(folder.parent / "files")
    arguments = _command(rng, root)
    before = os.getcwd()  # noqa: PTH109
    os.chdir(root)
    try:
        found = CliRunner().invoke(app, arguments, catch_exceptions=True)
    finally:
        os.chdir(before)
    if found.exit_code not in (0, 2, 3):
        raise AssertionError(f"{arguments}: exit code {found.exit_code}: {found.output[-500:]}")
    return "done" if found.exit_code == 0 else f"exit {found.exit_code}"


def _command(rng: Random, root: Path) -> list[str]:
    files = ["data.npz", "data.npz", "odd.npz", "objects.npz", "plain.npy", "cut.npz", "text.csv",
             "empty.npz", "nowhere.npz", "digits", "run", *WORDS]  # fmt: skip
    models = ["model.py:build", "model.py:build", "model.py:build", "model.py:wide",
              "model.py:broken", "model.py:nothing", "model.py:number", "model.py:absent",
              "syntax.py:build", "absent.py:build", "model.py", "model.py:", *WORDS]  # fmt: skip
    name = rng.choice(["survey", "survey", "survey", "view", "transfer", "demo", rng.choice(WORDS)])
    if name == "survey":
        line = ["survey", rng.choice(models), rng.choice(files), "--permutations", "0"]
        line += ["-o", "out", "--overwrite"] if rng.random() < 0.8 else ["-o", rng.choice(WORDS)]
        line += ["--family", rng.choice(["kernel", "covariance", "gradient", *WORDS])]
        flags = ["--layer", "--readout", "--examples", "--memory-limit",
                 "--device", "--seed", "--split", "--scale", "--arg", "--option",
                 "--checkpoint", "--truth", "--name"]  # fmt: skip
        for flag in rng.sample(flags, rng.choice([0, 1, 1, 2])):
            line += [flag, rng.choice([*WORDS, "width=5", "seed=1", "last", "2x2", "4GB", *files])]
    elif name == "view":
        line = ["view", "--no-open", rng.choice(["run", "history", "broken", ".", *files])]
        line += [["--json"], ["-o", "page.html"], ["-o", rng.choice(WORDS)], []][rng.randrange(4)]
    elif name == "transfer":
        line = ["transfer", rng.choice(files), rng.choice(models), "-o", "moved"]
        line += ["--overwrite", "--no-tangent"] if rng.random() < 0.7 else [rng.choice(WORDS)]
    elif name == "demo":  # takes seconds; only what is refused at once
        line = ["demo", "--steps", rng.choice(["0", "1", "x", *WORDS[:6]]), rng.choice(WORDS)]
        line[2] = "1" if line[2] not in ("0", "x", *WORDS[:6]) else line[2]
    else:
        line = [name, rng.choice(WORDS)]
    return line
