"""One word for any data: an embedded set, a generator, a file, a folder, a named image set."""

from pathlib import Path

import torch

from theodolite.errors import DataError, UnknownNameError
from theodolite.workbench.data.ct_position import load_ct_position
from theodolite.workbench.data.dataset import Dataset
from theodolite.workbench.data.digits import digits
from theodolite.workbench.data.gaussian import gaussian
from theodolite.workbench.data.image_folder import load_image_folder
from theodolite.workbench.data.image_sets import IMAGE_SETS, load_image_set
from theodolite.workbench.data.npz import load_npz
from theodolite.workbench.data.peaks import peaks

__all__ = ["load_data"]


def load_data(source: str | Path, generator: torch.Generator | None = None) -> Dataset:
    """The data set that a word on the command line stands for.

    Args:
        source: ``"digits"``, ``"gaussian"``, ``"peaks"`` (or ``"peaks-ABC"`` for one task),
            ``"ct_position"``, a named image set, a path to an ``.npz`` file, or a folder
            with one sub-folder per class.
        generator: source of randomness where data or a split is drawn.

    Raises:
        UnknownNameError: If the word is no name and no path.
        DataError: If the data cannot be read.

    Example:
        >>> load_data("peaks-EDF", torch.Generator().manual_seed(0)).name
        'peaks-EDF'
    """
    word = str(source)
    if word == "digits":
        return digits(generator=generator)
    if word == "gaussian":
        return gaussian(generator=generator)
    if word == "peaks" or word.startswith("peaks-"):
        return peaks(word.partition("-")[2] or "ABC", generator=generator)
    if word == "ct_position":
        return load_ct_position(generator=generator)
    if word in IMAGE_SETS:
        return load_image_set(word)
    path = Path(source)
    if path.is_dir():
        return load_image_folder(path, generator=generator)
    if path.suffix == ".npz":
        return load_npz(path)
    if path.exists():
        raise DataError(f"{path}: expected an .npz file or a folder with one sub-folder per class")
    raise UnknownNameError(
        "data set", word, ["digits", "gaussian", "peaks", "ct_position", *IMAGE_SETS]
    )
