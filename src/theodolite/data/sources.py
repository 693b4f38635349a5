"""One word for any data: an embedded set, a file, a folder, or a set that a package adds."""

from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from pathlib import Path

import torch

from theodolite.data.dataset import Dataset
from theodolite.data.digits import digits
from theodolite.data.image_folder import load_image_folder
from theodolite.data.npz import load_npz
from theodolite.errors import DataError, UnknownNameError

__all__ = ["Loader", "load_data"]

Loader = Callable[[str, torch.Generator | None], Dataset]

_GROUP = "theodolite.data"  # entry points: word or word- prefix -> Loader


def load_data(source: str | Path, generator: torch.Generator | None = None) -> Dataset:
    """The data set that a word on the command line stands for.

    Args:
        source: ``"digits"``, a path to an ``.npz`` file, a folder with one sub-folder per class, or
            a name that an installed package adds (``theodolite-papers``: ``"mnist"`` and others).
            What follows a dash is the package's to read, as in ``"peaks-EDF"``.
        generator: source of randomness where data or a split is drawn.

    Raises:
        UnknownNameError: If the word is no name and no path.
        DataError: If the data cannot be read.

    Example:
        >>> load_data("digits", torch.Generator().manual_seed(0)).name
        'digits'
    """
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
    raise UnknownNameError("data set", word, ["digits", *added])


def _added_loaders() -> Mapping[str, Loader]:
    return {
        name: loader
        for entry in entry_points(group=_GROUP)
        for name, loader in entry.load().items()
    }
