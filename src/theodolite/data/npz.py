"""Data sets from ``.npz`` files with the arrays x_train, y_train, x_test, y_test."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from theodolite.checks import require_choice, require_finite
from theodolite.data.dataset import Dataset
from theodolite.errors import DataError, TheodoliteError

__all__ = ["NPZ_KEYS", "load_npz", "npz_tensor", "opened_npz", "save_npz"]

NPZ_KEYS = ("x_train", "y_train", "x_test", "y_test")

_WANTED = "an .npz file with the arrays " + ", ".join(NPZ_KEYS)
_CHANNELS = (1, 3, 4)


def load_npz(
    path: str | Path,
    name: str | None = None,
    classes: tuple[str, ...] = (),
    layout: Literal["image", "as_is"] = "image",
) -> Dataset:
    """Read a data set; nothing in the file is ever executed.

    Integer labels are classes, floating-point ones regression targets. Byte inputs are pixels
    0..255 and may be scaled as such.

    Args:
        path: an ``.npz`` file with the arrays ``x_train, y_train, x_test, y_test``.
        name: of the data set; the file's name if left out.
        classes: names of the classes.
        layout: ``"image"`` makes ``(n, h, w)`` and ``(n, h, w, c)`` channels first;
            ``"as_is"`` leaves the axes alone.

    Raises:
        DataError: If the file is missing, damaged, or holds something else. The message says
            what was expected.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "toy.npz"
        >>> x, y = np.zeros((2, 5, 5, 3), np.uint8), np.array([0, 1])
        >>> np.savez(path, x_train=x, y_train=y, x_test=x, y_test=y)
        >>> load_npz(path).x_train.shape
        torch.Size([2, 3, 5, 5])
    """
    require_choice(("image", "as_is"), layout=layout)
    file = Path(path)
    arrays = _arrays(file)
    x_train, y_train, x_test, y_test = (npz_tensor(file, key, arrays[key]) for key in NPZ_KEYS)
    peak = 255 if x_train.dtype == x_test.dtype == torch.uint8 else None
    try:
        if layout == "image":
            x_train, x_test = channels_first(x_train), channels_first(x_test)
        require_finite(x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)
        targets = _targets(y_train), _targets(y_test)
        label = file.stem if name is None else name
        return Dataset(label, x_train, targets[0], x_test, targets[1], classes, peak=peak)
    except TheodoliteError as error:
        raise DataError(f"{file}: {error}") from error


def _arrays(file: Path) -> dict[str, np.ndarray]:
    with opened_npz(file) as archive:
        return _members(file, archive)


@contextmanager
def opened_npz(file: Path) -> Iterator[Any]:
    """The arrays of a file by name, read on demand; whatever is wrong with it is a DataError."""
    if not file.is_file():
        raise DataError(f"{file}: expected {_WANTED}, found no such file")
    try:
        with file.open("rb") as stream:  # NumPy leaves it open when the archive is damaged
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


def _members(file: Path, archive: Any) -> dict[str, np.ndarray]:
    missing = [key for key in NPZ_KEYS if key not in archive]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        found = ", ".join(archive.files) or "none"
        raise DataError(
            f"{file}: expected {_WANTED}, but {', '.join(missing)} {verb} missing; found {found}"
        )
    return {key: archive[key] for key in NPZ_KEYS}


def npz_tensor(file: Path, key: str, array: Any) -> Tensor:
    """An array of numbers, one entry per example, as torch computes with it."""
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "iuf":
        kind = getattr(array, "dtype", type(array).__name__)
        raise DataError(f"{file}: {key}: expected numbers (integers or floats), got {kind}")
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


def channels_first(images: Tensor) -> Tensor:
    """``(n, h, w)`` and ``(n, h, w, c)`` as ``(n, c, h, w)``; anything else as it is."""
    if images.ndim == 3:
        return images.unsqueeze(1)
    if images.ndim != 4:
        return images
    _, first, second, last = images.shape
    already = first in _CHANNELS and second == last
    if last in _CHANNELS and not already:
        return images.permute(0, 3, 1, 2).contiguous()
    return images


def save_npz(dataset: Dataset, path: str | Path) -> Path:
    """Write the tensors of a data set so that :func:`load_npz` reads them back.

    Example:
        >>> import tempfile
        >>> x, y = torch.zeros(2, 3), torch.tensor([0, 1])
        >>> file = save_npz(Dataset("toy", x, y, x, y), Path(tempfile.mkdtemp()) / "toy.npz")
        >>> load_npz(file).num_classes
        2
    """
    file = Path(path)
    arrays = {key: getattr(dataset, key).cpu().numpy() for key in NPZ_KEYS}
    part = file.with_name(f".{file.name}.part.npz")
    np.savez_compressed(part, **arrays)
    return part.replace(file)
