"""Data sets from folders of images, one folder per class."""

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from theodolite.checks import require_between, require_choice, require_count
from theodolite.data.dataset import Dataset, disjoint_rows
from theodolite.data.npz import channels_first
from theodolite.errors import DataError

__all__ = ["load_image_folder"]

_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")


@dataclass(frozen=True)
class _Form:
    """How files become arrays, and how many of a class."""

    opener: Any
    mode: str
    size: int | None
    per_class: int | None


def load_image_folder(
    path: str | Path,
    size: int | None = None,
    mode: Literal["RGB", "L"] = "RGB",
    per_class: int | None = None,
    test_fraction: float = 0.2,
    generator: torch.Generator | None = None,
) -> Dataset:
    """Read ``FOLDER/train/CLASS/*`` and ``FOLDER/test/CLASS/*``, or split ``FOLDER/CLASS/*``.

    ``val`` may stand for ``test``. All images are held in memory: take a few per class of large
    sets such as ImageNet.

    Args:
        path: the folder. Classes are its sub-folders in alphabetical order.
        size: resize the shorter side to this and cut the central square; without it all images
            must have the same size.
        mode: ``"RGB"`` or ``"L"`` (grey).
        per_class: read at most so many images of a class and split, the first by name.
        test_fraction: share of the images that become the test set where the folder has none.
        generator: draws that split.

    Returns:
        Byte images, channels first, ``peak = 255``; 16-bit images are scaled down to bytes.

    Raises:
        DataError: If Pillow or the folder is missing, a class is empty, a file cannot be read, or
            sizes differ.
    """
    require_choice(("RGB", "L"), mode=mode)
    require_between(0.0, 1.0, open_low=True, open_high=True, test_fraction=test_fraction)
    for name, value in {"size": size, "per_class": per_class}.items():
        if value is not None:
            require_count(1, **{name: value})
    form = _Form(_pillow(), mode, size, per_class)
    folder = Path(path)
    test_folders = [folder / name for name in ("test", "val") if (folder / name).is_dir()]
    if (folder / "train").is_dir() and test_folders:
        return _both_splits(folder, test_folders[0], form)
    classes = _classes(folder)
    x, y = _read(folder, classes, form)
    held_out = max(1, round(test_fraction * len(x)))
    if held_out >= len(x):
        raise DataError(f"{folder}: expected at least two images to split, got {len(x)}")
    train, test = disjoint_rows(len(x), len(x) - held_out, held_out, generator=generator)
    return Dataset(folder.name, x[train], y[train], x[test], y[test], classes, peak=255)


def _both_splits(folder: Path, test_folder: Path, form: _Form) -> Dataset:
    classes = _classes(folder / "train")
    if _classes(test_folder) != classes:
        raise DataError(f"{folder}: expected the same classes in train and {test_folder.name}")
    train, test = (_read(part, classes, form) for part in (folder / "train", test_folder))
    return Dataset(folder.name, *train, *test, classes, peak=255)


def _pillow() -> Any:
    try:
        return import_module("PIL.Image")
    except ImportError as error:
        raise DataError(
            "image folders need Pillow, which is not installed; run 'pip install pillow', or "
            "convert the images to an .npz file with x_train, y_train, x_test, y_test"
        ) from error


def _classes(folder: Path) -> tuple[str, ...]:
    if not folder.is_dir():
        raise DataError(f"{folder}: expected a folder with one sub-folder of images per class")
    names = sorted(
        item.name for item in folder.iterdir() if item.is_dir() and not item.name.startswith(".")
    )
    if not names:
        raise DataError(f"{folder}: expected one sub-folder of images per class, found none")
    return tuple(names)


def _read(folder: Path, classes: tuple[str, ...], form: _Form) -> tuple[Tensor, Tensor]:
    arrays: list[np.ndarray] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        for file in _files(folder / name)[: form.per_class]:
            array = _pixels(file, form)
            if arrays and array.shape != arrays[0].shape:
                raise DataError(
                    f"{file}: expected the size of the first image, {arrays[0].shape[:2]}, got "
                    f"{array.shape[:2]}; pass size= to resize and crop"
                )
            arrays.append(array)
            labels.append(label)
    return channels_first(torch.from_numpy(np.stack(arrays))), torch.tensor(labels)


def _files(folder: Path) -> list[Path]:
    files = sorted(file for file in folder.rglob("*") if file.suffix.lower() in _SUFFIXES)
    if not files:
        raise DataError(
            f"{folder}: expected images ({', '.join(_SUFFIXES)}), found none; "
            "every class needs at least one"
        )
    return files


def _pixels(file: Path, form: _Form) -> np.ndarray:
    try:
        with form.opener.open(file) as image:
            picture = _eight_bit(image, form).convert(form.mode)
            if form.size is not None:
                picture = _square(picture, form.size)
            return np.array(picture, dtype=np.uint8)
    except Exception as error:  # Pillow's plugins fail in many ways on damaged files
        raise DataError(
            f"{file}: expected an image, but it cannot be read "
            f"({type(error).__name__}: {error}); remove or replace the file"
        ) from error


def _eight_bit(image: Any, form: _Form) -> Any:
    """The image in bytes: Pillow's own conversion cuts deeper pixels off at 255."""
    if image.mode.startswith("I;16"):
        return form.opener.fromarray((np.asarray(image) // 257).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise ValueError(f"pixels of mode {image.mode} have no known range, convert them to bytes")
    return image


def _square(picture: Any, size: int) -> Any:
    width, height = picture.size
    scale = size / min(width, height)
    wide, high = max(size, round(width * scale)), max(size, round(height * scale))
    left, top = (wide - size) // 2, (high - size) // 2
    return picture.resize((wide, high)).crop((left, top, left + size, top + size))
