"""Tasks of many kinds, each with test examples: generated, tabular, text and images.

The rule of ``theodolite.advice.judge_inputs`` was chosen on :data:`CHOSEN` and is judged on
:data:`JUDGED`, whose kinds of task it has not seen.
"""

import re
import sysconfig
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from theodolite_papers.lab.data import load_image_set

__all__ = ["CHOSEN", "JUDGED", "Split", "TaskKind", "package_words"]

_TEST = 2000  # examples, where data is generated or plenty


@dataclass(frozen=True)
class Split:
    """Training and test examples with their true classes."""

    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray


Draw = Callable[[int, np.random.Generator], tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class TaskKind:
    """A kind of data with true classes.

    Args:
        kind: tasks of one kind are held out together.
        draw: (at most so many examples, generator) -> inputs, classes; in random order.
        sizes: how many training examples there may be.
        test_share: of the examples, where they are few; else 2000.
    """

    kind: str
    draw: Draw
    sizes: tuple[int, ...] = (300, 600, 1200)
    test_share: float | None = None

    def split(self, examples: int, generator: np.random.Generator) -> Split:
        """Examples for training and as many others for testing as there are."""
        inputs, classes = self.draw(examples + _TEST, generator)
        if self.test_share is not None:
            examples = min(examples, int(len(inputs) * (1 - self.test_share)))
        inputs, classes = inputs.astype(np.float32), classes.astype(np.int64)
        return Split(inputs[:examples], classes[:examples], inputs[examples:], classes[examples:])


def _labelled(label: Callable[[np.ndarray], np.ndarray], features: int) -> Draw:
    """Standard normal inputs and a rule."""

    def draw(count: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        inputs = generator.standard_normal((count, features))
        return inputs, label(inputs)

    return draw


def _signs(label: Callable[[np.ndarray], np.ndarray], features: int) -> Draw:
    """Inputs of +1 and -1 and a rule."""

    def draw(count: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        inputs = generator.choice([-1.0, 1.0], (count, features))
        return inputs, label(inputs)

    return draw


def _linear(features: int, relevant: int) -> Draw:
    def draw(count: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        weights = generator.standard_normal(features) * (np.arange(features) < relevant)
        inputs = generator.standard_normal((count, features))
        return inputs, inputs @ weights > 0

    return draw


def _teacher(count: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """A random network with five hidden units."""
    hidden, last = generator.standard_normal((20, 5)), generator.standard_normal(5)
    inputs = generator.standard_normal((count, 20))
    outputs = np.maximum(inputs @ hidden, 0) @ last
    return inputs, outputs > np.median(outputs)


def _clusters(count: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Eight clusters in 20 dimensions, two of each class."""
    centres = generator.standard_normal((8, 20)) * 1.5
    cluster = generator.integers(0, 8, count)
    return centres[cluster] + generator.standard_normal((count, 20)), cluster % 4


def _checkerboard(count: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    inputs = generator.uniform(0, 4, (count, 2))
    return inputs, np.floor(inputs).sum(1) % 2


def _spiral(count: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    arm, turn = generator.integers(0, 2, count), generator.uniform(0.5, 3, count) * np.pi
    angle = turn + np.pi * arm
    inputs = np.stack([turn * np.cos(angle), turn * np.sin(angle)], 1) / 5
    return inputs + 0.05 * generator.standard_normal((count, 2)), arm


def _arithmetic(rule: Callable[[np.ndarray, np.ndarray], np.ndarray], modulus: int) -> Draw:
    """All pairs of numbers, one-hot; the class is the result of the rule."""

    def draw(_count: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        first, second = (grid.ravel() for grid in np.indices((modulus, modulus)))
        order = generator.permutation(modulus * modulus)
        inputs = np.hstack([np.eye(modulus)[first], np.eye(modulus)[second]])
        return inputs[order], (rule(first, second) % modulus)[order]

    return draw


def _scikit(name: str, classes: int | None = None) -> Draw:
    """A small table of scikit-learn, standardised; a regression target becomes classes."""

    def draw(_count: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        from sklearn import datasets

        inputs, targets = getattr(datasets, f"load_{name}")(return_X_y=True)
        if classes is not None:
            cuts = np.quantile(targets, np.arange(1, classes) / classes)
            targets = np.searchsorted(cuts, targets)
        order = generator.permutation(len(inputs))
        inputs = (inputs - inputs.mean(0)) / (inputs.std(0) + 1e-6)
        return inputs[order], targets[order]

    return draw


def _made(count: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    from sklearn.datasets import make_classification

    seed = int(generator.integers(2**30))
    inputs, classes = make_classification(
        count, 20, n_informative=6, n_classes=3, class_sep=1.2, random_state=seed
    )
    return inputs, classes


def _friedman(count: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    from sklearn.datasets import make_friedman1

    inputs, targets = make_friedman1(count, 10, random_state=int(generator.integers(2**30)))
    return inputs, np.searchsorted(np.quantile(targets, [1 / 3, 2 / 3]), targets)


def _images(name: str, rotations: bool = False) -> Draw:
    """Images of a named set; where asked for, the class is by how many quarters they are turned."""

    def draw(count: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        data = load_image_set(name)
        rows = generator.permutation(len(data.x_train))[:count]
        inputs = data.x_train.numpy()[rows] / np.float32(255)
        classes = data.y_train.numpy()[rows]
        if rotations:
            classes = generator.integers(0, 4, len(rows))
            turned = [np.rot90(x, k, (1, 2)) for x, k in zip(inputs, classes, strict=True)]
            inputs = np.stack(turned)
        return (inputs - inputs.mean()) / inputs.std(), classes

    return draw


@cache
def package_words(package: str) -> list[list[str]]:
    """Words of each line of a package of Python's standard library."""
    folder = Path(sysconfig.get_path("stdlib")) / package
    lines = [
        line.strip().lower()
        for path in sorted(folder.rglob("*.py"))
        for line in path.read_text(errors="ignore").splitlines()
        if len(line.strip()) > 30
    ]
    return [re.findall(r"\w+", line) for line in lines]


def _lines(packages: tuple[str, ...], features: int) -> Draw:
    """Counts of hashed words in a line of code; the class is the package that it is from."""

    def draw(count: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        inputs, classes = [], []
        for label, package in enumerate(packages):
            lines = package_words(package)
            for row in generator.permutation(len(lines))[: count // len(packages)]:
                hashed = [zlib.crc32(word.encode()) % features for word in lines[row]]
                counts = np.bincount(hashed, minlength=features)
                inputs.append(10 * counts / max(float(np.linalg.norm(counts)), 1.0))
                classes.append(label)
        order = generator.permutation(len(inputs))
        table = np.array(inputs)[order]
        return table - table.mean(0), np.array(classes)[order]

    return draw


_MANY = (600, 1200, 2400)

# What the rule was chosen on.
CHOSEN: Mapping[str, TaskKind] = {
    "xor": TaskKind("boolean", _labelled(lambda x: x[:, 0] * x[:, 1] > 0, 20), _MANY),
    "parity": TaskKind(
        "boolean", _signs(lambda x: (x[:, :3] > 0).sum(1) % 2, 24), (1200, 2400, 4000)
    ),
    "ring": TaskKind("geometric", _labelled(lambda x: (x[:, :2] ** 2).sum(1) > 1.386, 6), _MANY),
    "checkerboard": TaskKind("geometric", _checkerboard, _MANY),
    "spiral": TaskKind("geometric", _spiral, _MANY),
    "linear": TaskKind("teacher", _linear(30, 30)),
    "teacher": TaskKind("teacher", _teacher, _MANY),
    "clusters": TaskKind("clusters", _clusters),
    "addition": TaskKind("arithmetic", _arithmetic(lambda a, b: a + b, 23), test_share=0.2),
    "breast_cancer": TaskKind("tabular", _scikit("breast_cancer"), test_share=0.3),
    "wine": TaskKind("tabular", _scikit("wine"), test_share=0.3),
    "made": TaskKind("tabular", _made),
    "digits": TaskKind("image", _scikit("digits"), test_share=0.3),
    "mnist": TaskKind("image", _images("mnist")),
    "fashion_mnist": TaskKind("image", _images("fashion_mnist")),
    "cifar10": TaskKind("image", _images("cifar10")),
    "packages": TaskKind("text", _lines(("asyncio", "email", "unittest", "xml", "tkinter"), 300)),
}

# What it is judged on: other kinds of rules, tables, text and questions about images.
JUDGED: Mapping[str, TaskKind] = {
    "staircase": TaskKind(
        "staircase",
        _signs(lambda x: x[:, 0] + x[:, 0] * x[:, 1] + x[:, 0] * x[:, 1] * x[:, 2] > 0, 30),
        _MANY,
    ),
    "majority": TaskKind("majority", _signs(lambda x: x[:, :5].sum(1) > 0, 30), _MANY),
    "shells": TaskKind("shells", _labelled(lambda x: np.floor((x**2).sum(1) / 5) % 2, 10), _MANY),
    "sparse_linear": TaskKind("sparse linear", _linear(200, 5), _MANY),
    "product_of_three": TaskKind("product", _labelled(lambda x: x[:, :3].prod(1) > 0, 12), _MANY),
    "subtraction": TaskKind("subtraction", _arithmetic(lambda a, b: a - b, 29), test_share=0.2),
    "comparison": TaskKind("comparison", _arithmetic(lambda a, b: a > b, 31), test_share=0.3),
    "iris": TaskKind("flowers", _scikit("iris"), test_share=0.3),
    "diabetes": TaskKind("medical", _scikit("diabetes", classes=2), test_share=0.3),
    "friedman": TaskKind("regression", _friedman),
    "rotated_mnist": TaskKind("rotations", _images("mnist", rotations=True)),
    "rotated_cifar10": TaskKind("rotations", _images("cifar10", rotations=True)),
    "stdlib": TaskKind("other text", _lines(("json", "http", "importlib", "idlelib"), 150)),
}
