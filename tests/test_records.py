"""Records survive a round trip, a kill, and any damage, with a message."""

import json
import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from theodolite.errors import RecordError
from theodolite.records import (
    FAMILIES,
    SCHEMA,
    Estimate,
    Record,
    Run,
    free_folder,
    load_record,
    load_run,
    save_record,
    save_run,
    save_step,
)

CONTENTS = {
    "name": "fc<1>/ünï",
    "layers": {"fc1": {"cka": 0.25, "omega": math.nan}},
    "steps": [1, 2, math.inf, -math.inf, math.nan, None, True],
}


def assert_same(actual, expected):
    if isinstance(expected, dict):
        assert set(actual) == set(expected)
        for key in expected:
            assert_same(actual[key], expected[key])
    elif isinstance(expected, (list, tuple)):
        assert len(actual) == len(expected)
        for left, right in zip(actual, expected, strict=True):
            assert_same(left, right)
    elif isinstance(expected, float) and math.isnan(expected):
        assert isinstance(actual, float)
        assert math.isnan(actual)
    else:
        assert actual == expected
        assert type(actual) is type(expected)


def test_round_trip(tmp_path):
    arrays = {"curve": np.linspace(0, 1, 5), "names": np.array(["a", "b"])}
    reasons = {"layers/fc1/omega": "all gradients are zero"}
    save_record(Record(CONTENTS, arrays, reasons), tmp_path / "run")
    loaded = load_record(tmp_path / "run")
    assert_same(loaded.contents, CONTENTS)
    assert loaded.reasons == {"layers/fc1/omega": "all gradients are zero", "steps/4": "undefined"}
    for name, array in arrays.items():
        np.testing.assert_array_equal(loaded.arrays[name], array)


def test_json_is_strict_and_says_why(tmp_path):
    path = save_record(Record(CONTENTS), tmp_path)
    document = json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(name))
    assert document["contents"]["layers"]["fc1"]["omega"] is None
    assert document["undefined"]["layers/fc1/omega"] == "undefined"


def test_estimates_are_plain_data(tmp_path):
    save_record(Record({"cka": Estimate(0.4, 0.1, 0.0, 0.2, "bootstrap")}), tmp_path)
    assert load_record(tmp_path).contents["cka"]["error"] == 0.1
    assert Estimate(0.4, null_mean=0.0, null_sd=0.2).z_score == 2
    assert math.isnan(Estimate(0.4).z_score)


def test_a_second_record_replaces_the_first_and_its_arrays(tmp_path):
    save_record(Record({"step": 1}, {"x": np.zeros(3)}), tmp_path)
    save_record(Record({"step": 2}, {"x": np.ones(3)}), tmp_path)
    assert load_record(tmp_path).contents["step"] == 2
    assert len(list(tmp_path.iterdir())) == 2


def test_a_folder_of_runs_and_a_file_are_told_from_a_run(tmp_path):
    save_record(Record({"kind": "survey"}), tmp_path / "runs" / "first")
    with pytest.raises(RecordError, match="found none here, but in first"):
        load_record(tmp_path / "runs")
    with pytest.raises(RecordError, match=r"record\.json: expected a folder .* got a file"):
        load_record(tmp_path / "runs" / "first" / "record.json")


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ({"a": {"b": object()}}, "contents/a/b: expected plain data, got object"),
        ({"a": np.zeros(2)}, "put arrays into the record's arrays"),
        ({"a": {1: 2}}, "expected text as keys"),
    ],
)
def test_only_plain_data_is_written(tmp_path, contents, message):
    with pytest.raises(RecordError, match=message):
        save_record(Record(contents), tmp_path)


def test_arrays_of_objects_are_refused(tmp_path):
    with pytest.raises(RecordError, match="expected numbers or text, got objects"):
        save_record(Record({}, {"x": np.array([{}])}), tmp_path)


def edit(path, **changes):
    document = json.loads(path.read_text())
    document.update(changes)
    path.write_text(json.dumps(document))


DAMAGE = {
    "no record": (lambda path: path.unlink(), "expected a folder with record.json, found none"),
    "cut short": (lambda path: path.write_text(path.read_text()[:-40]), "damaged, not valid JSON"),
    "not text": (lambda path: path.write_bytes(b"\xff\xfe\x00"), "damaged, not valid JSON"),
    "nan in json": (lambda path: path.write_text("NaN"), "not strict JSON"),
    "foreign": (lambda path: path.write_text('{"a": 1}'), "got another JSON file"),
    "newer": (lambda path: edit(path, schema=SCHEMA + 1), "upgrade theodolite"),
    "no schema": (lambda path: edit(path, schema="x"), "expected a schema number"),
    "other folder": (
        lambda path: edit(path, arrays={"file": "../arrays-1.npz", "sha256": ""}),
        "names no arrays file",
    ),
    "no contents": (lambda path: edit(path, contents=None), "'contents' or 'undefined' is missing"),
    "arrays gone": (lambda path: next(path.parent.glob("*.npz")).unlink(), "missing or unreadable"),
    "arrays changed": (
        lambda path: next(path.parent.glob("*.npz")).write_bytes(b"PK"),
        "digest does not match",
    ),
}


@pytest.mark.parametrize(("damage", "message"), DAMAGE.values(), ids=DAMAGE.keys())
def test_damage_is_named(tmp_path, damage, message):
    path = save_record(Record(CONTENTS, {"x": np.zeros(2)}), tmp_path)
    damage(path)
    with pytest.raises(RecordError, match=message):
        load_record(tmp_path)


@given(st.binary(max_size=200), st.integers(0, 10_000))
def test_any_bytes_in_the_place_of_a_record_raise_a_record_error(tmp_path_factory, noise, where):
    folder = tmp_path_factory.mktemp("fuzz")
    path = save_record(Record(CONTENTS, {"x": np.zeros(2)}), folder)
    raw = path.read_bytes()
    cut = where % len(raw)
    path.write_bytes(raw[:cut] + noise + raw[cut + len(noise) :])
    try:
        load_record(folder)
    except RecordError as error:
        assert str(folder) in str(error)  # noqa: PT017


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=4,
)
ROW = {"layer": None, "family": "kernel", "measure": "a", "value": 1.0, "error": None}
ROW |= {"null_mean": None, "null_sd": None, "method": "exact", "n": 3, "reason": None}
SURVEY = {"kind": "survey", "name": "", "step": None, "config": {"families": ["kernel"]}}
SURVEY |= {"data": {"n": 3, "probe": 3, "task": "classification", "label_source": "given"}}
SURVEY |= {"layers": [], "rows": [ROW], "curves": [], "warnings": [], "skipped": {}}


def test_records_of_the_first_version_come_back_in_todays_words(tmp_path):
    config = SURVEY["config"] | {"nulls": 20, "bootstrap": 3, "probes": 16}
    data = dict(SURVEY["data"])
    data["labels"] = data.pop("label_source")
    save_record(Record(SURVEY | {"config": config, "data": data}), tmp_path)
    contents = load_run(tmp_path).head.contents
    assert contents["data"] == SURVEY["data"]
    words = {"permutations": 20, "half_samples": 3, "sketch_vectors": 16}
    assert contents["config"] == SURVEY["config"] | words


def test_runs_come_back(tmp_path):
    run = Run("", Record(SURVEY), (Record(SURVEY),))
    save_run(run, tmp_path)
    assert load_run(tmp_path).head.contents == SURVEY
    assert not load_run(tmp_path).is_history


@settings(max_examples=50)
@given(st.sampled_from(sorted(SURVEY)), PLAIN, st.sampled_from(sorted(ROW)), PLAIN)
def test_any_plain_data_in_the_place_of_a_section_is_refused_or_understood(
    tmp_path_factory, section, content, key, cell
):
    folder = tmp_path_factory.mktemp("sections")
    rows = [{**ROW, key: cell}]
    save_record(Record({**SURVEY, "rows": rows, section: content}), folder)
    try:
        run = load_run(folder)
    except RecordError as error:
        assert str(folder) in str(error)  # noqa: PT017
    else:
        for record in run.steps:
            assert all(isinstance(row["value"], (int, float)) for row in record.contents["rows"])


@pytest.mark.parametrize("other", [[], {}, 1, "NaN"], ids=["list", "mapping", "number", "text"])
def test_anything_in_the_place_of_infinity(tmp_path, other):
    path = save_record(Record({"steps": math.inf}), tmp_path)
    assert load_record(tmp_path).contents["steps"] == math.inf
    path.write_text(path.read_text().replace('"Infinity"', json.dumps(other)))
    assert load_record(tmp_path).contents["steps"] == {"number": other}


@pytest.mark.parametrize("kind", ["survey", "history", "unfinished"])
def test_a_folder_with_a_run_is_not_free(tmp_path, kind):
    target = tmp_path / "run.1"
    assert free_folder(target) == target
    target.mkdir()
    (target / "notes.txt").write_text("mine")
    assert free_folder(target) == target
    if kind == "survey":
        save_record(Record(SURVEY), target)
    else:
        save_step(Record({**SURVEY, "step": 3}), target)
    if kind == "history":
        save_record(Record({**SURVEY, "kind": "history"}), target)
    assert free_folder(target) == tmp_path / "run.1-2"
    save_record(Record(SURVEY), free_folder(target))
    assert free_folder(str(target)) == tmp_path / "run.1-3"
    assert free_folder(target, overwrite=True) == target
    assert free_folder(tmp_path) == tmp_path
    assert free_folder(tmp_path, below=True) == tmp_path.with_name(f"{tmp_path.name}-2")


KILLER = """
import os, random, signal, sys, time
from pathlib import Path
import numpy as np
from theodolite.records import Record, Run, load_run, save_run, save_step

assert "torch" not in sys.modules
folder = Path(sys.argv[1])
empty = {"config": {"families": []}, "layers": [], "curves": [], "warnings": [], "skipped": {}}
empty["data"] = {"n": 9, "probe": 9, "task": "classification", "label_source": "given"}
head = Record({"kind": "history", "name": "run", **empty})

def step(number, written):
    row = {"family": "kernel", "measure": "cka_target", "value": float(written), "n": 9}
    row |= dict.fromkeys(("layer", "error", "null_mean", "null_sd", "reason")) | {"method": "exact"}
    curve = {"family": "kernel", "name": "curve", "layer": None, "labels": {}}
    curve["arrays"] = {"y": "curve"}
    contents = {**empty, "kind": "survey", "name": "", "step": number, "rows": [row]}
    contents["curves"] = [curve]
    return Record(contents, {"curve": np.full(500, written)})

def write_forever():
    for written in range(10**9):
        if written % 7 == 0:
            save_run(Run("run", head, tuple(step(n, written) for n in range(3))), folder)
        save_step(step(written % 5, written), folder)

save_run(Run("run", head, (step(0, 0),)), folder)
rng = random.Random(0)
for attempt in range(50):
    writer = os.fork()
    if writer == 0:
        write_forever()
    time.sleep(rng.uniform(0, 0.04))
    os.kill(writer, signal.SIGKILL)
    os.waitpid(writer, 0)
    run = load_run(folder)
    assert run.steps, attempt
    for record in run.steps:
        assert (record.arrays["curve"] == record.contents["rows"][0]["value"]).all(), attempt
print("50 kills")
"""


def test_fifty_kills_at_random_moments_leave_whole_records(tmp_path):
    command = [sys.executable, "-c", KILLER, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout.strip() == "50 kills", done.stderr


def test_the_table_of_families_has_their_order_and_headings():
    assert list(FAMILIES) == ["representation", "covariance", "kernel", "tangent", "gradient"]
    assert all(key == family.key for key, family in FAMILIES.items())
    assert [family.heading for family in FAMILIES.values()] == [
        "label alignment",
        "misalignment / random",
        "CKA to labels",
        "tangent alignment",
        "feature contrast",
    ]
