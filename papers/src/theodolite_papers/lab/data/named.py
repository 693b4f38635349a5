"""Data sets with a name: image sets and a table from files, cut and shrunk for small experiments.

An image set is read from ``$THEODOLITE_DATA/NAME.npz``. :func:`download_image_set` downloads it
there; no other function uses the network.
"""

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Num
from torch import Tensor
from torch.nn import functional

from theodolite.checks import require_axes, require_count
from theodolite.data import Dataset, channels_first, disjoint_rows, load_npz
from theodolite.errors import DataError, ShapeError, UnknownNameError
from theodolite.linalg import checks_classes

__all__ = [
    "CT_FILE",
    "IMAGE_SETS",
    "ImageSet",
    "average_pooled",
    "central_crop",
    "data_folder",
    "download_image_set",
    "load_ct_position",
    "load_image_set",
]

CT_FILE = "slice_localization_data.csv"
_CT_FEATURES = 384
_CT_COLUMNS = ("patientId", *(f"value{index}" for index in range(_CT_FEATURES)), "reference")
_FASHION = "t-shirt trouser pullover dress coat sandal shirt sneaker bag ankle-boot"
_CIFAR10 = "airplane automobile bird cat deer dog frog horse ship truck"


@dataclass(frozen=True)
class ImageSet:
    """The source and the shape of a named image set."""

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

    Args:
        name: a key of ``IMAGE_SETS``, e.g. ``"cifar10"``; ``NAME.npz`` in :func:`data_folder`.

    Raises:
        UnknownNameError: If no set has that name.
        DataError: If the file is not what it should be, or there is none. The message says which
            file to put where.
    """
    if name not in IMAGE_SETS:
        raise UnknownNameError("image set", name, IMAGE_SETS)
    expected = IMAGE_SETS[name]
    file = data_folder() / f"{name}.npz"
    if not file.exists():
        raise DataError(_instructions(name, expected, file))
    return _named(load_npz(file, name), expected, str(file))


def download_image_set(name: str) -> Dataset:
    """Download a named image set with Hugging Face ``datasets``, for :func:`load_image_set`.

    Args:
        name: a key of ``IMAGE_SETS``.

    Raises:
        UnknownNameError: If no set has that name.
        DataError: If it is not available; the message says why, and which file to put where.
    """
    if name not in IMAGE_SETS:
        raise UnknownNameError("image set", name, IMAGE_SETS)
    expected = IMAGE_SETS[name]
    file = data_folder() / f"{name}.npz"
    try:
        downloaded = _download(name, expected)
    except Exception as error:  # no package, no network, no such repository, a full disk
        raise DataError(_instructions(name, expected, file, error)) from error
    answer = _named(downloaded, expected, expected.repository)
    file.parent.mkdir(parents=True, exist_ok=True)
    # Written under another name and moved, so that a killed process leaves no partial file.
    part = file.with_name(f".{file.name}.part.npz")
    keys = ("x_train", "y_train", "x_test", "y_test")
    np.savez_compressed(part, **{key: getattr(answer, key).cpu().numpy() for key in keys})
    part.replace(file)
    return answer


def _instructions(name: str, expected: ImageSet, file: Path, error: Exception | None = None) -> str:
    train, test = expected.examples
    missing = f"{name}: expected {file}, which does not exist"
    if error is not None:
        first = str(error).splitlines()[0] if str(error) else ""
        reason = f"{type(error).__name__}: {first}"
        if isinstance(error, ImportError):
            reason = "the package datasets is not installed; pip install 'theodolite[hf]' pillow"
        missing = f"{name}: the download failed ({reason})"
    call = f"from theodolite_papers.lab.data import download_image_set as d; d({name!r})"
    return (
        f'{missing}. With network access, run python -c "{call}". Without it, put an .npz file '
        "there, or in the folder that THEODOLITE_DATA names. Its arrays are "
        f"x_train {(train, *expected.shape)} and x_test {(test, *expected.shape)} of uint8, "
        f"y_train ({train},) and y_test ({test},) of integers 0..{expected.num_classes - 1}"
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
    """The set with its class names, after its shape and labels are checked."""
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


@checks_classes
def load_ct_position(
    train: int = 1000,
    test: int = 1000,
    path: str | Path | None = None,
    generator: torch.Generator | None = None,
) -> Dataset:
    """Random training and test rows of the UCI data set, unscaled.

    Args:
        train: number of training rows.
        test: number of test rows, none of them training rows.
        path: the CSV file; ``slice_localization_data.csv`` in the data folder if left out.
        generator: draws the rows.

    Returns:
        384 features per row; the target is the position along the body, 0 to 180.

    Raises:
        DataError: If the file is missing or not that table. The message says what to put where.
        DomainError: If there are fewer rows than that.

    References:
        [graf2011]; [imani2022], Figures 1, 5 and 9.
    """
    import pandas

    require_count(1, train=train, test=test)
    file = data_folder() / CT_FILE if path is None else Path(path)
    if not file.is_file():
        raise DataError(
            f"ct_position: expected {file}, which does not exist; download 'Relative location of "
            f"CT slices on axial axis' from the UCI Machine Learning Repository (number 206) and "
            f"put {CT_FILE} there, or in the folder that THEODOLITE_DATA names"
        )
    try:
        table = pandas.read_csv(file, usecols=list(_CT_COLUMNS), dtype="float64")
        values = torch.from_numpy(table[list(_CT_COLUMNS[1:])].to_numpy(copy=True))
    except Exception as error:  # the parser fails in many ways on other files
        raise DataError(
            f"{file}: expected a CSV table of numbers with the columns patientId, value0 to "
            f"value383, reference ({type(error).__name__}: {error}); download it again"
        ) from error
    if len(values) == 0 or not values.isfinite().all():
        raise DataError(f"{file}: expected rows of finite numbers, got {len(values)} rows")
    rows, held_out = disjoint_rows(len(values), train, test, generator=generator)
    x, y = values[:, :_CT_FEATURES], values[:, _CT_FEATURES]
    return Dataset("ct_position", x[rows], y[rows], x[held_out], y[held_out])


@checks_classes
def central_crop(images: Num[Tensor, "n c h w"], size: int) -> Num[Tensor, "n c size size"]:
    """The central square of every image; an odd margin leaves the larger part at the end.

    Raises:
        ShapeError: If an image is smaller than the crop.

    Example:
        >>> central_crop(torch.arange(16).reshape(1, 1, 4, 4), 2).flatten()
        tensor([ 5,  6,  9, 10])
    """
    require_axes(4, images=images)
    require_count(1, size=size)
    height, width = images.shape[2:]
    if min(height, width) < size:
        raise ShapeError(f"images: expected sides of at least {size}, got {height} x {width}")
    top, left = (height - size) // 2, (width - size) // 2
    return images[:, :, top : top + size, left : left + size]


@checks_classes
def average_pooled(images: Num[Tensor, "n c h w"], factor: int) -> Float[Tensor, "n c k l"]:
    """Images shrunk by the mean over squares of ``factor`` pixels.

    Raises:
        ShapeError: If a side is no multiple of the factor.

    Example:
        >>> average_pooled(torch.ones(1, 3, 8, 8), 4).shape
        torch.Size([1, 3, 2, 2])
    """
    require_axes(4, images=images)
    require_count(1, factor=factor)
    if images.shape[2] % factor or images.shape[3] % factor:
        raise ShapeError(
            f"images: expected sides that {factor} divides, got {tuple(images.shape[2:])}; "
            "crop them first with central_crop"
        )
    values = images if images.is_floating_point() else images.float()
    return functional.avg_pool2d(values, factor)
