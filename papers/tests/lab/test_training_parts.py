"""Augmentation, accuracy, gaps, areas, recipes from mappings: against literal versions."""

import numpy as np
import pytest
import torch

from tests.reference import training as reference
from theodolite.errors import DomainError, ShapeError, UnknownNameError
from theodolite_papers.lab.models import mlp
from theodolite_papers.lab.training import (
    Augmentation,
    Evaluation,
    Hinge,
    LogEntry,
    Recipe,
    Softmax,
    Squared,
    Stop,
    TrainingLog,
    accuracy,
    area_under_curve,
    evaluate,
    recipe_from_mapping,
)
from theodolite_papers.lab.training.evaluation import log_from_dict


@pytest.mark.parametrize(
    "augmentation",
    [
        Augmentation(),
        Augmentation(flip=False, padding=3, cutout=0),
        Augmentation(padding=0, cutout=2, fill=-7.0),
        Augmentation(padding=0, cutout=0),
    ],
    ids=str,
)
def test_augmentation_pixel_by_pixel(generator, augmentation):
    images = torch.randn(9, 2, 6, 5, generator=generator)
    ours = augmentation(images, torch.Generator().manual_seed(1))
    source = torch.Generator().manual_seed(1)
    p, k = augmentation.padding, augmentation.cutout
    ranges = (2, 2 * p + 1, 2 * p + 1, 6 - k + 1, 5 - k + 1)
    draws = [torch.randint(r, (9,), generator=source).tolist() for r in ranges]
    for index, (mirrored, *rest) in enumerate(zip(*draws, strict=True)):
        flipped = bool(mirrored) and augmentation.flip
        literal = reference.augment(images[index], flipped, *rest, p, k, augmentation.fill)
        assert torch.equal(ours[index], literal)


def test_augmentation_draws_every_shift_and_leaves_its_input_alone(generator):
    image = torch.zeros(400, 1, 9, 9)
    image[:, :, 4, 4] = 1.0
    moved = Augmentation(flip=False, padding=2, cutout=0)(image, generator)
    assert {tuple(place.tolist()) for place in moved.nonzero()[:, 2:]} == {
        (i, j) for i in range(2, 7) for j in range(2, 7)
    }
    assert image.sum() == 400
    mirrored = Augmentation(padding=0, cutout=0)(torch.arange(9.0).expand(400, 1, 9, 9), generator)
    assert 150 < (mirrored[:, 0, 0, 0] == 8).sum() < 250


def test_augmentation_needs_images_that_are_large_enough(generator):
    with pytest.raises(ShapeError, match="cutout"):
        Augmentation()(torch.ones(1, 1, 3, 3), generator)


def test_accuracy_takes_the_first_of_equal_outputs():
    outputs = torch.tensor([[1.0, 1.0, 1.0], [0.0, 2.0, 2.0], [3.0, 0.0, 3.0]])
    assert accuracy(outputs, torch.tensor([0, 1, 0])) == 1.0
    assert accuracy(outputs, torch.tensor([2, 2, 2])) == 0.0
    assert accuracy(outputs.double(), torch.tensor([0, 1, 2])) == pytest.approx(2 / 3)


def test_accuracy_is_a_share_to_the_last_digit():
    outputs, targets = torch.eye(3), torch.tensor([0, 0, 0])
    assert accuracy(outputs, targets) == 1 / 3  # float32 has 0.33333334


def test_accuracy_of_one_output_is_its_sign_with_zero_negative():
    outputs = torch.tensor([[1.0], [-1.0], [0.0], [0.0]])
    assert accuracy(outputs, torch.tensor([1.0, -1.0, -1.0, 1.0])) == 0.75
    assert accuracy(outputs[:, 0], torch.tensor([1, 0, 0, 1])) == 0.75


def test_accuracy_of_real_targets_is_undefined():
    assert np.isnan(accuracy(torch.ones(3, 1), torch.tensor([0.5, 1.0, 2.0])))
    assert np.isnan(accuracy(torch.ones(3, 2), torch.rand(3, 2)))


def test_evaluation_in_chunks_equals_the_literal_mean(generator):
    x = torch.randn(4500, 3, generator=generator, dtype=torch.float64)
    y = x.argmax(1)
    net = torch.nn.Sequential(mlp([3, 6, 3], generator=generator), torch.nn.Dropout(0.5)).double()
    found = evaluate(net, x, y, Softmax())
    assert net.training
    net.eval()
    outputs = net(x).detach().numpy()
    literal = [np.log(np.exp(z).sum()) - z[label] for z, label in zip(outputs, y, strict=True)]
    assert found.loss == pytest.approx(np.mean(literal))
    right = [int(np.argmax(z)) == label for z, label in zip(outputs, y.tolist(), strict=True)]
    assert found.accuracy == pytest.approx(np.mean(right))


@pytest.mark.spec("4.P104")
def test_gaps():
    train, test = Evaluation(0.25, 0.99), Evaluation(0.75, 0.9)
    log = TrainingLog((LogEntry(0, test, train), LogEntry(5, train, test)), (0.3,), 5, "length")
    assert (log.gaps.loss, log.gaps.accuracy) == (0.5, pytest.approx(9.0))
    same = TrainingLog((LogEntry(0, train, train),), (), 0, "length").gaps
    assert (same.loss, same.accuracy) == (0.0, 0.0)
    with pytest.raises(DomainError, match="test set"):
        _ = TrainingLog((LogEntry(0, train),), (), 0, "length").gaps


@pytest.mark.spec("2.P43")
def test_area_of_a_constant_and_of_a_ramp(generator):
    positions = torch.rand(20, generator=generator, dtype=torch.float64).cumsum(0)
    constant = torch.full((20,), 0.37, dtype=torch.float64)
    assert area_under_curve(positions, constant).item() == pytest.approx(0.37)
    ramp = (positions - positions[0]) / (positions[-1] - positions[0])
    assert area_under_curve(positions, ramp).item() == pytest.approx(0.5)
    values = torch.rand(20, generator=generator, dtype=torch.float64)
    x, v = positions.numpy(), values.numpy()
    literal = sum((v[i] + v[i + 1]) / 2 * (x[i + 1] - x[i]) for i in range(19)) / (x[-1] - x[0])
    assert area_under_curve(positions, values).item() == pytest.approx(literal, abs=1e-12)
    assert area_under_curve(x, v) == pytest.approx(literal, abs=1e-12)


@pytest.mark.parametrize(
    ("positions", "values", "error", "message"),
    [
        ([0.0], [1.0], ShapeError, "two points"),
        ([0.0, 0.0], [1.0, 1.0], DomainError, "increasing"),
        ([1.0, 0.0], [1.0, 1.0], DomainError, "increasing"),
        ([0.0, 1.0], [1.0, float("nan")], DomainError, "finite"),
    ],
    ids=["one", "equal", "falling", "nan"],
)
def test_bad_curves(positions, values, error, message):
    with pytest.raises(error, match=message):
        area_under_curve(torch.tensor(positions), torch.tensor(values))


def test_logs_survive_plain_data():
    entry = LogEntry(0, Evaluation(1.0, 0.5), Evaluation(2.0, 0.25))
    log = TrainingLog((entry, LogEntry(3, Evaluation(0.5, 1.0))), (0.75, 0.5), 3, "loss")
    assert log_from_dict(log.to_dict()) == log
    assert log.curve("train", "accuracy") == ([0, 3], [0.5, 1.0])
    with pytest.raises(DomainError, match="no test set"):
        log.curve("test", "loss")


def test_recipes_from_mappings():
    settings = {
        "loss": {"name": "squared", "target_scale": 2.0},
        "optimizer": "adam",
        "steps": 7,
        "stop": {"accuracy": 1.0},
        "augmentation": {"cutout": 0},
        "layer_rates": {"fc1": 0.0},
    }
    assert recipe_from_mapping(settings) == Recipe(
        loss=Squared(2.0),
        optimizer="adam",
        steps=7,
        stop=Stop(accuracy=1.0),
        augmentation=Augmentation(cutout=0),
        layer_rates={"fc1": 0.0},
    )
    assert recipe_from_mapping({"loss": "hinge", "epochs": 1}).loss == Hinge()


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"epoch": 3}, UnknownNameError, "did you mean 'epochs'"),
        ({"loss": "sofmax", "epochs": 1}, UnknownNameError, "softmax"),
        ({"loss": {"name": "hinge", "margn": 1}, "epochs": 1}, UnknownNameError, "margin"),
        ({"stop": 3, "epochs": 1}, DomainError, "table"),
        ({"epochs": 1, "optimizer": "lion"}, DomainError, "optimizer"),
    ],
    ids=["setting", "loss", "option", "table", "choice"],
)
def test_bad_mappings(settings, error, message):
    with pytest.raises(error, match=message):
        recipe_from_mapping(settings)
