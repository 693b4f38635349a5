"""``--truth``: true labels of the examples, where the data has others, from a file."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from theodolite.cli.failures import CommandError
from theodolite.cli.probes import DataSource, Examples

__all__ = ["load_truth"]

_FORMS = "FILE.npy, FILE.npz, FILE.npz:KEY, or a KEY of DATA where that is an .npz file"


def load_truth(word: str, data: DataSource, examples: Examples) -> Tensor:
    """True labels of all examples, in their order.

    Args:
        word: ``FILE.npy``, ``FILE.npz`` (its y_train or y_test), ``FILE.npz:KEY``, or the key of
            an array in the data's own file.
        data: what DATA stands for.
        examples: of the split that is measured.

    Raises:
        CommandError: If there is no such array, or it does not go with the examples.
    """
    path, key = _place(word, data)
    labels = _array(path, key)
    if labels.dtype.kind not in "iufb" or labels.ndim == 0:
        raise CommandError(
            f"--truth: expected a label, or a row of numbers, for every example, got an array of "
            f"{labels.dtype} and shape {labels.shape} in {path}"
        )
    if len(labels) != len(examples.batch):
        raise CommandError(
            f"--truth: expected {len(examples.batch)} labels, as many as {examples.name} has "
            f"{examples.split} examples, got {len(labels)}; give those of --split {examples.split} "
            "in the order of the data"
        )
    whole = labels.dtype.kind in "iub"
    return torch.from_numpy(labels.astype(np.int64 if whole else np.float64))


def _place(word: str, data: DataSource) -> tuple[Path, str | None]:
    """The file, and the array in it; None for a file of one array."""
    if word.endswith(".npy"):
        return Path(word), None
    if word.endswith(".npz"):
        return Path(word), f"y_{data.split}"
    name, separator, key = word.rpartition(".npz:")
    if separator and key:
        return Path(f"{name}.npz"), key
    if not data.word.endswith(".npz") or separator or not word:
        raise CommandError(f"--truth: expected {_FORMS}, got {word!r}")
    return Path(data.word), word


def _array(path: Path, key: str | None) -> np.ndarray:
    if not path.is_file():
        raise CommandError(f"--truth: {path}: there is no such file; expected {_FORMS}")
    try:
        with path.open("rb") as stream:  # NumPy leaves it open when the archive is damaged
            found: Any = np.load(stream, allow_pickle=False)
            if key is None or isinstance(found, np.ndarray):
                return np.asarray(found)
            if key in found:
                return np.asarray(found[key])
            known = ", ".join(found.files) or "none"
    except Exception as error:  # a damaged file fails in a dozen ways inside NumPy
        raise CommandError(
            f"--truth: {path} cannot be read as plain numbers ({type(error).__name__}); write it "
            "again with np.save or np.savez"
        ) from error
    raise CommandError(f"--truth: {path} has no array {key!r}; found {known}")
