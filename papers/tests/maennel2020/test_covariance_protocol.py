"""The transfer protocol and the other private parts of spec 2's studies."""

import numpy as np
import pytest
import torch

from theodolite_papers.ledger import Trial
from theodolite_papers.maennel2020._filters import as_images, eigenvectors, same_sign
from theodolite_papers.maennel2020._transfer import (
    Images,
    Network,
    Protocol,
    Stage,
    Transfer,
    draw_images,
    fractions_of,
    halves,
    histograms_of,
    left_chance,
    relu_layers,
)
from theodolite_papers.maennel2020._transfer_sweeps import TRANSFER_SWEEPS
from theodolite_papers.maennel2020.fig19 import wishart_covariances
from theodolite_papers.maennel2020.figs12_13 import Group, sweep_space
from theodolite_papers.maennel2020.formulas.divergence import rotation_angle_deviation
from theodolite_papers.maennel2020.formulas.rescaling import layer_norms
from theodolite_papers.maennel2020.tables1_7 import RULES, FilterRules, Workshop

DIGITS = Images("digits")


def tiny(**changes):
    options = {
        "network": Network(conv_layers=2, filters=4, units=8),
        "upstream": Stage(40, 3, steps=6),
        "downstream": Stage(40, steps=4),
        "batch_size": 20,
        "images": DIGITS,
        "test_examples": 20,
    }
    return Transfer(**options | changes)


@pytest.mark.spec("2.P46")
def test_the_protocol_runs_end_to_end():
    protocol = Protocol(tiny(), Trial(0))
    course = protocol.finetune(protocol.start("all"), "real")
    assert 0 <= course.auc <= 1
    assert 0 <= course.test_auc <= 1
    assert course.steps[0] == 0
    assert course.steps[-1] == 4
    assert protocol.upstream_log.steps == 6


def test_a_comparison_is_of_the_two_trainings_it_holds():
    protocol = Protocol(tiny(), Trial(0))
    compared = protocol.compare("random")
    model = protocol.start("all")
    moved, scratch = (
        protocol.finetune(model, "random"),
        protocol.finetune(protocol.scratch(), "random"),
    )
    assert compared.gain == moved.auc - scratch.auc
    assert compared.test_gain == moved.test[-1] - scratch.test[-1]
    assert torch.equal(compared.model.head.weight, model.head.weight)


def test_one_curve_above_chance_is_enough():
    low, high = np.array([0.9, 0.1]), np.array([0.1, 0.3])
    assert left_chance(low, high)
    assert not left_chance(low)


def test_transferred_layers_have_the_initial_norms_and_the_rest_is_fresh():
    protocol = Protocol(tiny(), Trial(0))
    scratch, started = protocol.scratch(), protocol.start(1)
    assert layer_norms(started)["conv1"] == pytest.approx(protocol.norms["conv1"], rel=1e-5)
    ratio = started.conv1.weight / protocol.pretrained.conv1.weight
    torch.testing.assert_close(ratio, ratio.mean().expand_as(ratio))
    for name in ("conv2", "dense", "head"):
        assert torch.equal(started.get_submodule(name).weight, scratch.get_submodule(name).weight)
    assert not torch.equal(protocol.pretrained.conv1.weight, protocol.initial.conv1.weight)


def test_without_rescaling_layers_are_copied_as_they_are():
    protocol = Protocol(tiny(), Trial(0))
    started = protocol.start("all", rescale=False, reset_biases=True)
    assert torch.equal(started.dense.weight, protocol.pretrained.dense.weight)
    assert not started.dense.bias.any()


def test_upstream_and_downstream_share_no_image():
    (first, _), (second, _), (test, _) = draw_images(
        DIGITS, torch.Generator().manual_seed(0), 700, 700, test=30
    )
    assert len(test) == 30
    assert first.min() >= -1
    distance = torch.cdist(first.flatten(1), second.flatten(1))
    assert distance.min() > 0


def test_halves_keep_the_order_of_the_images():
    first, second = halves(DIGITS, 0, torch.Generator())
    some, _ = halves(DIGITS, 50, torch.Generator().manual_seed(0))
    assert len(first) == len(second) == 1797 // 2
    assert torch.cdist(some.flatten(1), first.flatten(1)).amin(1).max() == 0


def test_first_scale_changes_the_first_layer_alone():
    plain, small = (
        Network(conv_layers=2, filters=4, units=8, first_scale=scale).build(
            3, (1, 8, 8), torch.Generator().manual_seed(0)
        )
        for scale in (1.0, 0.25)
    )
    torch.testing.assert_close(small.conv1.weight, plain.conv1.weight / 4)
    assert torch.equal(small.conv2.weight, plain.conv2.weight)


@pytest.mark.parametrize("rule", RULES)
def test_rules_set_the_first_layers_only(rule):
    config = FilterRules(DIGITS, 60, 20, 40, 2, filters=2, units=4, batch_size=20, marks=(1, 2),
                          middle=(2, 3, 3))  # fmt: skip
    workshop = Workshop(config, Trial(0))
    fresh, started = workshop.fresh(), workshop.started(rule, 2)
    for name in ("conv1", "conv2"):
        mine, theirs = started.get_submodule(name).weight, fresh.get_submodule(name).weight
        assert not torch.equal(mine, theirs)
        torch.testing.assert_close(mine.norm(), theirs.norm(), rtol=0.05, atol=0)
    assert torch.equal(started.conv3.weight, fresh.conv3.weight)
    assert np.shape(workshop.accuracies(started)) == (2, 2)


def test_wishart_covariances_have_the_law_of_sample_covariances():
    truth = torch.tensor([11.0, 1.0], dtype=torch.float64)
    drawn = wishart_covariances(truth, 100, 4000, torch.Generator().manual_seed(0))
    torch.testing.assert_close(drawn.mean(0), torch.diag(truth), rtol=0.02, atol=0.02)
    # Var(S_12) = l1 l2 / n.
    assert drawn[:, 0, 1].var().item() == pytest.approx(0.11, rel=0.1)
    vectors = torch.linalg.eigh(drawn).eigenvectors[..., -1]
    angle = torch.atan(vectors[:, 1] / vectors[:, 0])
    assert angle.std().item() == pytest.approx(
        float(rotation_angle_deviation(11.0, 1.0, 100)), rel=0.12
    )


def test_pictures_of_eigenvectors_have_signs_of_their_own():
    basis = torch.linalg.qr(
        torch.randn(27, 27, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    )[0]
    flipped = basis * torch.where(torch.arange(27) % 2 == 0, -1.0, 1.0)
    values = torch.arange(27.0, 0, -1, dtype=torch.float64)
    first, second = (eigenvectors((b * values) @ b.mT, 5) for b in (basis, flipped))
    torch.testing.assert_close(first, second)
    assert (same_sign(-first, first) * first).sum(1).min() > 0
    image = as_images(torch.arange(27.0)[None], 3)
    assert image.shape == (1, 3, 3, 3)
    assert image[0, 1, 2].tolist() == [5, 14, 23]  # channel-major, like a filter


def test_activations_are_those_of_the_relu_layers():
    model = Network(conv_layers=1, filters=4, units=8).build(3, (1, 8, 8), torch.Generator())
    images = draw_images(DIGITS, torch.Generator().manual_seed(0), 30)[0][0]
    model.train()
    found = fractions_of(model, images)
    assert list(found) == relu_layers(model) == ["relu1", "relu_dense"]
    with torch.no_grad():
        expected = (model.relu1(model.conv1(images)) > 0).double().mean().item()
    assert float(found["relu1"].mean) == pytest.approx(expected)
    assert model.training
    assert histograms_of(found).shape == (2, 2, 20)


@pytest.mark.parametrize(("name", "models"), [("cifar_a", 960), ("cifar_b", 960)])
def test_the_full_sweeps_have_as_many_models_as_the_paper(name, models):
    points, sweep = sweep_space(name).points(), TRANSFER_SWEEPS[name]
    # A scratch run counts once per number of transferred layers.
    each = 2 * 2 * len(sweep.transferred)
    assert len(points) * sweep.seeds * each == models == sweep.models
    low, high = sweep.init_scale
    assert all(low <= point["init_scale"] <= high for point in points)
    group = Group(**points[-1])
    assert group.transfer().network.architecture == "resnet18_v2"
    assert not group.transfer().rescale


@pytest.mark.parametrize(
    ("architecture", "layers", "copied"),
    [
        ("vgg16", 3, ["conv1", "conv2", "conv3"]),
        ("resnet18_v2", ["stem", "stages.0"], ["stem.0", "stages.0.0.conv1", "stages.0.1.conv2"]),
    ],
)
def test_other_architectures_are_transferred_too(architecture, layers, copied):
    network = Network(architecture, width=1 / 16, init_scale=0.7)
    rescale = architecture == "vgg16"
    stages = {"upstream": Stage(8, 3, steps=1), "downstream": Stage(8, steps=1)}
    protocol = Protocol(
        tiny(network=network, rescale=rescale, batch_size=8, test_examples=4, **stages), Trial(0)
    )
    model, scratch = protocol.start(layers), protocol.scratch()
    same = [
        name
        for name in layer_norms(model)
        if torch.equal(model.get_submodule(name).weight, scratch.get_submodule(name).weight)
    ]
    assert not set(copied) & set(same)
    assert "head" in same
    assert len(same) > len(copied)
    assert 0 <= protocol.finetune(protocol.start("all"), "random").auc <= 1
