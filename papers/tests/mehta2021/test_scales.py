"""Data, networks and summaries of the experiments over scales."""

import itertools

import numpy as np
import pytest
import torch

from theodolite.data import Dataset
from theodolite.errors import UnknownNameError
from theodolite_papers.lab.training import Hinge, Softmax
from theodolite_papers.ledger import Trial
from theodolite_papers.mehta2021 import _scales
from theodolite_papers.mehta2021._scales import (
    QUANTITIES,
    ProbeSet,
    ScaleCurves,
    Scales,
    chance_of,
    courses,
    measure_scales,
    measured_steps,
    network,
    numbers_of,
    standardized_set,
)


@pytest.fixture(scope="module")
def digits():
    return standardized_set("digits", Trial(0).generator()).flat()


@pytest.mark.parametrize(("name", "shape"), [("digits", (1, 8, 8)), ("mixture50", (64,))])
def test_inputs_have_the_norm_of_ones(name, shape):
    data = standardized_set(name, Trial(0).generator())
    assert data.shape == shape
    norms = data.x_train.flatten(1).norm(dim=1)
    torch.testing.assert_close(norms, torch.full_like(norms, 8.0))


def test_an_unknown_set_is_named():
    with pytest.raises(UnknownNameError, match="digitz"):
        standardized_set("digitz", Trial(0).generator())


def test_steps_start_at_0_and_end_at_the_last():
    steps = measured_steps(1000, 8)
    assert steps[0] == 0
    assert steps[-1] == 1000
    assert steps == sorted(set(steps))


def test_networks_differ_in_the_scale_of_the_first_layer_alone(digits):
    config = Scales(hidden=(16,))
    one, ten = (network(config, digits, s, Trial(0).generator(2)) for s in (0.01, 0.1))
    torch.testing.assert_close(10 * one.fc1.weight, ten.fc1.weight)
    torch.testing.assert_close(one.fc2.weight, ten.fc2.weight)
    # Pre-activations have the deviation that 3072 inputs would give them.
    assert one(digits.x_train).shape == (1000, 10)
    spread = one.fc1(digits.x_train).std().item()
    assert spread == pytest.approx(0.01 * 3072**0.5, rel=0.2)


def test_gradient_alignments_are_means_until_the_fit():
    course = ScaleCurves(0.1)
    for k, train in enumerate((0.1, 0.5, 1.0, 1.0)):
        course.add(dict.fromkeys(QUANTITIES, float(k)) | {"train": train, "test": 0.2 * k})
    found = numbers_of(course, [0, 1, 3, 10], points=3, total=10)
    assert found["hidden@0.1"] == pytest.approx((0 + 1 + 2) / 3)
    assert found["representation_end@0.1"] == 3
    assert found["fitted_step@0.1"] == 3
    assert found["best_test@0.1"] == pytest.approx(0.6)


def test_the_probe_is_balanced_and_zero_gradients_count_as_zero(digits):
    generator = Trial(0).generator(1)
    probe = ProbeSet.of(digits, 100, Hinge(margin=0.0), ("fc1", "fc2", "act1"), generator)
    assert torch.bincount(digits.y_train[probe.rows]).tolist() == [10] * 10
    net = network(Scales(hidden=(16,), activation="relu"), digits, 0.01, Trial(0).generator(2))
    net.fc2.weight.data.zero_()  # all logits equal: a hinge without margin has no gradient
    found = probe.gradients(net)
    assert found["hidden"] == found["top"] == found["logit"] == 0


def test_probe_of_many_classes_takes_the_first_ten():
    data = standardized_set("mixture50", Trial(0).generator())
    probe = ProbeSet.of(data, 100, Softmax(), ("fc1", "fc2", "act1"), Trial(0).generator(1))
    assert data.y_train[probe.rows].max() == 9


def test_chance_of_balanced_classes(digits):
    assert chance_of(digits) == {"chance": 0.1, "test_size": 797.0}


def test_a_run_has_every_quantity():
    config = Scales(hidden=(8,), sigmas=(0.01, 1.0), steps=4, points=2, probe=50)
    found = measure_scales(config, Trial(0))
    assert found.arrays["step"].tolist() == [0, 1, 4]
    assert found.arrays["hidden"].shape == (2, 3)
    assert set(QUANTITIES) <= set(found.arrays)
    assert np.isfinite(found.arrays["hidden"]).all()


@pytest.mark.parametrize(
    ("until_fit", "ends"), [(False, 4), (True, 3), ("one", 2)], ids=["steps", "all", "one"]
)
def test_a_run_ends_at_the_fit(digits, until_fit, ends):
    """The first network has learnt all after two steps, the second after three."""
    config = Scales(hidden=(4,), sigmas=(0.01, 1.0), steps=4, points=4, until_fit=until_fit)
    learnt = itertools.cycle([2, 3])

    def read(probe, model, step):
        return {"train": float(step >= next(learnt))}

    steps, _ = courses(config, Trial(0), digits, read)
    assert steps[-1] == ends


def test_a_part_has_equally_many_training_images_of_each_class(monkeypatch):
    labels = torch.arange(2).repeat(3000)
    images = torch.randn(6000, 3, 2, 2, generator=Trial(0).generator())
    whole = Dataset("cifar10", images, labels, images[:10], labels[:10])
    monkeypatch.setattr(_scales, "_whole", lambda name: whole)
    part = standardized_set("cifar10_20k", Trial(0).generator())
    assert torch.bincount(part.y_train).tolist() == [2000, 2000]
    assert len(part.y_test) == 10
