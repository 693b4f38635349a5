"""A full disk, or a folder that is taken, ends no training and loses no ranking."""

import shutil
import warnings
from contextlib import ExitStack

import pytest
import torch
from torch import nn

import theodolite as th
from tests.survey.subjects import blobs
from theodolite.errors import UnwrittenWarning, WriteError


def monitored(folder):
    return th.Monitor(nn.Linear(6, 3), blobs(), every=1, families="kernel", folder=folder)


def watch(monitor, steps):
    return [monitor.step(step) for step in steps]


def test_a_monitor_warns_once_keeps_the_numbers_and_tries_again(tmp_path, full_disk):
    monitor = monitored(tmp_path / "run")
    assert monitor.step(0) is not None
    told = r"step 1 is not on disk: .*The training goes on"
    with pytest.warns(UserWarning, match=told) as said, full_disk(100):
        assert None not in watch(monitor, [1, 2, 3])
    assert len(said) == 1
    assert monitor.history.steps == [0, 1, 2, 3]
    assert th.load(monitor.folder).steps == [0]
    monitor.step(4)
    assert th.load(monitor.folder).steps == [0, 1, 2, 3, 4]
    monitor.close()  # nothing is left to say
    for step in range(5):
        assert (
            th.load(monitor.folder).survey(step).summary() == monitor.history.survey(step).summary()
        )


def test_the_end_says_what_was_not_written(tmp_path, full_disk):
    monitor = monitored(tmp_path / "run")
    with pytest.warns(UserWarning, match="not on disk") as said, full_disk(100), monitor:
        watch(monitor, range(3))
    assert len(said) == 2
    text = str(said[-1].message)
    assert text.startswith("3 of 3 measurements are not on disk (steps 0, 1 and 2): ")
    assert "monitor.history.save(folder)" in text
    with pytest.raises(WriteError, match="cannot be written"), full_disk(100):
        monitor.history.save(tmp_path / "other")
    assert th.load(monitor.history.save(tmp_path / "other")).steps == [0, 1, 2]


def test_a_training_that_fails_says_so_too(tmp_path, full_disk):
    def fail():
        monitor = monitored(tmp_path / "run")
        watch(monitor, [0])
        with full_disk(100), monitor:
            watch(monitor, [1])
            raise ZeroDivisionError

    with pytest.warns(UserWarning, match="not on disk") as said, pytest.raises(ZeroDivisionError):
        fail()
    assert str(said[-1].message).startswith("1 of 2 measurements are not on disk (step 1): ")


def models(seed=0):
    torch.manual_seed(seed)
    return {name: nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)) for name in "ab"}


def test_a_ranking_is_returned_although_it_cannot_be_written(tmp_path, full_disk):
    options = {"folder": tmp_path / "ranking", "tangent": False}
    with pytest.warns(UnwrittenWarning) as said, full_disk(100):
        found = th.transfer(models(), blobs(), **options)
    first, last = (str(warning.message) for warning in said)
    assert first.startswith("a is not on disk: ")
    assert first.endswith("It stays in memory; other models are measured.")
    assert last.startswith("the ranking is not on disk: ")
    assert last.endswith("Save it while this process lives: result.save(folder).")
    assert found.unwritten in last
    assert list(tmp_path.iterdir()) == []  # nothing is left of the attempts
    whole = th.transfer(models(), blobs(), **options)
    assert whole.unwritten is None
    assert found.names == whole.names
    assert found.save(tmp_path / "later").exists()
    assert {path.name[0] for path in (tmp_path / "ranking" / "models").iterdir()} == {"a", "b"}


def test_a_model_that_could_not_be_written_is_written_with_the_next(tmp_path, full_disk):
    disk = ExitStack()
    disk.enter_context(full_disk(100))

    def progress(share, _text):
        if share >= 0.5:  # the first model is measured
            disk.close()

    with pytest.warns(UnwrittenWarning, match="a is not on disk") as said:
        found = th.transfer(
            models(), blobs(), folder=tmp_path / "run", tangent=False, progress=progress
        )
    assert len(said) == 1
    assert found.unwritten is None
    assert len(list((tmp_path / "run" / "models").iterdir())) == 2
    assert th.load(tmp_path / "run").names == found.names


def test_a_folder_that_vanishes_is_written_again(tmp_path):
    monitor = monitored(tmp_path / "run")
    monitor.step(0)
    shutil.rmtree(tmp_path / "run")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        monitor.step(1)
    assert th.load(tmp_path / "run").steps == [0, 1]


def test_two_monitors_of_one_folder_are_both_whole(tmp_path):
    first, second = monitored(tmp_path / "run"), monitored(tmp_path / "run")
    first.step(0)
    with pytest.warns(UserWarning, match=r"run holds another run now: this one is in .*run-2"):
        second.step(7)
    first.step(1)
    second.step(8)
    assert th.load(first.folder).steps == [0, 1]
    assert th.load(second.folder).steps == [7, 8]
