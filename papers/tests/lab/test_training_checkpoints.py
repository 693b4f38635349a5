"""KilledError anywhere and resumed, a run ends as it would have ended."""

import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from theodolite.errors import RecordError
from theodolite_papers.lab.models import mlp
from theodolite_papers.lab.training import Augmentation, Checkpoint, Recipe, Stop, train

RECIPE = Recipe(
    optimizer="adam",
    learning_rate=0.02,
    epochs=6,
    batch_size=8,
    schedule="linear",
    seed=5,
    stop=Stop(improvement=0.0, patience=3),
)


class KilledError(Exception):
    pass


def network():
    generator = torch.Generator().manual_seed(0)
    first, last = (mlp(sizes, generator=generator) for sizes in ([6, 10], [10, 3]))
    return nn.Sequential(first, nn.BatchNorm1d(10), nn.Dropout(0.2), last)


@pytest.fixture
def data(generator):
    x = torch.randn(50, 6, generator=generator)
    return x, x[:, :3].argmax(1)


def killer(step):
    def callback(state):
        if state.step == step:
            raise KilledError

    return callback


def assert_same_weights(one, two):
    for name, value in one.state_dict().items():
        assert torch.equal(value, two.state_dict()[name]), name


@pytest.mark.parametrize("every", [1, 5, None], ids=lambda every: f"every {every}")
def test_ten_kills_at_random_steps(data, tmp_path, every):
    whole = network()
    expected = train(whole, data, RECIPE, test=data)
    kept = Checkpoint(tmp_path / "deep" / "run.pt", every)
    interval = every or 7
    drawn = random.Random(interval)
    kept_step, kills = 0, 0
    while kills < 10:
        # Each kill lies beyond the latest write, so that some work is always lost and redone.
        step = min(kept_step + drawn.randint(1, 2 * interval), expected.steps)
        torch.manual_seed(kills)  # the outer random state must not matter
        with pytest.raises(KilledError):
            train(network(), data, RECIPE, test=data, callbacks=[killer(step)], checkpoint=kept)
        kills += 1
        kept_step = max(kept_step, (step - 1) // interval * interval)
    resumed = network()
    log = train(resumed, data, RECIPE, test=data, checkpoint=kept)
    assert log == expected
    assert_same_weights(whole, resumed)
    assert sorted(path.name for path in kept.path.parent.iterdir()) == ["run.pt"]


def test_a_finished_run_is_not_trained_again(data, tmp_path):
    path = tmp_path / "run.pt"
    log = train(network(), data, RECIPE, checkpoint=path)
    calls = []
    again = network()
    assert train(again, data, RECIPE, checkpoint=str(path), callbacks=[calls.append]) == log
    assert calls == []
    assert train(network(), data, RECIPE) == log


def test_a_run_stopped_by_a_callback_stays_stopped(data, tmp_path):
    path = tmp_path / "run.pt"
    log = train(network(), data, RECIPE, checkpoint=path, callbacks=[lambda s: s.step == 10])
    assert (log.steps, log.stopped) == (10, "callback")
    assert train(network(), data, RECIPE, checkpoint=path) == log


@pytest.mark.parametrize("step", [3, 10])
def test_augmented_images_are_drawn_alike_after_resuming(generator, tmp_path, step):
    x = torch.randn(12, 1, 6, 6, generator=generator)
    y = torch.arange(12) % 3
    recipe = Recipe(epochs=4, batch_size=4, augmentation=Augmentation(padding=1, cutout=2))
    kept = Checkpoint(tmp_path / "run.pt", every=2)

    def build():
        return mlp([36, 3], generator=torch.Generator().manual_seed(0))

    whole, resumed = build(), build()
    train(whole, (x, y), recipe)
    with pytest.raises(KilledError):
        train(build(), (x, y), recipe, callbacks=[killer(step)], checkpoint=kept)
    train(resumed, (x, y), recipe, checkpoint=kept)
    assert_same_weights(whole, resumed)


def kept_run(path, pause=False):
    """A run that reports when it is far enough to be killed; its final parameters."""

    def slow(state):
        if pause and state.step == 12:
            sys.stdout.write("far enough\n")
            sys.stdout.flush()
            time.sleep(60)

    x = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
    net = mlp([6, 8, 3], generator=torch.Generator().manual_seed(1))
    recipe = Recipe(optimizer="momentum", learning_rate=0.05, epochs=6, batch_size=8)
    kept = Checkpoint(path, every=4)
    log = train(net, (x, x[:, :3].argmax(1)), recipe, callbacks=[slow], checkpoint=kept)
    return log, net


def test_a_process_that_is_killed_loses_nothing(tmp_path):
    root = Path(__file__).parents[3]
    code = (
        f"import sys; sys.path[:0] = [{str(root)!r}, {str(root / 'src')!r}]\n"
        "from papers.tests.lab.test_training_checkpoints import kept_run\n"
        f"kept_run({str(tmp_path / 'killed.pt')!r}, pause=True)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "far enough\n"
    process.send_signal(signal.SIGKILL)
    assert process.wait(timeout=20) == -signal.SIGKILL
    process.stdout.close()
    assert (tmp_path / "killed.pt").exists()
    log, net = kept_run(tmp_path / "killed.pt")
    expected, whole = kept_run(tmp_path / "whole.pt")
    assert log == expected
    assert_same_weights(net, whole)


def test_a_checkpoint_of_another_run_is_refused(data, tmp_path):
    path = tmp_path / "run.pt"
    train(network(), data, RECIPE, checkpoint=path)
    with pytest.raises(RecordError, match=r"learning_rate: 0\.02 != 0\.5"):
        train(network(), data, replace(RECIPE, learning_rate=0.5), checkpoint=path)
    with pytest.raises(RecordError, match="targets"):
        train(network(), (data[0], data[1].flip(0)), RECIPE, checkpoint=path)


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", b"PK\x03\x04 half"], ids=repr)
def test_a_damaged_checkpoint_is_refused(data, tmp_path, content):
    path = tmp_path / "run.pt"
    path.write_bytes(content)
    with pytest.raises(RecordError, match="delete it"):
        train(network(), data, RECIPE, checkpoint=path)


def test_a_foreign_file_is_refused(data, tmp_path):
    torch.save({"weights": torch.ones(2)}, tmp_path / "run.pt")
    with pytest.raises(RecordError, match="theodolite-checkpoint"):
        train(network(), data, RECIPE, checkpoint=tmp_path / "run.pt")


def test_code_in_a_checkpoint_is_never_run(data, tmp_path):
    class Payload:
        def __reduce__(self):
            return (time.sleep, (0,))

    torch.save({"format": "theodolite-checkpoint-1", "x": Payload()}, tmp_path / "run.pt")
    with pytest.raises(RecordError, match="cannot be read"):
        train(network(), data, RECIPE, checkpoint=tmp_path / "run.pt")
