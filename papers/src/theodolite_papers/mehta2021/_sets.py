"""The data of the experiments: whole image sets, small versions of them, and a many-class set.

Every input is standardised by itself, as in the authors' program, so that its norm is the root of
its length and the scale of a first layer means the same everywhere.
"""

from functools import cache

import torch
from torch import Tensor

from theodolite.data import Dataset, digits, image_standardized
from theodolite.errors import UnknownNameError
from theodolite_papers.lab.data import average_pooled, balanced_rows, load_image_set

__all__ = ["PER_CLASS", "SETS", "standardized_set"]

PER_CLASS = 200  # examples of each class of the small image sets, in training and in test
_NOISE = 2.0  # of the many-class mixture, in deviations of its centers: hard enough to fail at
# name -> (image set, side of the squares that become one pixel)
_POOLED = {"cifar8": ("cifar10", 4), "cifar16": ("cifar10", 2), "fashion14": ("fashion_mnist", 2)}
# name -> (image set, training examples of each class); all test examples
_PARTS = {"cifar10_10k": ("cifar10", 1000), "cifar10_20k": ("cifar10", 2000)}
_WHOLE = ("cifar10", "cifar100", "svhn")
SETS = ("digits", "mixture50", *_POOLED, *_PARTS, *_WHOLE)


def standardized_set(name: str, generator: torch.Generator) -> Dataset:
    """A data set whose inputs have mean zero and the norm of a vector of ones.

    Args:
        name: "digits" (1000 + 797), "mixture50" (50 Gaussian classes in 64 dimensions), "cifar8",
            "cifar16", "fashion14" (image sets shrunk to that side, 200 + 200 of each class),
            "cifar10_10k", "cifar10_20k" (so many training images), or a whole image set.
        generator: draws the split or the rows.

    Raises:
        UnknownNameError: If there is no such set.
        DataError: If its images cannot be had; the message says which file to put where.
    """
    if name not in SETS:
        raise UnknownNameError("data set", name, SETS)
    if name == "digits":
        chosen = digits(797, generator)
    elif name == "mixture50":
        chosen = _mixture(50, 64, 20, generator)
    elif name in _POOLED:
        source, factor = _POOLED[name]
        chosen = _shrunk(_whole(source), factor, generator)
    elif name in _PARTS:
        source, each = _PARTS[name]
        chosen = _part(_whole(source), each, generator)
    else:
        chosen = _whole(name)
    return chosen.mapped(image_standardized, "image")


@cache
def _whole(name: str) -> Dataset:
    return load_image_set(name)


def _shrunk(whole: Dataset, factor: int, generator: torch.Generator) -> Dataset:
    size = PER_CLASS * whole.num_classes
    train = balanced_rows(whole.y_train, size, generator=generator)
    test = balanced_rows(whole.y_test, size, generator=generator)
    return whole.take(train, test).mapped(lambda x: average_pooled(x, factor), f"mean of {factor}")


def _part(whole: Dataset, each: int, generator: torch.Generator) -> Dataset:
    rows = balanced_rows(whole.y_train, each * whole.num_classes, generator=generator)
    return whole.take(rows)


def _mixture(
    num_classes: int, dimensions: int, per_class: int, generator: torch.Generator
) -> Dataset:
    """Gaussians around centers that are Gaussian too; a stand-in for a hundred classes."""
    centers = torch.randn(num_classes, dimensions, generator=generator)

    def split() -> tuple[Tensor, Tensor]:
        labels = torch.arange(num_classes).repeat_interleave(per_class)
        noise = torch.randn(len(labels), dimensions, generator=generator)
        return centers[labels] + _NOISE * noise, labels

    return Dataset("mixture50", *split(), *split())
