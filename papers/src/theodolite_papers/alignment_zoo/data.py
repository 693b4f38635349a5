"""The data sets of the zoo: small, of four kinds, with test examples and noisy labels.

Images are 14 x 14 and grey, so that a network trained on one set can be fine-tuned on another.
Texts are lines of Python's standard library with their package as label: the first twelve words,
hashed, one-hot.
"""

import re
import sysconfig
import zlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import interpolate

from theodolite_papers.alignment_zoo.design import Network
from theodolite_papers.lab.data import average_pooled, central_crop, load_image_set

__all__ = ["KINDS", "Task", "images", "task_of"]

KINDS = {
    **dict.fromkeys(("digits", "mnist", "cifar10", "fashion_mnist"), "image"),
    "cancer": "tabular",
    "parity": "synthetic",
    "addition": "synthetic",
    "text": "text",
}
_TOKENS = {"cancer": 10, "parity": 12, "addition": 2, "text": 12}  # of a transformer
_TEST = 500
_POOL = 4000  # examples at the start of a named set, from which all are drawn
_PACKAGES = ("asyncio", "email", "unittest", "xml", "importlib")
_WORDS = 48
_BITS = 24  # of parity, of which three count
_MODULUS = 23  # of addition


@dataclass(frozen=True)
class Task:
    """The training and test data of a network.

    Args:
        x: training inputs.
        y: their labels as given: with noise.
        x_validation: a tenth as many again, for a user who holds some out.
        y_validation: with noise.
        x_test: test inputs.
        y_test: their true labels.
        y_test_noisy: the same with noise.
        classes: their number.
        tokens: into how many a transformer cuts an input.
    """

    x: Float[Tensor, "n ..."]
    y: Int[Tensor, " n"]
    x_validation: Float[Tensor, "m ..."]
    y_validation: Int[Tensor, " m"]
    x_test: Float[Tensor, "k ..."]
    y_test: Int[Tensor, " k"]
    y_test_noisy: Int[Tensor, " k"]
    classes: int
    tokens: int


def task_of(network: Network) -> Task:
    """Data of a network; networks of a group share the order of examples and the noise."""
    generator = np.random.default_rng(network.seed)
    inputs, labels = _drawn(network.data, generator)
    classes = int(labels.max()) + 1
    share, redrawn = generator.random(len(labels)), generator.integers(0, classes, len(labels))
    noisy = np.where(share < network.noise, redrawn, labels)
    held = -(-network.examples // 10)
    last = len(inputs)
    # Test examples are the last ones, so that they do not depend on the number for training.
    test = slice(max(last - _TEST, network.examples + held), last)
    x, y, z = torch.tensor(inputs), torch.tensor(labels), torch.tensor(noisy)
    train, validation = slice(network.examples), slice(network.examples, network.examples + held)
    return Task(
        x[train], z[train], x[validation], z[validation], x[test], y[test], z[test],
        classes, _TOKENS.get(network.data, 14),
    )  # fmt: skip


def _drawn(name: str, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and true classes in random order."""
    if KINDS[name] == "image":
        inputs, labels = images(name)
        order = generator.permutation(len(inputs))
        inputs, labels = inputs[order], labels[order]
    elif name == "text":
        inputs, labels = _lines()
        order = generator.permutation(len(inputs))[:_POOL]
        inputs, labels = inputs[order], labels[order]
    else:
        draw = {"cancer": _cancer, "parity": _parity, "addition": _addition}[name]
        inputs, labels = draw(generator)
    return inputs.astype(np.float32), labels.astype(np.int64)


def _cancer(generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """The breast cancer table of scikit-learn, standardised."""
    from sklearn.datasets import load_breast_cancer

    inputs, labels = load_breast_cancer(return_X_y=True)
    order = generator.permutation(len(inputs))
    inputs = (inputs - inputs.mean(0)) / (inputs.std(0) + 1e-6)
    return inputs[order], labels[order]


def _parity(generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Inputs of +1 and -1; the class is the parity of three of them."""
    inputs = generator.choice([-1.0, 1.0], (_POOL, _BITS))
    return inputs, (inputs[:, :3] > 0).sum(1) % 2


def _addition(generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """All pairs of numbers, one-hot; the class is their sum modulo 23."""
    first, second = (grid.ravel() for grid in np.indices((_MODULUS, _MODULUS)))
    order = generator.permutation(_MODULUS * _MODULUS)
    inputs = np.hstack([np.eye(_MODULUS)[first], np.eye(_MODULUS)[second]])
    return inputs[order], ((first + second) % _MODULUS)[order]


@cache
def images(name: str) -> tuple[np.ndarray, np.ndarray]:
    """The first examples of an image set, grey, 14 x 14, standardised as a whole."""
    if name == "digits":
        from sklearn.datasets import load_digits

        pixels, labels = load_digits(return_X_y=True)
        grey = interpolate(torch.tensor(pixels).float().reshape(-1, 1, 8, 8), 14, mode="bilinear")
    else:
        data = load_image_set(name)
        pixels, labels = data.x_train[:_POOL].float(), data.y_train[:_POOL].numpy()
        grey = average_pooled(central_crop(pixels.mean(1, keepdim=True), 28), 2)
    values = grey.numpy()
    return (values - values.mean()) / values.std(), labels


def _package_words(package: str) -> list[list[str]]:
    """Words of each line of a package of Python's standard library."""
    folder = Path(sysconfig.get_path("stdlib")) / package
    lines = [
        line.strip().lower()
        for path in sorted(folder.rglob("*.py"))
        for line in path.read_text(errors="ignore").splitlines()
        if len(line.strip()) > 30
    ]
    return [re.findall(r"\w+", line) for line in lines]


@cache
def _lines() -> tuple[np.ndarray, np.ndarray]:
    inputs, labels = [], []
    for label, package in enumerate(_PACKAGES):
        lines = [words for words in _package_words(package) if len(words) >= 4]
        for row in np.random.default_rng(0).permutation(len(lines))[:1000]:
            line = np.zeros((12, _WORDS), np.float32)
            for place, word in enumerate(lines[row][:12]):
                line[place, zlib.crc32(word.encode()) % _WORDS] = 1
            inputs.append(line)
            labels.append(label)
    values = np.stack(inputs)
    return (values - values.mean()) / values.std(), np.array(labels)
