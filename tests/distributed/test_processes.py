"""Real processes get the numbers of a single one, or fail together."""

import json
import math
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import theodolite
from tests.distributed.cases import CASES, MONITOR, SHARES, double_blobs, shares_of
from tests.distributed.forked import in_processes, results, start
from tests.distributed.worker import command, measure
from tests.survey.subjects import mlp

SURVEYS = [
    (size, shares, name) for name in CASES for size in SHARES for shares in shares_of(name, size)
]


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    """Two and three processes, side by side: their folder, and the processes."""
    folders = {size: tmp_path_factory.mktemp(f"processes-{size}") for size in SHARES}
    running = {
        size: (folder, start(size, folder, partial(measure, folder)))
        for size, folder in folders.items()
    }
    yield running
    for _, processes in running.values():
        for process, _ in processes:
            process.kill()


@pytest.fixture(scope="module")
def launched(started, single):
    """Processes -> the folder with what they found; this process has measured meanwhile."""
    for _, processes in started.values():
        results(processes)
    return {size: folder for size, (folder, _) in started.items()}


@pytest.fixture(scope="module")
def found(launched):
    """Processes -> what each of them saved."""
    return {
        size: [torch.load(folder / f"found-{rank}.pt", weights_only=False) for rank in range(size)]
        for size, folder in launched.items()
    }


@pytest.fixture(scope="module")
def single(started):
    """Case -> the record of one process with all the data."""
    records = {}
    for name, case in CASES.items():
        data = case.feed(*case.data())
        options = case.options | {"truth": case.truth(case.data()[0])}
        records[name] = theodolite.survey(case.model(), data, seconds=None, **options).record
    return records


@pytest.fixture(scope="module")
def drawn(started):
    """The record of one process with all the data and another seed."""
    case = CASES["all families"]
    options = case.with_options(seed=5, seconds=None) | {"truth": case.truth(case.data()[0])}
    return theodolite.survey(case.model(), case.data(), **options).record


def require_equal(numbers, record, *, within=1e-10):
    """The same rows in the same order, the same curves, words and arrays."""
    expected = record.contents
    for key in ("skipped", "warnings", "layers", "data"):
        assert numbers[key] == expected[key]
    assert [_name(row) for row in numbers["rows"]] == [_name(row) for row in expected["rows"]]
    for mine, theirs in zip(numbers["rows"], expected["rows"], strict=True):
        for key in ("value", "error", "null_mean", "null_sd"):
            _require_near(mine[key], theirs[key], within, f"{_name(mine)} {key}")
    assert numbers["curves"] == expected["curves"]
    assert set(numbers["arrays"]) == set(record.arrays)
    for name, array in record.arrays.items():
        if "eigenvectors" not in name:  # of either sign
            np.testing.assert_allclose(numbers["arrays"][name], array, rtol=1e-5, atol=1e-6)


def _name(row):
    return row["layer"], row["family"], row["measure"], row["n"], row["method"], row["reason"]


def _require_near(value, expected, within, where):
    if expected is None or math.isnan(expected) or math.isinf(expected):
        assert repr(value) == repr(expected), where
    else:
        assert value == pytest.approx(expected, rel=within, abs=within), where


@pytest.mark.parametrize(("size", "shares", "name"), SURVEYS, ids=str)
def test_survey_of_shards_is_that_of_all_the_data(found, single, size, shares, name):
    for rank in range(size):
        require_equal(found[size][rank]["surveys"][name, shares], single[name])


@pytest.mark.parametrize("size", SHARES)
def test_cases_cover_all_families_and_both_routes(found, single, size):
    families = {row["family"] for record in single.values() for row in record.contents["rows"]}
    assert "cka_truth" in {row["measure"] for row in single["all families"].contents["rows"]}
    assert families == set(single["all families"].contents["config"]["families"])
    routes = {
        record.contents["routes"].get("tangent", {}).get("method") for record in single.values()
    }
    assert {"exact", "sketch"} <= routes


@pytest.mark.parametrize("size", SHARES)
def test_every_process_takes_its_part_of_the_passes(found, size):
    dealt = [found[size][rank]["dealt"] for rank in range(size)]
    for call in ("feature_grams", "forward_backward_kernels"):
        layers = [[name for part in own[call] for name in part] for own in dealt]
        assert sorted(name for own in layers for name in own) == ["0", "2", "4"]
        assert all(layers)
    # Outputs of 11 examples and of all, and in between those of 25 held-out examples. The passes
    # for covariances follow.
    passed = [own["iterate_batches"][:3] for own in dealt]
    assert [sum(counts) for counts in zip(*passed, strict=True)] == [11, 25, 60]
    assert all(max(counts) - min(counts) <= 1 for counts in zip(*passed, strict=True))


@pytest.mark.parametrize("size", SHARES)
@pytest.mark.parametrize("when", ["copies", "copies again"])
def test_the_same_data_everywhere_counts_once(found, drawn, size, when):
    for rank in range(size):
        require_equal(found[size][rank][when], drawn)


@pytest.mark.parametrize("size", SHARES)
def test_monitor_of_shards_is_that_of_all_the_data(found, size):
    first = found[size][0]["monitor"]
    model = mlp().double()
    watch = theodolite.Monitor(model, double_blobs(), **MONITOR)
    for step, state in first["states"].items():
        model.load_state_dict(state)
        watch.step(step)
    watch.close()
    records = {record.contents["step"]: record for record in watch.history.run.steps}
    assert list(records) == list(first["records"]) == [0, 2, 3]
    for rank in range(size):
        for step, record in records.items():
            require_equal(found[size][rank]["monitor"]["records"][step], record)


@pytest.mark.parametrize("size", SHARES)
def test_only_the_first_process_writes(launched, size):
    folder = launched[size]
    assert theodolite.load(folder / "steps").steps == [0, 2, 3]
    assert theodolite.load(folder / "saved-0").steps == [0, 2, 3]
    assert (folder / "page-0.html").is_file()
    assert not list(folder.glob("saved-[1-9]"))
    assert not list(folder.glob("page-[1-9].html"))
    head = theodolite.load(folder / "saved-0").run.head
    assert head.contents["config"]["processes"] == size


FAILURES = {
    "at once": "the last device ran out of luck",
    "labels": "expected class labels of at least 0",
    "nan": "NaN",
    "weights": "expected the same weights in every process, but here '0.bias' differs",
    "seed": "seed: expected the same in every process, got 1 here and 0 in process 0",
    "option": "permutations",
}


@pytest.mark.parametrize("size", SHARES)
@pytest.mark.parametrize("name", FAILURES)
def test_a_process_that_fails_makes_all_fail_with_its_message(found, size, name):
    last = size - 1
    failing = 1 if name == "seed" else last
    for rank in range(size):
        kind, text = found[size][rank]["failures"][name]
        assert FAILURES[name].lower() in text.lower()
        if rank != failing and name != "seed":
            # What callers handle arrives as what it is.
            assert kind == ("NotFiniteError" if name == "nan" else "ProcessError")
            assert text.startswith(f"process {failing} of {size} failed: ")
        elif rank == failing:
            assert not text.startswith("process")


@pytest.mark.parametrize("size", SHARES)
def test_a_survey_without_a_pass_in_one_process_fails_in_all(found, size):
    """No number is measured without that process, so the survey ends with the reasons."""
    texts = [found[size][rank]["failures"]["before features"][1] for rank in range(size)]
    assert texts[0].startswith("families: expected at least one that applies")
    assert texts[0].count("the last device ran out of luck") == 5
    assert all(text == f"process 0 of {size} failed: DomainError: {texts[0]}" for text in texts[1:])


@pytest.mark.parametrize("size", SHARES)
@pytest.mark.parametrize("passes", [6, 13])
def test_a_pass_that_fails_in_one_process_is_a_reason_in_all(found, size, passes):
    first = found[size][0]["failures"][f"after {passes} passes"]
    reasons = first["skipped"].values()
    assert reasons
    assert all("the last device ran out of luck" in reason for reason in reasons)
    for rank in range(size):
        record = found[size][rank]["failures"][f"after {passes} passes"]
        assert repr(record["rows"]) == repr(first["rows"])
        assert record["skipped"] == first["skipped"]


@pytest.mark.parametrize("size", SHARES)
def test_failing_to_write_is_everybodys_failure(found, size):
    kinds = [found[size][rank]["failures"]["folder"][0] for rank in range(size)]
    assert kinds[0] != "ProcessError"
    assert kinds[1:] == ["ProcessError"] * (size - 1)


@pytest.mark.parametrize("size", SHARES)
def test_no_example_anywhere_is_refused_everywhere(found, size):
    for rank in range(size):
        kind, text = found[size][rank]["failures"]["empty"]
        assert kind == "ShapeError"
        assert "the data set is empty" in text


@pytest.mark.parametrize("size", SHARES)
def test_one_process_without_memory_makes_all_sketch(found, size):
    for rank in range(size):
        skipped = found[size][rank]["failures"]["skipped"]
        assert skipped["routes"]["tangent"]["method"] == "sketch"
        assert skipped["routes"]["gradient"]["pairs"] == 0
        first = found[size][0]["failures"]["skipped"]
        assert repr(skipped["rows"]) == repr(first["rows"])


@pytest.mark.parametrize("size", SHARES)
def test_a_process_that_is_left_alone_does_not_wait_for_ever(found, size):
    kind, text = found[size][0]["absent"]
    assert kind == "ProcessError"
    assert "pass group=None" in text


@pytest.mark.parametrize("size", SHARES)
def test_one_process_among_several_measures_alone_without_a_group(found, single, size):
    require_equal(found[size][0]["alone"], single["all families"])


def test_the_command_measures_in_all_processes_and_speaks_in_one(tmp_path):
    folder = tmp_path / "command"
    (code, printed, held), second = in_processes(2, tmp_path, partial(command, folder), group=False)
    assert (code, held) == (0, False)
    assert second == (0, "", False)
    assert json.loads(printed)["folder"] == str(folder)
    assert theodolite.load(folder).record.contents["config"]["processes"] == 2


def test_torchrun_starts_the_command(tmp_path):
    root, folder = Path(__file__).parents[2], tmp_path / "launched"
    words = ["survey", f"{root}/tests/networks.py:mlp", "digits", "--arg", "sizes=[64,8,10]"]
    words += ["--examples", "40", "--family", "kernel", "--json", "--output", str(folder)]
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [sys.executable, *launcher, "-m", "theodolite.cli", *words],
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert json.loads(done.stdout)["folder"] == str(folder)
    assert theodolite.load(folder).record.contents["config"]["processes"] == 2
