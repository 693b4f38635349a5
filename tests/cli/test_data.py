"""DATA on the command line, ready for a model."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from theodolite.cli.data import DataSource, load_examples, require_fit, resolve_device

ANY = nn.Identity()


def inputs_of(examples):
    (inputs,) = examples.batch.args
    return inputs


@pytest.mark.parametrize(("split", "count"), [("train", 1500), ("test", 297)])
def test_digits_are_scaled_to_the_unit_interval(split, count):
    examples = load_examples(DataSource("digits", split), ANY)
    assert inputs_of(examples).shape == (count, 1, 8, 8)
    assert (inputs_of(examples).min(), inputs_of(examples).max()) == (0.0, 1.0)
    assert examples.classes == tuple("0123456789")


def test_flat_examples_and_no_scaling(tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(6, 2, 3)).astype(np.float32), np.array([0, 1, 2, 0, 1, 2])
    np.savez(tmp_path / "d.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    examples = load_examples(DataSource(str(tmp_path / "d.npz"), flat=True), ANY)
    assert torch.equal(inputs_of(examples), torch.from_numpy(x).flatten(1))


def test_sequences_keep_their_axes(tmp_path):
    x, y = np.random.default_rng(0).normal(size=(6, 4, 3)), np.arange(6) % 2
    np.savez(tmp_path / "d.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    source = DataSource(str(tmp_path / "d.npz"))
    assert inputs_of(load_examples(source, ANY)).shape == (6, 1, 4, 3)
    left = inputs_of(load_examples(replace(source, as_is=True), ANY))
    assert torch.equal(left, torch.from_numpy(x))


def test_scalings_of_the_workbench():
    examples = load_examples(DataSource("digits", scale="pixels"), ANY)
    assert inputs_of(examples).mean(0).abs().max() < 1e-5


def test_seeds_fix_random_splits():
    first, again = (load_examples(DataSource("digits", seed=1), ANY) for _ in range(2))
    other = load_examples(DataSource("digits", seed=2), ANY)
    assert torch.equal(inputs_of(first), inputs_of(again))
    assert not torch.equal(inputs_of(first), inputs_of(other))


def test_a_model_with_one_output_takes_two_classes(tmp_path):
    x, y = np.zeros((4, 3), np.float32), np.array([0, 1, 0, 1])
    np.savez(tmp_path / "d.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    examples = load_examples(DataSource(str(tmp_path / "d.npz")), ANY)
    require_fit(nn.Linear(3, 1), examples, None)


def test_the_default_device_exists():
    assert torch.zeros(1, device=resolve_device(None)).device.type in ("cpu", "cuda")
    assert resolve_device("cpu") == torch.device("cpu")
