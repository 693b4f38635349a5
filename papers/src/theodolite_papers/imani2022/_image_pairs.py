"""Pairs of image classes under many representations: networks, HOG, SIFT, RBF, raw pixels."""

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from theodolite.data import Dataset, digits, scaled, unit_rows
from theodolite.interventions import initialize_
from theodolite_papers.imani2022._fitted_features import rbf_features
from theodolite_papers.imani2022._image_features import (
    dense_sift,
    hog_features,
    visual_vocabulary,
    word_histograms,
)
from theodolite_papers.imani2022._pretrained import (
    image_features,
    published_network,
    random_network,
)
from theodolite_papers.imani2022._profiles import hidden_layers
from theodolite_papers.lab.data import balanced_rows, class_subset, load_image_set, pair_task
from theodolite_papers.lab.training import Recipe, train
from theodolite_papers.ledger import Trial

__all__ = [
    "Extractor",
    "Pair",
    "draw_pair",
    "handmade",
    "load_images",
    "published_extractor",
    "small_extractor",
]


@dataclass(frozen=True)
class Pair:
    """Images of two classes with pixels from 0 to 1, and +1 or -1 for each."""

    classes: tuple[int, int]
    train: Tensor
    y_train: Tensor
    test: Tensor
    y_test: Tensor


@dataclass(frozen=True)
class Extractor:
    """A network at initialisation and after training on other data.

    Args:
        name: of the network.
        initial: with random weights.
        trained: the one that is transferred.
        published: whether it takes enlarged images and gives its features as ``flatten``.
    """

    name: str
    initial: nn.Module
    trained: nn.Module
    published: bool = False

    def rows(self, images: Tensor, device: torch.device) -> dict[str, Tensor]:
        """Features before and after training."""
        found = {}
        for state, model in (("init", self.initial), ("transfer", self.trained)):
            if self.published:
                found[state] = image_features(model, images, self.name, device)
            else:
                found[state] = hidden_layers(model, 2 * images - 1, ["flatten"])["flatten"]
        return found


def load_images(name: str) -> Dataset:
    """An image set with pixels from 0 to 1; 8x8 digits are enlarged to 32x32."""
    if name == "digits":
        data = scaled(digits(), "unit_interval")
        enlarge = lambda x: x.repeat_interleave(4, 2).repeat_interleave(4, 3)  # noqa: E731
        return data.mapped(enlarge, "enlarged")
    return scaled(load_image_set(name), "unit_interval")


def draw_pair(
    data: Dataset, classes: tuple[int, int], sizes: tuple[int, int], generator: torch.Generator
) -> Pair:
    """As many random training and test images of either class."""
    parts = []
    for labels, size in zip((data.y_train, data.y_test), sizes, strict=True):
        smallest = int(labels.bincount()[list(classes)].min())
        parts.append(pair_task(labels, classes, min(size, 2 * smallest), generator))
    train, test = parts
    return Pair(
        classes, data.x_train[train.rows], train.targets, data.x_test[test.rows], test.targets
    )


def published_extractor(name: str, generator: torch.Generator) -> Extractor:
    """A network with its published ImageNet weights, beside one at random."""
    return Extractor(name, random_network(name, generator), published_network(name), published=True)


def small_extractor(
    data: Dataset, classes: Sequence[int], per_class: int, epochs: int, trial: Trial
) -> Extractor:
    """A small CNN, trained here to tell some classes of the data apart."""
    source = class_subset(data, classes)
    rows = balanced_rows(source.y_train, per_class * len(classes), generator=trial.generator(11))
    channels = data.shape[0]
    initial, trained = (
        _small_cnn(channels, len(classes), trial.generator(12)).to(trial.device) for _ in range(2)
    )
    recipe = Recipe(
        optimizer="adam", learning_rate=2e-3, batch_size=64, epochs=epochs, seed=trial.seed,
        log="ends",
    )  # fmt: skip
    train(trained, (2 * source.x_train[rows] - 1, source.y_train[rows]), recipe)
    return Extractor("small_cnn", initial, trained)


def _small_cnn(channels: int, num_classes: int, generator: torch.Generator) -> nn.Module:
    """Three convolutions with pools, global average, 128 features, a head."""
    model = nn.Sequential()
    inputs = channels
    for index, width in enumerate((32, 64, 128)):
        model.add_module(f"conv{index + 1}", nn.Conv2d(inputs, width, 3, padding=1))
        model.add_module(f"act{index + 1}", nn.ReLU())
        model.add_module(f"pool{index + 1}", nn.MaxPool2d(2))
        inputs = width
    model.add_module("average", nn.AdaptiveAvgPool2d(1))
    model.add_module("flatten", nn.Flatten())
    model.add_module("head", nn.Linear(inputs, num_classes))
    return initialize_(model, "default", generator=generator)


def handmade(
    pair: Pair, words: int, generator: torch.Generator
) -> dict[str, tuple[Tensor, Tensor]]:
    """Name -> features of the training and of the test images, without any network.

    SIFT is left out where scikit-learn, which finds its words, is not installed.
    """
    flat = [unit_rows(images.flatten(1)) for images in (pair.train, pair.test)]
    found = {
        "original": (flat[0], flat[1]),
        "hog": (hog_features(pair.train), hog_features(pair.test)),
        "rbf": (
            rbf_features(flat[0].double(), flat[0].double()),
            rbf_features(flat[1].double(), flat[0].double()),
        ),
    }
    if importlib.util.find_spec("sklearn") is not None:
        descriptors = [dense_sift(images) for images in (pair.train, pair.test)]
        vocabulary = visual_vocabulary(descriptors[0].flatten(0, 1), words, generator)
        first, second = (word_histograms(part, vocabulary) for part in descriptors)
        found["sift"] = (first, second)
    return found
