"""Data from files: ``.npz`` files, folders of images, and names of data sets."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from theodolite.checks import require_choice, require_count, require_finite_data, require_kind
from theodolite.data.dataset import Dataset, digits, disjoint_rows
from theodolite.errors import DataError, TheodoliteError, UnknownNameError
from theodolite.linalg import checks_classes
from theodolite.records import listed, require_path

_KEYS = ("x_train", "y_train", "x_test", "y_test")

_WANTED = "an .npz file with the arrays " + ", ".join(_KEYS)
_CHANNELS = (1, 3, 4)
_TEST_SHARE = 0.2  # of the images of a folder without a test set


def load_npz(
    path: str | Path,
    name: str | None = None,
    layout: Literal["image", "as_is"] = "image",
    split: Literal["train", "test"] | None = None,
) -> Dataset:
    """Read a data set; nothing in the file is ever executed.

    Integer labels are classes, floating-point ones regression targets. Byte inputs are pixels
    0..255 and may be scaled as such.

    Args:
        path: an ``.npz`` file with the arrays ``x_train, y_train, x_test, y_test``.
        name: name of the data set; by default the name of the file.
        layout: ``"image"`` converts ``(n, h, w)`` and ``(n, h, w, c)`` to channels first;
            ``"as_is"`` keeps the axes.
        split: ``"train"`` or ``"test"`` reads only this split and uses it for both.

    Returns:
        The data set, with ``peak = 255`` if inputs are bytes.

    Raises:
        DataError: If the file is missing, damaged, or holds something else. The message says
            what was expected.

    Examples:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "toy.npz"
        >>> x, y = np.zeros((2, 5, 5, 3), np.uint8), np.array([0, 1])
        >>> np.savez(path, x_train=x, y_train=y, x_test=x, y_test=y)
        >>> load_npz(path).x_train.shape
        torch.Size([2, 3, 5, 5])
    """
    require_path(path=path)
    require_choice(("image", "as_is"), layout=layout)
    file = Path(path)
    splits = ("train", "test") if split is None else (split, split)
    keys = [f"{part}_{each}" for each in splits for part in "xy"]
    arrays = _arrays(file, keys)
    x_train, y_train, x_test, y_test = (npz_tensor(file, key, arrays[key]) for key in keys)
    peak = 255 if x_train.dtype == x_test.dtype == torch.uint8 else None
    try:
        if layout == "image":
            x_train, x_test = channels_first(x_train), channels_first(x_test)
        require_finite_data(x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)
        targets = _targets(y_train), _targets(y_test)
        label = file.stem if name is None else name
        return Dataset(label, x_train, targets[0], x_test, targets[1], peak=peak)
    except TheodoliteError as error:
        raise DataError(f"{file}: {error}") from error


def _arrays(file: Path, keys: Sequence[str]) -> dict[str, np.ndarray]:
    with opened_npz(file) as archive:
        return _members(file, archive, keys)


@contextmanager
def opened_npz(file: Path) -> Iterator[Any]:
    """The arrays of a file by name, read on demand; any problem of the file is a DataError.

    Args:
        file: an ``.npz`` file.

    Yields:
        The open archive: ``archive["x_train"]`` reads one array.

    Raises:
        DataError: If the file is missing, damaged, or holds something else.

    Examples:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "toy.npz"
        >>> np.savez(path, x_train=np.zeros((2, 3)))
        >>> with opened_npz(path) as archive:
        ...     archive["x_train"].shape
        (2, 3)
    """
    require_path(file=file)
    if not Path(file).is_file():
        raise DataError(f"{file}: expected {_WANTED}, found no such file")
    try:
        with Path(file).open("rb") as stream:  # NumPy leaves it open when the archive is damaged
            archive = np.load(stream, allow_pickle=False)
            if isinstance(archive, np.ndarray):
                raise DataError(f"{file}: expected {_WANTED}, got a single array; use np.savez")
            yield archive
    except TheodoliteError:
        raise
    except Exception as error:  # a damaged zip or header fails in a dozen ways inside NumPy
        raise DataError(
            f"{file}: expected {_WANTED}, without pickled objects, but it cannot be read "
            f"({type(error).__name__}: {error}); write it again with np.savez"
        ) from error


def _members(file: Path, archive: Any, keys: Sequence[str]) -> dict[str, np.ndarray]:
    missing = [key for key in dict.fromkeys(keys) if key not in archive]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        found = ", ".join(archive.files) or "none"
        wanted = f"the arrays {', '.join(dict.fromkeys(keys))}"
        lost = f"{', '.join(missing)} {verb}" if len(missing) < len(set(keys)) else "they are"
        raise DataError(f"{file}: expected {wanted}, but {lost} missing; found {found}")
    return {key: archive[key] for key in keys}


def npz_tensor(file: Path, key: str, array: Any) -> Tensor:
    """An array of numbers, one entry per example, in a dtype that torch computes with.

    Args:
        file: named in errors.
        key: name of the array; ``x_train`` and ``x_test`` have at least two axes.
        array: what the file has under this name.

    Returns:
        A tensor of bytes, 64-bit integers or floats.

    Raises:
        DataError: If it is no array of numbers, or has too few axes.

    Examples:
        >>> npz_tensor(Path("toy.npz"), "y_train", np.array([0, 1], np.int16))
        tensor([0, 1])
    """
    require_path(file=file)
    require_kind(str, key=key)
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "iuf":
        kind = getattr(array, "dtype", type(array).__name__)
        text = isinstance(array, np.ndarray) and array.dtype.kind in "SU"
        advice = "; number the classes from 0" * (text and key in ("y_train", "y_test"))
        raise DataError(
            f"{file}: {key}: expected numbers (integers or floats), got "
            f"{'text' if text else kind}{advice}"
        )
    least = 2 if key in ("x_train", "x_test") else 1
    if array.ndim < least:
        raise DataError(
            f"{file}: {key}: expected at least {least} axes, one example per row, "
            f"got shape {array.shape}"
        )
    return torch.from_numpy(np.ascontiguousarray(array, dtype=_native(array.dtype)))


def _native(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The nearest dtype that torch computes with."""
    if dtype == np.uint8:
        return dtype
    if dtype.kind in "iu":
        return np.dtype(np.int64)
    return np.dtype(np.float64 if dtype.itemsize >= 8 else np.float32)


def _targets(values: Tensor) -> Tensor:
    return values if values.is_floating_point() else values.long()


@checks_classes
def channels_first(images: Tensor) -> Tensor:
    """``(n, h, w)`` and ``(n, h, w, c)`` as ``(n, c, h, w)``; other shapes unchanged.

    Args:
        images: one image per row.

    Returns:
        The images with channels first.

    Examples:
        >>> channels_first(torch.zeros(2, 5, 5, 3)).shape
        torch.Size([2, 3, 5, 5])
    """
    if images.ndim == 3:
        return images.unsqueeze(1)
    if images.ndim != 4:
        return images
    _, first, second, last = images.shape
    already = first in _CHANNELS and second == last
    if last in _CHANNELS and not already:
        return images.permute(0, 3, 1, 2).contiguous()
    return images


_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")


@dataclass(frozen=True)
class _Form:
    """How images become arrays, and how many of each class are read."""

    opener: Any
    size: int | None
    per_class: int | None


@checks_classes
def load_image_folder(
    path: str | Path,
    size: int | None = None,
    per_class: int | None = None,
    generator: torch.Generator | None = None,
) -> Dataset:
    """Read ``FOLDER/train/CLASS/*`` and ``FOLDER/test/CLASS/*``, or split ``FOLDER/CLASS/*``.

    The folder ``test`` may also be called ``val``. All images are held in memory, so read only a
    few per class of large sets such as ImageNet.

    Args:
        path: the folder. Classes are its sub-folders in alphabetical order.
        size: resize the shorter side to this number of pixels and cut out the central square. By
            default all images must have the same size.
        per_class: largest number of images of each class and split, the first by name.
        generator: draws a fifth of the images as the test set, if the folder has no test set.

    Returns:
        Byte images in colour, channels first, ``peak = 255``; 16-bit images are scaled to bytes.

    Raises:
        DataError: If Pillow or the folder is missing, a class is empty, a file cannot be read, or
            sizes differ.

    Examples:
        >>> import tempfile
        >>> from PIL import Image
        >>> folder = Path(tempfile.mkdtemp())
        >>> for place in ("train/cat", "train/dog", "test/cat", "test/dog"):
        ...     (folder / place).mkdir(parents=True)
        ...     Image.new("RGB", (8, 6)).save(folder / place / "one.png")
        >>> data = load_image_folder(folder, size=4)
        >>> data.x_train.shape, data.classes
        (torch.Size([2, 3, 4, 4]), ('cat', 'dog'))
    """
    require_path(path=path)
    for name, value in {"size": size, "per_class": per_class}.items():
        if value is not None:
            require_count(1, **{name: value})
    form = _Form(_pillow(), size, per_class)
    folder = Path(path)
    test_folders = [folder / name for name in ("test", "val") if (folder / name).is_dir()]
    if (folder / "train").is_dir() and test_folders:
        return _both_splits(folder, test_folders[0], form)
    classes = _classes(folder)
    x, y = _read(folder, classes, form)
    held_out = max(1, round(_TEST_SHARE * len(x)))
    if held_out >= len(x):
        raise DataError(f"{folder}: expected at least two images to split, got {len(x)}")
    train, test = disjoint_rows(len(x), len(x) - held_out, held_out, generator=generator)
    return Dataset(folder.name, x[train], y[train], x[test], y[test], classes, peak=255)


def _both_splits(folder: Path, test_folder: Path, form: _Form) -> Dataset:
    classes = _classes(folder / "train")
    if _classes(test_folder) != classes:
        different = sorted(set(classes) ^ set(_classes(test_folder)))
        raise DataError(
            f"{folder}: expected the same classes in train and {test_folder.name}, but only one of "
            f"them has {listed(different, most=3)}; add or remove these sub-folders"
        )
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
        raise DataError(
            f"{folder}: expected a folder with one sub-folder of images per class, found no such "
            "folder"
        )
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
            f"{folder}: expected images ({', '.join(_SUFFIXES)}), found none; every sub-folder is "
            "a class and needs at least one image"
        )
    return files


def _pixels(file: Path, form: _Form) -> np.ndarray:
    try:
        with form.opener.open(file) as image:
            picture = _eight_bit(image, form).convert("RGB")
            if form.size is not None:
                picture = _square(picture, form.size)
            return np.array(picture, dtype=np.uint8)
    except Exception as error:  # Pillow's plugins fail in many ways on damaged files
        raise DataError(
            f"{file}: expected an image, but it cannot be read "
            f"({type(error).__name__}: {error}); remove or replace the file"
        ) from error


def _eight_bit(image: Any, form: _Form) -> Any:
    """The image scaled to bytes; Pillow's own conversion clips 16-bit pixels at 255."""
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


Loader = Callable[[str, torch.Generator | None], Dataset]

_GROUP = "theodolite.data"  # entry points: word or word- prefix -> Loader


@checks_classes
def load_data(source: str | Path, generator: torch.Generator | None = None) -> Dataset:
    """Load the data set with this name or path, as on the command line.

    Args:
        source: ``"digits"``, a path to an ``.npz`` file, a folder with one sub-folder per class, or
            a name that an installed package adds (``theodolite-papers``: ``"mnist"`` and others).
            The package reads the part after a dash, as in ``"peaks-EDF"``.
        generator: source of randomness for drawn data or splits.

    Returns:
        The data set, unscaled.

    Raises:
        UnknownNameError: If it is neither a name nor a path.
        DataError: If the data cannot be read.

    Examples:
        >>> load_data("digits", torch.Generator().manual_seed(0)).name
        'digits'
    """
    require_path(source=source)
    word = str(source)
    if word == "digits":
        return digits(generator=generator)
    added = _added_loaders()
    for name in (word, word.partition("-")[0]):
        if name in added:
            return added[name](word, generator)
    path = Path(source)
    if path.is_dir():
        return load_image_folder(path, generator=generator)
    if path.suffix == ".npz":
        return load_npz(path)
    if path.exists():
        raise DataError(f"{path}: expected an .npz file or a folder with one sub-folder per class")
    hint = " Or pass a path: FILE.npz, or a folder of images."
    raise UnknownNameError("data set", word, ["digits", *added], hint)


def _added_loaders() -> Mapping[str, Loader]:
    return {
        name: loader
        for entry in entry_points(group=_GROUP)
        for name, loader in entry.load().items()
    }
