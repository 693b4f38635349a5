"""Damaged records: each is refused with a RecordError that names its file, or loads unchanged."""

import copy
import hashlib
import json
import shutil
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from torch import nn

import theodolite as th
from tests.report.made_records import history_run, survey_run
from theodolite.errors import RecordError
from theodolite.records import Record, Run, load_record, load_run, save_run

ODD: tuple[Any, ...] = (
    None, True, -1, 0, 10**30, 1e308, float("nan"), float("inf"), "", "\ud800", "<b>", "fc1", [],
    {}, [[]], {"number": "Infinity"}, {"a": {}}, ["x"] * 3, "kernel",
)  # fmt: skip


@cache
def originals() -> dict[str, Run]:
    torch.manual_seed(0)
    x = torch.randn(30, 4)
    models = {name: nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)) for name in "ab"}
    ranking = th.transfer(models, (x, (x[:, 0] > 0).long())).record
    return {
        "survey": survey_run(("fc1", "fc2"), name="one"),
        "history": history_run(("fc1", "fc2"), steps=(0, 5)),
        "transfer": Run("", ranking, (ranking,)),
    }


def try_one(rng: Random, folder: Path) -> str:
    """Save a run, damage it, and read, print and draw it."""
    run = originals()[rng.choice(sorted(originals()))]
    way = rng.choice([_changed_bytes, _changed_value, _changed_contents, _changed_arrays])
    try:
        same = way(rng, run, folder)
        try:
            loaded = th.load(folder)
            if same:  # no damage may change a number unnoticed
                _require_equal(_loaded(folder), run)
            loaded.to_frame()
            loaded.summary()
            repr(loaded)
            loaded.to_html(folder / "page.html")
        except RecordError as error:
            if str(folder) not in str(error):
                raise AssertionError(f"the error names no file: {error}") from error
            return f"{way.__name__[1:].replace('_', ' ')} refused"
        return f"{way.__name__[1:].replace('_', ' ')} loaded"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _loaded(folder: Path) -> Run:
    record = load_record(folder)
    ranking = record.contents.get("kind") == "transfer"
    return Run("", record, (record,)) if ranking else load_run(folder)


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _changed_bytes(rng: Random, run: Run, folder: Path) -> bool:
    """Bytes of any file; those of arrays with a digest that fits."""
    save_run(run, folder)
    path = rng.choice(_files(folder))
    path.write_bytes(mutated(path.read_bytes(), rng))
    if path.suffix == ".npz" and rng.random() < 0.7:
        _sign(path.with_name("record.json"), arrays=path)
    return True


def _changed_value(rng: Random, run: Run, folder: Path) -> bool:
    """A value of the document, whose digest is left."""
    save_run(run, folder)
    path = rng.choice([path for path in _files(folder) if path.name == "record.json"])
    document = json.loads(path.read_text())
    _replace_one(document, rng)
    path.write_text(json.dumps(document))
    return True


def _changed_contents(rng: Random, run: Run, folder: Path) -> bool:
    """Another value, or none, anywhere in the contents, saved with digests that fit."""
    steps = [copy.deepcopy(dict(step.contents)) for step in run.steps]
    for _ in range(rng.randint(1, 2)):
        _replace_one(rng.choice(steps), rng)
    _save(run, folder, steps, [dict(step.arrays) for step in run.steps])
    return False


def _changed_arrays(rng: Random, run: Run, folder: Path) -> bool:
    """Arrays that are swapped, of another shape, another type, or not there."""
    arrays = [dict(step.arrays) for step in run.steps]
    chosen = rng.choice([found for found in arrays if found])
    for _ in range(rng.randint(1, 3)):
        name, other = rng.choice(sorted(chosen)), rng.choice(sorted(chosen))
        change = rng.randrange(6)
        if change == 0:
            chosen[name], chosen[other] = chosen[other], chosen[name]
        elif change == 1:
            chosen[name] = chosen[name].reshape(-1)[: rng.randint(0, 3)]
        elif change == 2:
            chosen[name] = chosen[name].astype(rng.choice(["U3", "bool", "complex64", "int8"]))
        elif change == 3:
            chosen[name] = np.asarray(chosen[name][..., None])
        elif change == 4:
            chosen[name] = np.full_like(chosen[name], rng.choice([0, -1, 127]))
        elif len(chosen) > 1:
            del chosen[name]
    _save(run, folder, [dict(step.contents) for step in run.steps], arrays)
    return False


def _save(run: Run, folder: Path, steps: list[Any], arrays: list[Any]) -> None:
    records = tuple(Record(c, a) for c, a in zip(steps, arrays, strict=True))
    head = run.head if run.is_history else records[0]
    if run.is_history and not all(isinstance(c.get("step"), int) for c in steps):
        numbered = [dict(c) | {"step": i} for i, c in enumerate(steps)]
        records = tuple(Record(c, a) for c, a in zip(numbered, arrays, strict=True))
    if not run.is_history and head.contents.get("kind") == "history":
        head = Record(dict(head.contents) | {"kind": "survey"}, head.arrays)
    try:
        save_run(Run(run.name, head, records), folder)
    except RecordError as error:  # no plain data: refused before it is written
        raise RecordError(f"{folder}: {error}") from error


def _sign(path: Path, arrays: Path) -> None:
    """Give a document the digest of its arrays, and its own."""
    document = json.loads(path.read_text())
    document["arrays"]["sha256"] = hashlib.sha256(arrays.read_bytes()).hexdigest()
    document.pop("digest")
    document["digest"] = hashlib.sha256(json.dumps(document).encode()).hexdigest()
    path.write_text(json.dumps(document))


def _replace_one(tree: Any, rng: Random) -> None:
    """Put something odd in the place of one leaf, branch or key."""
    node = tree
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        if not keys:
            return
        key = rng.choice(keys)
        if isinstance(node[key], (dict, list)) and node[key] and rng.random() < 0.85:
            node = node[key]
            continue
        change = rng.randrange(4)
        if change == 0:
            del node[key]
        elif change == 1 and isinstance(node, list):
            node.append(copy.deepcopy(node[key]))
        elif change == 2 and isinstance(node[key], float):
            node[key] = node[key] * rng.choice([-1.0, 1e9, 1.0000001])
        else:
            node[key] = rng.choice(ODD)
        return


def mutated(data: bytes, rng: Random) -> bytes:
    """The bytes with some changed, cut out, doubled, or in another order."""
    first, second = sorted(rng.choices(range(len(data)), k=2))
    return rng.choice(
        [
            data[:first] + bytes([data[first] ^ 1 << rng.randrange(8)]) + data[first + 1 :],
            data[:first] + data[second:],
            data[:second] + data[first:],
            data[:first] + rng.randbytes(9) + data[first + 9 :],
            data[second:] + data[first:second] + data[:first],
            data[:first],
            b"",
        ]
    )


def _require_equal(loaded: Run, run: Run) -> None:
    for mine, theirs in zip((run.head, *run.steps), (loaded.head, *loaded.steps), strict=True):
        if repr(dict(mine.contents)) != repr(dict(theirs.contents)):
            raise AssertionError("the contents changed and nobody noticed")
        for name, array in mine.arrays.items():
            np.testing.assert_array_equal(array, theirs.arrays[name])
