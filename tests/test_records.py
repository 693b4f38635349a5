"""Records survive a round trip, a kill, and any damage, with a message."""

import errno
import hashlib
import io
import json
import math
import os
import random
import re
import resource
import subprocess
import sys
import threading
import time
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import theodolite
from theodolite.errors import RecordError, WriteError
from theodolite.records import (
    FAMILIES,
    SCHEMA,
    Estimate,
    HistoryWriter,
    Record,
    Run,
    frame_of,
    free_folder,
    load_record,
    load_run,
    save_record,
    save_run,
)
from theodolite.records._disk import held_folder, replace_file
from theodolite.records._files import numbered

ROW = {"layer": None, "family": "kernel", "measure": "a", "value": 1.0, "error": None}
ROW |= {"null_mean": None, "null_sd": None, "method": "exact", "n": 3, "reason": None}
SURVEY = {"kind": "survey", "name": "", "step": None, "config": {"families": ["kernel"]}}
SURVEY |= {"data": {"n": 3, "probe": 3, "task": "classification", "label_source": "given"}}
SURVEY |= {"layers": [], "rows": [ROW], "curves": [], "warnings": [], "skipped": {}}


def test_measures_of_older_records_have_their_names_of_today(tmp_path):
    row = ROW | {"layer": "fc1", "measure": "readout_accuracy"}
    warning = {"layer": "fc1", "measure": "readout_r2", "text": "few examples"}
    data = SURVEY["data"] | {"label_source": "shuffled"}
    old = SURVEY | {"rows": [row, ROW], "warnings": [warning], "data": data}
    save_record(Record(old), tmp_path)
    contents = load_run(tmp_path).head.contents
    assert [row["measure"] for row in contents["rows"]] == ["probe_accuracy", "a"]
    assert contents["warnings"][0]["measure"] == "probe_r2"
    assert contents["data"]["label_source"] == "random"


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
    """Change a record as its own writer would have, with the digest of the changed one."""
    document = json.loads(path.read_text()) | changes
    document.pop("digest")
    document["digest"] = hashlib.sha256(json.dumps(document).encode()).hexdigest()
    path.write_text(json.dumps(document))


def pack(folder, arrays, **members):
    """Put other arrays beside a record, which names them."""
    name, path = "arrays-other.npz", folder / "record.json"
    np.savez_compressed(folder / name, **arrays)
    digest = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    edit(path, arrays={"file": name, "sha256": digest, **members})


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


def test_every_edited_value_is_noticed(tmp_path):
    path = save_record(Record(SURVEY, {"x": np.zeros(2)}), tmp_path)
    text = path.read_text()
    digits = [i for i, letter in enumerate(text) if letter.isdigit()]
    for place in digits:
        changed = str((int(text[place]) + 1) % 10)
        path.write_text(text[:place] + changed + text[place + 1 :])
        with pytest.raises(RecordError, match=re.escape(str(tmp_path))):
            load_record(tmp_path)
    path.write_text(json.dumps(json.loads(text)))  # white space is no change
    assert load_record(tmp_path).contents == SURVEY


def test_records_without_a_digest_load_and_are_marked(tmp_path):
    path = save_record(Record(SURVEY, {"x": np.zeros(2)}), tmp_path)
    assert "no digest" not in repr(load_record(tmp_path))
    document = json.loads(path.read_text())
    del document["digest"], document["arrays"]["members"]
    path.write_text(json.dumps(document))
    with pytest.raises(RecordError, match="its digest does not match"):
        load_record(tmp_path)
    path.write_text(json.dumps(document | {"schema": 1}))
    loaded = load_record(tmp_path)
    assert loaded.contents == SURVEY
    assert loaded.unverified
    assert repr(loaded).endswith("1 arrays, no digest)")
    survey = theodolite.load(tmp_path)
    assert repr(survey) == "Survey(0 layers, 3 examples: kernel, no digest)"
    assert "no digest" in survey.summary()


def test_arrays_that_unpack_to_more_than_the_limit_are_not_read(tmp_path):
    save_record(Record({}), tmp_path)
    pack(tmp_path, {"x": np.zeros(10_000_000, dtype=np.uint8)})
    assert (tmp_path / "arrays-other.npz").stat().st_size < 20_000
    with pytest.raises(RecordError, match=r"10,000,128 bytes, more than the limit of 1,000,000"):
        load_record(tmp_path, max_bytes=1_000_000)
    assert load_record(tmp_path).arrays["x"].nbytes == 10_000_000
    with pytest.raises(RecordError, match="more than the limit of 10"):
        load_record(tmp_path, max_bytes=10)
    assert load_record(tmp_path, max_bytes=None).arrays["x"].nbytes == 10_000_000


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_an_array_that_unpacks_to_more_than_its_archive_says_is_not_unpacked(tmp_path, method):
    save_record(Record({}), tmp_path)
    member, packed = io.BytesIO(), io.BytesIO()
    np.save(member, np.zeros(50_000_000, dtype=np.uint8))
    with zipfile.ZipFile(packed, "w", method) as archive:
        archive.writestr("x.npy", member.getvalue())
        archive.getinfo("x.npy").file_size = 300  # as the table at the end of the file says
    (tmp_path / "arrays-1.npz").write_bytes(packed.getvalue())
    digest = hashlib.sha256(packed.getvalue()).hexdigest()
    edit(tmp_path / "record.json", arrays={"file": "arrays-1.npz", "sha256": digest})
    tracemalloc.start()
    try:
        with pytest.raises(RecordError, match=r"arrays-1\.npz: the arrays cannot be read"):
            load_record(tmp_path, max_bytes=1_000_000)
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()


def test_an_array_whose_header_asks_for_more_than_there_is(tmp_path):
    save_record(Record({}), tmp_path)
    header = np.lib.format.header_data_from_array_1_0(np.zeros(3)) | {"shape": (10**15,)}
    member, packed = io.BytesIO(), io.BytesIO()
    np.lib.format.write_array_header_1_0(member, header)
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("x.npy", member.getvalue() + bytes(24))
    (tmp_path / "arrays-1.npz").write_bytes(packed.getvalue())
    digest = hashlib.sha256(packed.getvalue()).hexdigest()
    edit(tmp_path / "record.json", arrays={"file": "arrays-1.npz", "sha256": digest})
    with pytest.raises(RecordError, match=r"arrays-1\.npz: the arrays cannot be read"):
        load_record(tmp_path)


@pytest.mark.parametrize(
    ("arrays", "members"),
    [
        ({"x": np.zeros(4)}, {"x": ["<f8", 3]}),
        ({"x": np.zeros(3, dtype=np.float32)}, {"x": ["<f8", 3]}),
        ({"y": np.zeros(3)}, {"x": ["<f8", 3]}),
        ({}, {"x": ["<f8", 3]}),
        ({"x": np.zeros(3)}, ["x"]),
        ({"x": np.zeros(3)}, None),
        ({"x": np.array([None])}, {"x": ["|O", 1]}),
    ],
    ids=["longer", "dtype", "name", "missing", "no mapping", "null", "objects"],
)
def test_arrays_other_than_those_that_the_record_names_are_refused(tmp_path, arrays, members):
    save_record(Record({}), tmp_path)
    pack(tmp_path, arrays, members=members)
    with pytest.raises(RecordError, match=r"arrays-other\.npz: the arrays cannot be read"):
        load_record(tmp_path)


def made(arrays, **roles):
    """A survey with one curve of these arrays."""
    curve = {"layer": None, "family": "kernel", "name": "spectrum", "labels": {}}
    curve["arrays"] = {role: role for role in roles}
    return Record({**SURVEY, "curves": [curve]}, dict(roles) if arrays else {})


CURVES = {
    "missing": (made(False, x=1, y=1), "the array 'x' is missing"),
    "length": (made(True, x=np.ones(3), y=np.ones(4)), r"y: expected .* with n = 3, got .*\(4,\)"),
    "axes": (made(True, x=np.ones((3, 1)), y=np.ones(3)), r"x: expected numbers of shape \(n\)"),
    "text": (made(True, x=np.array(["a"]), y=np.ones(1)), "x: expected numbers"),
    "empty": (made(True, x=np.ones(0), y=np.ones(0)), "x: expected numbers"),
    "not square": (made(True, matrix=np.ones((3, 2)), classes=np.ones(3)), "matrix: expected"),
    "images": (made(True, images=np.ones((3, 2)), values=np.ones(3)), "images: expected"),
    "other roles": (made(True, z=np.ones(3)), "expected arrays x and y, images and values"),
}


@pytest.mark.parametrize(("record", "message"), CURVES.values(), ids=CURVES.keys())
def test_curves_whose_arrays_do_not_fit_are_refused(tmp_path, record, message):
    save_record(record, tmp_path)
    with pytest.raises(RecordError, match=message):
        load_run(tmp_path)


def test_an_answer_without_its_text_is_refused(tmp_path):
    save_record(
        Record({**SURVEY, "answers": [{"question": "task", "certainty": "open"}]}), tmp_path
    )
    with pytest.raises(RecordError, match="answers/0/text is missing"):
        load_run(tmp_path)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({}, "example_losses: the array 'loss/mean' is missing"),
        ({"loss/mean": np.ones((2, 2))}, r"losses: mean: expected numbers of shape \(n\)"),
    ],
)
def test_losses_of_examples_that_are_not_there_are_refused(tmp_path, arrays, message):
    losses = {"mean": "loss/mean", "measurements": 1}
    head = Record({**SURVEY, "kind": "history"})
    step = Record({**SURVEY, "step": 0, "example_losses": losses}, arrays)
    save_run(Run("", head, (step,)), tmp_path)
    with pytest.raises(RecordError, match=message):
        theodolite.load(tmp_path)


@pytest.mark.parametrize("kind", ["survey", "history"])
def test_two_layers_of_one_name_are_refused(tmp_path, kind):
    layers = [{"name": "fc1"}, {"name": "fc2"}, {"name": "fc1"}]
    head = Record({**SURVEY, "kind": kind, "layers": layers})
    save_run(Run("", head, () if kind == "history" else (head,)), tmp_path)
    with pytest.raises(RecordError, match="damaged: layers: 'fc1' is there twice; measure again"):
        theodolite.load(tmp_path)


def test_a_pipe_in_the_place_of_a_record_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "record.json")
    with pytest.raises(RecordError, match="expected a regular file"):
        load_record(tmp_path)


@pytest.mark.parametrize("damaged", ["record", "arrays", "both"])
def test_five_hundred_damaged_files_give_record_errors(tmp_path, damaged):
    """Bytes of the document, or of arrays whose digest fits, are changed, cut, doubled, swapped."""
    generator = random.Random(damaged)
    arrays = {"x": np.linspace(0, 1, 40), "names": np.array(["a", "bc"])}
    path = save_record(Record(SURVEY, arrays), tmp_path)
    document, packed = path.read_bytes(), next(tmp_path.glob("*.npz")).read_bytes()
    refused = 0
    for _ in range(500):
        text, data = document, packed
        if damaged != "record":
            data = mutated(packed, generator)
        if damaged != "arrays":
            text = mutated(document, generator)
        next(tmp_path.glob("*.npz")).write_bytes(data)
        path.write_bytes(text)
        if damaged == "arrays":
            digest = hashlib.sha256(data).hexdigest()
            edit(path, arrays=json.loads(document)["arrays"] | {"sha256": digest})
        try:
            loaded = load_record(tmp_path)
        except RecordError as error:
            assert str(tmp_path) in str(error)  # noqa: PT017
            refused += 1
        else:
            assert loaded.contents == SURVEY
            assert loaded.arrays.keys() == arrays.keys()
            for name in arrays:
                np.testing.assert_array_equal(loaded.arrays[name], arrays[name])
    assert refused > 400


def mutated(data, generator):
    first, second = sorted(generator.choices(range(len(data)), k=2))
    return generator.choice(
        [
            data[:first] + bytes([data[first] ^ 1 << generator.randrange(8)]) + data[first + 1 :],
            data[:first] + data[second:],
            data[:second] + data[first:],
            data[:first] + generator.randbytes(9) + data[first + 9 :],
            data[second:] + data[first:second] + data[:first],
        ]
    )


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


def test_text_that_is_no_unicode_comes_back_and_stands_in_tables(tmp_path):
    contents = {**SURVEY, "name": "a\udc80", "rows": [ROW | {"layer": "\ud800"}]}
    save_record(Record(contents), tmp_path)
    run = load_run(tmp_path)
    assert run.name == "a\udc80"
    frame = frame_of([run, run], names=True)
    assert (frame["run"][0], frame["layer"][0]) == ("a\\udc80", "\\ud800")


@pytest.mark.parametrize("other", [[], {}, 1, "NaN"], ids=["list", "mapping", "number", "text"])
def test_anything_in_the_place_of_infinity(tmp_path, other):
    path = save_record(Record({"steps": math.inf}), tmp_path)
    assert load_record(tmp_path).contents["steps"] == math.inf
    contents = json.loads(path.read_text().replace('"Infinity"', json.dumps(other)))["contents"]
    edit(path, contents=contents)
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
        save_record(Record({**SURVEY, "step": 3}), target / "steps" / "0000000003")
    if kind == "history":
        save_record(Record({**SURVEY, "kind": "history"}), target)
    assert free_folder(target) == tmp_path / "run.1-2"
    save_record(Record(SURVEY), free_folder(target))
    assert free_folder(str(target)) == tmp_path / "run.1-3"
    assert free_folder(target, overwrite=True) == target
    assert free_folder(tmp_path) == tmp_path
    assert free_folder(tmp_path, below=True) == tmp_path.with_name(f"{tmp_path.name}-2")


def test_folders_that_may_not_be_read_have_no_run(tmp_path, monkeypatch):
    for name in ("open", "locked"):
        save_run(history_of(step_of(0, 1)), tmp_path / "runs" / name)
    forbid(monkeypatch, tmp_path / "runs" / "locked")
    with pytest.raises(RecordError, match="found none here, but in open"):
        load_record(tmp_path / "runs")
    with pytest.raises(RecordError, match=r"locked.*cannot be read"):
        load_run(tmp_path / "runs" / "locked")
    assert free_folder(tmp_path / "runs" / "locked").name == "locked"
    assert free_folder(tmp_path / "runs", below=True).name == "runs-2"
    assert free_folder("a" * 300) == Path("a" * 300)  # longer than a name may be


@pytest.mark.parametrize("place", ["steps", "steps/0000000001", "steps/0000000002"])
def test_steps_that_may_not_be_read_are_not_left_out(tmp_path, monkeypatch, place):
    save_run(history_of(*(step_of(number, 1) for number in range(3))), tmp_path)
    forbid(monkeypatch, tmp_path / place)
    with pytest.raises(RecordError, match=rf"{place}.*cannot be (listed|read)"):
        load_run(tmp_path)


def forbid(monkeypatch, folder):
    """Nothing in a folder may be listed or looked up; a test that root runs has no such folder."""
    for name in ("listdir", "scandir", "stat", "open"):
        asked = getattr(os, name)

        def refuse(path=".", *words, asked=asked, name=name, **options):
            known = Path(os.fsdecode(path)) if isinstance(path, (str, os.PathLike)) else Path()
            if folder in known.parents or (known == folder and name != "stat"):
                raise PermissionError(errno.EACCES, "Permission denied", str(path))
            return asked(path, *words, **options)

        monkeypatch.setattr(os, name, refuse)


@pytest.mark.parametrize("schema", [1, SCHEMA])
def test_numbers_that_no_float_can_hold_are_damage(tmp_path, schema):
    path = save_record(Record({"value": 0.5}), tmp_path)
    text = path.read_text().replace("0.5", "1e999")
    path.write_text(text.replace(f'"schema": {SCHEMA}', f'"schema": {schema}'))
    with pytest.raises(RecordError, match=r"record\.json: damaged.*1e999 is too large"):
        load_record(tmp_path)


KILLER = """
import os, random, signal, sys, time
from pathlib import Path
import numpy as np
from theodolite.records import Record, Run, load_record, load_run, save_run
from theodolite.records._runs import _steps_name, _write_step, claimed

assert "torch" not in sys.modules
folder = Path(sys.argv[1])
empty = {"config": {"families": []}, "layers": [], "curves": [], "warnings": [], "skipped": {}}
empty["data"] = {"n": 9, "probe": 9, "task": "classification", "label_source": "given"}
head = Record({"kind": "history", "name": "run", **empty})

def step(number, written):
    row = {"family": "kernel", "measure": "cka_target", "value": float(written), "n": 9}
    row |= dict.fromkeys(("layer", "error", "null_mean", "null_sd", "reason")) | {"method": "exact"}
    curve = {"family": "kernel", "name": "curve", "layer": None, "labels": {}}
    curve["arrays"] = {"x": "places", "y": "curve"}
    contents = {**empty, "kind": "survey", "name": "", "step": number, "rows": [row]}
    contents["curves"] = [curve]
    return Record(contents, {"curve": np.full(500, written), "places": np.arange(500.0)})

def save_step(record):  # as a HistoryWriter does
    with claimed(folder, overwrite=True) as place:
        _write_step(record, place, folder / _steps_name(load_record(folder), folder))

def write_on(parent):  # a writer whose parent has ended would fill the disk
    written = 0
    while os.getppid() == parent:
        written += 1
        save_run(Run("run", head, tuple(step(n, written) for n in range(3))), folder)
        save_step(step(5, written))

def require_whole():
    run = load_run(folder)
    for record in run.steps:
        assert (record.arrays["curve"] == record.contents["rows"][0]["value"]).all()
    first = run.steps[:3]
    assert [record.contents["step"] for record in first] == [0, 1, 2], "steps are missing"
    assert len({record.contents["rows"][0]["value"] for record in first}) == 1, "two runs are mixed"

save_run(Run("run", head, tuple(step(n, 0) for n in range(3))), folder)
rng = random.Random(0)
for attempt in range(50):
    parent = os.getpid()
    writer = os.fork()
    if writer == 0:
        write_on(parent)
        os._exit(0)
    try:
        until = time.monotonic() + rng.uniform(0, 0.06)
        while time.monotonic() < until:
            require_whole()
    finally:  # also after a failure: a living writer would keep the output open
        os.kill(writer, signal.SIGKILL)
        os.waitpid(writer, 0)
    require_whole()
save_run(Run("run", head, ()), folder)
assert len(list(folder.iterdir())) == 2, "leftovers of killed writers stay"
print("50 kills")
"""


def test_fifty_kills_at_random_moments_leave_whole_records(tmp_path):
    command = [sys.executable, "-c", KILLER, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout.strip() == "50 kills", done.stderr


RACE = """
import os, random, signal, sys, time
from pathlib import Path
import numpy as np
from theodolite.records import Record, Run, load_record, save_record, save_run

place, way = Path(sys.argv[1]), sys.argv[2]
WRITERS, ROUNDS = 5, 40
lost = 0
for round in range(ROUNDS):
    folder = place / f"folder-of-{round}"
    gate, opened = os.pipe()
    children = []
    for writer in range(WRITERS):
        child = os.fork()
        if child == 0:
            os.close(opened)
            os.read(gate, 1)  # all begin when the gate closes
            arrays = {"x": np.full(2000, writer)}
            run = Run("", Record({"writer": writer}, arrays), ())
            save_run(run, folder, overwrite=way != "beside")
            os._exit(0)
        children.append(child)
    os.close(gate)
    os.close(opened)
    if way == "killed":
        time.sleep(random.Random(round).uniform(0, 0.01))
        for child in children[1:]:
            os.kill(child, signal.SIGKILL)
    for child in children:
        os.waitpid(child, 0)
    folders = [path for path in place.glob("*") if path.name.startswith(folder.name)]
    for found in folders:
        record = load_record(found)
        assert (record.arrays["x"] == record.contents["writer"]).all()
        if way != "killed":
            assert len(list(found.iterdir())) == 2, list(found.iterdir())
    writers = {load_record(found).contents["writer"] for found in folders}
    if way == "beside":
        lost += WRITERS - len(writers)
    else:
        assert len(folders) == 1
        save_record(Record({}), folder)
        assert len(list(folder.iterdir())) == 2, "leftovers of killed writers stay"
print(f"{ROUNDS * WRITERS} saves, {lost} lost")
"""


@pytest.mark.parametrize("way", ["over", "beside", "killed"])
def test_two_hundred_simultaneous_saves_lose_nothing(tmp_path, way):
    command = [sys.executable, "-c", RACE, str(tmp_path), way]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout.strip() == "200 saves, 0 lost", done.stderr


READERS = """
import os, signal, sys, time
import numpy as np
from theodolite.records import Record, Run, load_record, save_record, save_run

folder = sys.argv[1]
save_record(Record({"written": 0}, {"x": np.zeros(50)}), folder)
parent, written = os.getpid(), 0
writer = os.fork()
if writer == 0:
    while os.getppid() == parent:
        written += 1
        save_record(Record({"written": written}, {"x": np.full(50, written)}), folder)
    os._exit(0)
seen, reads = set(), 0
try:
    while reads < 1000 or len(seen) <= 20:  # a busy machine runs one of the two at a time
        reads += 1
        record = load_record(folder)
        assert (record.arrays["x"] == record.contents["written"]).all()
        seen.add(record.contents["written"])
finally:
    os.kill(writer, signal.SIGKILL)
print("whole")
"""


def test_a_record_is_read_while_another_process_replaces_it(tmp_path):
    command = [sys.executable, "-c", READERS, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout.strip() == "whole", done.stderr


def step_of(number, value):
    rows = [ROW | {"value": float(value)}]
    return Record({**SURVEY, "step": number, "rows": rows}, {"x": np.full(3, value)})


def history_of(*steps):
    return Run("", Record({**SURVEY, "kind": "history"}), steps)


def test_a_history_whose_folder_is_taken_moves_aside_with_all_its_steps(tmp_path):
    first, second = HistoryWriter(tmp_path / "run"), HistoryWriter(tmp_path / "run", overwrite=True)
    first.write(history_of(step_of(0, 1)))
    second.write(history_of(step_of(5, 2)))
    first.write(history_of(step_of(0, 1), step_of(1, 1)))
    second.write(history_of(step_of(5, 2), step_of(6, 2)))
    assert (first.folder.name, second.folder.name) == ("run-2", "run")
    for writer, steps in ((first, [0, 1]), (second, [5, 6])):
        assert [s.contents["step"] for s in load_run(writer.folder).steps] == steps


def test_two_histories_that_begin_in_one_folder_are_both_whole(tmp_path):
    writers = [HistoryWriter(tmp_path / "run") for _ in range(2)]
    for writer in writers:
        writer.write(history_of(step_of(0, 1)))
    assert [writer.folder.name for writer in writers] == ["run", "run-2"]


def test_a_full_disk_leaves_the_old_record_and_nothing_else(tmp_path, full_disk):
    save_record(Record(SURVEY, {"x": np.zeros(3)}), tmp_path)
    before = sorted(path.name for path in tmp_path.iterdir())
    for size in (0, 400):  # 400: room for the arrays, not for the document
        told = r"cannot be written .* free some space"
        with pytest.raises(WriteError, match=told), full_disk(size):
            save_record(Record(SURVEY, {"x": np.ones(3)}), tmp_path)
        assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert load_record(tmp_path).arrays["x"].sum() == 0


def test_a_save_that_fails_removes_the_folders_it_made(tmp_path, full_disk):
    (tmp_path / "own").mkdir()
    for folder in ("a/b/run", "own", "own/run"):
        with pytest.raises(WriteError), full_disk(0):
            save_run(history_of(step_of(0, 1)), tmp_path / folder)
    assert list(tmp_path.rglob("*")) == [tmp_path / "own"]
    writer = HistoryWriter(tmp_path / "own")
    writer.write(history_of(step_of(0, 1)))
    with full_disk(0):
        writer.write(history_of(step_of(0, 1), step_of(1, 1)))
    assert [path.name for path in (tmp_path / "own" / "steps").iterdir()] == [f"{0:010d}"]


@pytest.mark.parametrize("here", [".", "", "../here"])
def test_a_run_beside_the_one_in_the_current_folder(tmp_path, monkeypatch, here):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for value in range(3):
        save_run(Run("", Record({"value": value}), ()), here, overwrite=False)
    found = {path.name: load_record(path).contents["value"] for path in tmp_path.iterdir()}
    assert found == {"here": 0, "here-2": 1, "here-3": 2}


def test_the_root_has_no_folder_beside_it():
    places = numbered("/")
    assert str(next(places)) == "/"
    with pytest.raises(
        RecordError, match="/: the root folder holds a run already; name a folder in it"
    ):
        next(places)


@pytest.mark.parametrize("name", ["a\0b", "a\0b/c", "\ud800"])
def test_names_that_no_folder_can_have_are_refused(tmp_path, name):
    with pytest.raises(RecordError, match="expected a folder to save in, got"):
        save_record(Record({}), tmp_path / name)
    with pytest.raises(WriteError, match="cannot be written"):
        replace_file(tmp_path / f"{name}.html", b"")
    writer = HistoryWriter(tmp_path / name)
    writer.write(history_of(step_of(0, 1)))
    assert "expected a folder" in writer.problem
    assert not list(tmp_path.iterdir())


def test_too_many_open_files_are_an_error_of_this_library(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    holes = [os.open(os.devnull, os.O_RDONLY) for _ in range(20)]  # all smaller numbers are taken
    told = []
    try:
        for free in range(5):
            resource.setrlimit(resource.RLIMIT_NOFILE, (holes[-1] + 1 + free, hard))
            try:
                save_record(Record({}), tmp_path / str(free))
            except WriteError as error:
                told.append(str(error))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in holes:
            os.close(descriptor)
    assert len(told) >= 2
    assert all("Too many open files" in text for text in told)
    assert load_record(tmp_path / "4").contents == {}


def test_a_folder_that_its_last_holder_removes_is_made_again(tmp_path):
    """A second process waits for the folder while the first one's write fails."""
    folder = tmp_path / "run"
    second = threading.Thread(target=save_record, args=(Record(SURVEY), folder))

    def fail():
        with held_folder(folder):
            second.start()
            time.sleep(0.2)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    second.join()
    assert load_record(folder).contents["kind"] == "survey"


def test_a_step_that_is_gone_is_said_unless_it_is_the_last(tmp_path):
    save_run(history_of(*(step_of(number, 1) for number in range(3))), tmp_path)
    steps = tmp_path / "steps"
    (steps / f"{2:010d}" / "record.json").unlink()  # as a killed process leaves it
    assert [s.contents["step"] for s in load_run(tmp_path).steps] == [0, 1]
    (steps / f"{1:010d}" / "record.json").unlink()
    with pytest.warns(UserWarning, match=r"left out, since there is no record\.json: 0000000001"):
        assert [s.contents["step"] for s in load_run(tmp_path).steps] == [0]


def test_a_history_waits_for_a_full_disk(tmp_path, full_disk):
    writer = HistoryWriter(tmp_path / "run")
    writer.write(history_of(step_of(0, 1)))
    with full_disk(0):
        writer.write(history_of(step_of(0, 1), step_of(1, 1)))
        writer.write(history_of(step_of(0, 1), step_of(1, 1), step_of(2, 1)))
    assert list(writer.waiting) == [1, 2]
    assert "cannot be written" in writer.problem
    writer.write(history_of(*(step_of(number, 1) for number in range(4))))
    assert writer.problem is None
    assert [s.contents["step"] for s in load_run(writer.folder).steps] == [0, 1, 2, 3]


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
