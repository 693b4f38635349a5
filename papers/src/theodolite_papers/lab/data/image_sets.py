"""Named image sets: from ``$THEODOLITE_DATA/NAME.npz``, or downloaded with ``datasets``."""

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from theodolite.data import Dataset, channels_first, load_npz
from theodolite.errors import DataError, UnknownNameError

__all__ = ["IMAGE_SETS", "ImageSet", "data_folder", "load_image_set"]

_FASHION = "t-shirt trouser pullover dress coat sandal shirt sneaker bag ankle-boot"
_CIFAR10 = "airplane automobile bird cat deer dog frog horse ship truck"


@dataclass(frozen=True)
class ImageSet:
    """Where a named image set comes from, and what it must look like."""

    repository: str
    examples: tuple[int, int]
    shape: tuple[int, ...]  # of one image, channels last
    num_classes: int = 10
    classes: str = ""
    config: str | None = None
    columns: tuple[str, str] = ("image", "label")


IMAGE_SETS: dict[str, ImageSet] = {
    "mnist": ImageSet("ylecun/mnist", (60_000, 10_000), (28, 28)),
    "fashion_mnist": ImageSet(
        "zalando-datasets/fashion_mnist", (60_000, 10_000), (28, 28), classes=_FASHION
    ),
    "kmnist": ImageSet("tanganke/kmnist", (60_000, 10_000), (28, 28)),
    "cifar10": ImageSet(
        "uoft-cs/cifar10",
        (50_000, 10_000),
        (32, 32, 3),
        classes=_CIFAR10,
        columns=("img", "label"),
    ),
    "cifar100": ImageSet(
        "uoft-cs/cifar100",
        (50_000, 10_000),
        (32, 32, 3),
        num_classes=100,
        columns=("img", "fine_label"),
    ),
    "svhn": ImageSet("ufldl-stanford/svhn", (73_257, 26_032), (32, 32, 3), config="cropped_digits"),
}


def data_folder() -> Path:
    """``$THEODOLITE_DATA``, or ``~/.cache/theodolite/data`` where that is not set."""
    chosen = os.environ.get("THEODOLITE_DATA")
    return Path(chosen) if chosen else Path.home() / ".cache" / "theodolite" / "data"


def load_image_set(name: str) -> Dataset:
    """A named image set, raw: bytes, channels first, official split and order.

    Read from ``NAME.npz`` in :func:`data_folder` where it exists; else downloaded through Hugging
    Face ``datasets`` and kept there.

    Args:
        name: a key of ``IMAGE_SETS``, e.g. ``"cifar10"``.

    Raises:
        UnknownNameError: If no set has that name.
        DataError: If the file is not what it should be, or there is none and no download. The
            message says which file to put where.
    """
    if name not in IMAGE_SETS:
        raise UnknownNameError("image set", name, IMAGE_SETS)
    expected = IMAGE_SETS[name]
    file = data_folder() / f"{name}.npz"
    if file.exists():
        return _named(load_npz(file, name), expected, str(file))
    try:
        downloaded = _download(name, expected)
    except Exception as error:  # no package, no network, no such repository, a full disk
        raise DataError(_instructions(name, expected, file, error)) from error
    answer = _named(downloaded, expected, expected.repository)
    file.parent.mkdir(parents=True, exist_ok=True)
    _save_npz(answer, file)
    return answer


def _instructions(name: str, expected: ImageSet, file: Path, error: Exception) -> str:
    train, test = expected.examples
    reason = (
        "the package datasets is not installed"
        if isinstance(error, ImportError)
        else f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    )
    return (
        f"{name}: expected {file}, which does not exist, and the download failed ({reason}). "
        f"Put an .npz file there (or in another folder, named by THEODOLITE_DATA) with x_train "
        f"{(train, *expected.shape)} and x_test {(test, *expected.shape)} of uint8, y_train "
        f"({train},) and y_test ({test},) of integers 0..{expected.num_classes - 1}; or, with "
        "network access, run pip install 'theodolite[hf]' pillow and try again"
    )


def _download(name: str, expected: ImageSet) -> Dataset:
    from datasets import load_dataset

    splits = load_dataset(expected.repository, expected.config)
    x_train, y_train = _columns(splits["train"], expected)
    x_test, y_test = _columns(splits["test"], expected)
    return Dataset(name, x_train, y_train, x_test, y_test, peak=255)


def _columns(split: Any, expected: ImageSet) -> tuple[Tensor, Tensor]:
    image, label = expected.columns
    pixels = np.stack([np.asarray(picture, dtype=np.uint8) for picture in split[image]])
    labels = torch.as_tensor(np.asarray(list(split[label]), dtype=np.int64))
    return channels_first(torch.from_numpy(pixels)), labels


def _named(dataset: Dataset, expected: ImageSet, source: str) -> Dataset:
    """The set with its class names, once it is known to be what it claims."""
    height, width, *channels = expected.shape
    shape = (*(channels or [1]), height, width)
    if dataset.shape != shape or dataset.x_train.dtype != torch.uint8:
        raise DataError(
            f"{source}: expected uint8 images of shape {expected.shape}, got "
            f"{dataset.x_train.dtype} of shape {dataset.shape} (channels first)"
        )
    if dataset.y_train.is_floating_point():
        raise DataError(f"{source}: expected integer labels, got {dataset.y_train.dtype}")
    y_train, y_test = dataset.y_train, dataset.y_test
    if dataset.name == "svhn":
        # The official files call digit 0 class 10.
        y_train, y_test = (torch.where(y == 10, 0, y) for y in (y_train, y_test))
    highest = int(max(y_train.max(), y_test.max()))
    if highest >= expected.num_classes:
        raise DataError(f"{source}: expected labels 0..{expected.num_classes - 1}, got {highest}")
    numbers = " ".join(str(index) for index in range(expected.num_classes))
    names = tuple((expected.classes or numbers).split())
    return replace(dataset, y_train=y_train, y_test=y_test, classes=names)


def _save_npz(dataset: Dataset, file: Path) -> None:
    """Write the tensors so that ``load_npz`` reads them back; a killed process leaves no part."""
    keys = ("x_train", "y_train", "x_test", "y_test")
    part = file.with_name(f".{file.name}.part.npz")
    np.savez_compressed(part, **{key: getattr(dataset, key).cpu().numpy() for key in keys})
    part.replace(file)
