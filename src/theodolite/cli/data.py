"""Load the data that DATA names on the command line, and check that the model accepts them."""

import inspect
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from theodolite.advice.reasons import count_of
from theodolite.checks import (
    require_finite_data,
    require_labels,
    require_nonempty,
    require_same_length,
)
from theodolite.cli.terminal import CommandError
from theodolite.data import SCALINGS, Dataset, load_data, load_npz, npz_tensor, opened_npz, scaled
from theodolite.engine.batches import MASK_KEY, Batch
from theodolite.engine.readouts import read_outputs, resolve_readout
from theodolite.errors import DataError, TheodoliteError

_TRIAL = 3  # examples; two examples could be confused with two classes or two positions
_TARGETS = "y"
_TRUTH_FORMS = "FILE.npy, FILE.npz, FILE.npz:KEY, or a KEY of DATA where that is an .npz file"


@dataclass(frozen=True)
class DataSource:
    """The examples to measure.

    Args:
        word: a name or path, see :func:`theodolite.data.load_data`.
        split: "train" or "test".
        scale: one of ``theodolite.data.SCALINGS``, "none", or "auto": pixels to [0, 1].
        flat: whether every example becomes one vector.
        as_is: whether to keep the axes of an .npz file; else (n, h, w) and (n, h, w, c) are images.
        seed: seed of generated data and random splits.
    """

    word: str
    split: str = "train"
    scale: str = "auto"
    flat: bool = False
    as_is: bool = False
    seed: int = 0


@dataclass(frozen=True)
class Examples:
    """Inputs and targets of one split, and facts about them."""

    name: str
    split: str
    batch: Batch
    classes: tuple[str, ...] = ()


def load_examples(source: DataSource, model: nn.Module) -> Examples:
    """Read, scale and flatten one split; named inputs are not changed.

    Raises:
        DataError: If the data cannot be read.
        CommandError: If an option is not one of its choices, or does not fit the data.
    """
    if source.split not in ("train", "test"):
        raise CommandError(f"--split: expected train or test, got {source.split!r}")
    named = load_named_inputs(model, source.word, source.split)
    if named is not None:
        _require_as_they_are(source)
        return Examples(Path(source.word).stem, source.split, named)
    data = _scaled(_loaded(source), source.scale)
    data = data.flat() if source.flat else data
    inputs, targets = (data.x_train, data.y_train)
    if source.split == "test":
        inputs, targets = (data.x_test, data.y_test)
    return Examples(data.name, source.split, Batch((inputs,), targets=targets), data.classes)


def _loaded(source: DataSource) -> Dataset:
    """Load only the requested split of a file; the other split may be missing."""
    is_file = source.word.endswith(".npz")
    if source.as_is and not is_file:
        raise CommandError(f"--as-is: expected DATA as an .npz file, got {source.word!r}")
    if is_file and Path(source.word).is_file():
        layout: Literal["image", "as_is"] = "as_is" if source.as_is else "image"
        split: Literal["train", "test"] = "test" if source.split == "test" else "train"
        return load_npz(source.word, layout=layout, split=split)
    return load_data(source.word, torch.Generator().manual_seed(source.seed))


def _require_as_they_are(source: DataSource) -> None:
    option = "--flatten" if source.flat else f"--scale {source.scale}"
    if source.flat or source.scale not in ("auto", "none"):
        raise CommandError(
            f"{option}: expected data with a single input, x_train; {source.word} has inputs by "
            "name, which are passed unchanged; scale or reshape them before np.savez"
        )


def _scaled(data: Dataset, scale: str) -> Dataset:
    choices = ("auto", "none", *SCALINGS)
    if scale not in choices:
        raise CommandError(f"--scale: expected one of {', '.join(choices)}, got {scale!r}")
    if scale == "auto" and data.peak is not None:
        return scaled(data, "unit_interval")
    if scale in ("auto", "none"):
        return data
    return scaled(data, scale)  # type: ignore[arg-type]  # checked above


def resolve_device(name: str | None) -> torch.device:
    """The device of this name; without a name, the GPU if there is one.

    Raises:
        CommandError: If this machine has no such device.
    """
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise CommandError(
            f"--device: expected cpu, or cuda if this machine has a GPU, got {name!r}, which "
            "cannot be used here"
        ) from error
    return device


def in_precision_of(model: nn.Module, examples: Examples) -> Examples:
    """Real inputs in the dtype of the model's weights; NumPy files are mostly float64."""
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), None)
    return examples if dtype is None else replace(examples, batch=examples.batch.cast(dtype))


def require_fit(model: nn.Module, examples: Examples, readout: str | None) -> None:
    """Run a few examples through the model, to report a mismatch early and in one sentence.

    Raises:
        CommandError: If the model refuses the examples, or labels exceed its outputs.
    """
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    batch = examples.batch.take(slice(0, _TRIAL)).to(device)
    try:
        with torch.no_grad():
            output: Any = batch.run(model)
        outputs = read_outputs(output, batch, resolve_readout(readout))
    except TheodoliteError:
        raise
    except Exception as error:  # the user's model may raise any error
        text = " ".join(str(error).split())[:200]
        raise CommandError(
            f"the model does not accept the data: {_described(batch)}; it raises "
            f"{type(error).__name__}: {text}; {_hint(batch)}"
        ) from error
    _require_labels(examples, outputs.shape[1])


def _described(batch: Batch) -> str:
    if batch.args:
        (values,) = batch.args
        return f"examples have shape {tuple(values.shape[1:])} and type {values.dtype}"
    parts = (f"{k} {tuple(v.shape[1:])} of {v.dtype}" for k, v in batch.kwargs.items())
    return f"the inputs of an example are {', '.join(parts)}"


def _hint(batch: Batch) -> str:
    if batch.kwargs:
        return "arrays are passed unchanged: save them in the shape and type that MODEL accepts"
    axes = batch.args[0].ndim
    if axes == 4 and batch.args[0].shape[1] == 1:
        return "pass --flatten for vectors, or --as-is for sequences in an .npz file"
    return "pass --flatten for vectors" if axes > 2 else "check MODEL's input size"


def _require_labels(examples: Examples, outputs: int) -> None:
    targets = examples.batch.targets
    if targets.is_floating_point() or targets.ndim > 1:
        return
    highest = int(targets.max())
    if highest >= max(outputs, 2):
        raise CommandError(
            f"labels out of range: the model has {count_of(outputs, 'output')}, so labels are 0 to "
            f"{max(outputs, 2) - 1}, but {examples.name} has label {highest}; build the model with "
            f"{highest + 1} outputs (--arg num_classes={highest + 1}) or relabel"
        )


@dataclass(frozen=True)
class _Arguments:
    """Arguments of ``forward``: all names, names without a default, and whether it takes others."""

    known: tuple[str, ...]
    required: tuple[str, ...]
    others: bool

    @classmethod
    def of(cls, model: nn.Module) -> "_Arguments":
        try:
            parameters = list(inspect.signature(model.forward).parameters.values())
        except (TypeError, ValueError):  # a compiled function
            return cls((), (), True)
        kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        named = [p for p in parameters if p.kind in kinds]
        required = tuple(p.name for p in named if p.default is p.empty)
        others = any(p.kind is p.VAR_KEYWORD for p in parameters)
        return cls(tuple(p.name for p in named), required, others)

    def given(self, keys: Collection[str], split: str) -> list[str]:
        """Arguments that have arrays in a split; none if there are only x and y."""
        ends = f"_{split}"
        found = [name for name in self.known if name != _TARGETS and name + ends in keys]
        if not found and self.others and f"x{ends}" not in keys:
            names = (key.removesuffix(ends) for key in keys if key.endswith(ends))
            found = [name for name in names if name not in ("", _TARGETS)]
        return [] if found == ["x"] else found

    def form(self, split: str) -> str:
        """The required arrays of a file."""
        arrays = [f"{name}_{split}" for name in (*self.required, _TARGETS)]
        return f"an .npz file with {', '.join(arrays[:-1])} and {arrays[-1]}"


def load_named_inputs(model: nn.Module, word: str, split: str) -> Batch | None:
    """Inputs by name, unchanged; None if the model has one input.

    Arrays are ``NAME_train`` and ``NAME_test`` for the arguments NAME of ``forward``, beside the
    targets ``y_train`` and ``y_test``. The file must have the arrays of the measured split.

    Raises:
        CommandError: If the model takes several inputs and the file has other arrays.
        DataError: If the file is damaged, or its arrays do not match.
    """
    arguments = _Arguments.of(model)
    file = Path(word)
    if file.suffix != ".npz" or not file.is_file():
        _require_single(arguments, f"got {word}", split)
        return None
    with opened_npz(file) as archive:
        found = f"found {', '.join(archive.files) or 'none'}"
        names = arguments.given(archive.files, split)
        if not names:
            _require_single(arguments, f"{file}: {found}", split)
            _require_split(arguments, archive.files, split, f"{file}: {found}")
            return None
        _require_all(arguments, names, archive.files, split, f"{file}: {found}")
        inputs = {name: _input(file, f"{name}_{split}", archive) for name in names}
        targets = npz_tensor(file, f"{_TARGETS}_{split}", archive[f"{_TARGETS}_{split}"])
    _require_together(file, split, inputs, targets)
    return Batch((), inputs, targets, inputs.get(MASK_KEY))


def _input(file: Path, key: str, archive: Any) -> Tensor:
    array = archive[key]
    if array.dtype.kind == "b" and array.ndim:
        return torch.from_numpy(array)
    return npz_tensor(file, key, array)


def _require_single(arguments: _Arguments, found: str, split: str) -> None:
    """A model that can be called with one input."""
    if len(arguments.required) < 2:
        return
    if _TARGETS in arguments.required:
        raise CommandError(
            f"MODEL: forward takes {', '.join(arguments.required)}, but y_{split} is reserved for "
            "targets; call theodolite.survey from Python, or rename the argument"
        )
    raise CommandError(
        f"MODEL: forward takes several inputs, {', '.join(arguments.required)}; expected DATA as "
        f"{arguments.form(split)}; {found}"
    )


def _require_split(arguments: _Arguments, keys: Collection[str], split: str, found: str) -> None:
    """Refuse a file that has named inputs of the other split only."""
    other = "train" if split == "test" else "test"
    names = arguments.given(keys, other)
    if names and f"x_{split}" not in keys:
        raise CommandError(
            f"--split {split}: expected {', '.join(f'{name}_{split}' for name in names)}; {found}"
        )


def _require_all(
    arguments: _Arguments, names: Collection[str], keys: Collection[str], split: str, found: str
) -> None:
    wanted = [name for name in (*arguments.required, _TARGETS) if name not in names]
    missing = [f"{name}_{split}" for name in wanted if f"{name}_{split}" not in keys]
    if missing:
        raise CommandError(
            f"DATA: expected {arguments.form(split)}, one array for each argument of forward, but "
            f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing; {found}"
        )


def _require_together(file: Path, split: str, inputs: dict[str, Tensor], targets: Tensor) -> None:
    arrays = {f"{name}_{split}": values for name, values in inputs.items()}
    arrays[f"{_TARGETS}_{split}"] = targets
    try:
        require_nonempty(**arrays)
        require_same_length(**arrays)
        require_finite_data(**arrays)
        if not targets.is_floating_point() and targets.ndim == 1:
            require_labels(targets, name=f"{_TARGETS}_{split}")
    except TheodoliteError as error:
        raise DataError(f"{file}: {error}") from error


def load_truth(word: str, data: DataSource, examples: Examples) -> Tensor:
    """True labels of all examples, in their order.

    Args:
        word: ``FILE.npy``, ``FILE.npz`` (its y_train or y_test), ``FILE.npz:KEY``, or the key of
            an array in the data's own file.
        data: the data set of DATA.
        examples: examples of the measured split.

    Raises:
        CommandError: If there is no such array, or it does not fit the examples.
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
    """The file and the name of the array in it; None for a file with one array."""
    if word.endswith(".npy"):
        return Path(word), None
    if word.endswith(".npz"):
        return Path(word), f"y_{data.split}"
    name, separator, key = word.rpartition(".npz:")
    if separator and key:
        return Path(f"{name}.npz"), key
    if not data.word.endswith(".npz") or separator or not word:
        raise CommandError(f"--truth: expected {_TRUTH_FORMS}, got {word!r}")
    return Path(data.word), word


def _array(path: Path, key: str | None) -> np.ndarray:
    if not path.is_file():
        raise CommandError(f"--truth: {path}: there is no such file; expected {_TRUTH_FORMS}")
    try:
        with path.open("rb") as stream:  # NumPy leaves it open when the archive is damaged
            found: Any = np.load(stream, allow_pickle=False)
            if key is None or isinstance(found, np.ndarray):
                return np.asarray(found)
            if key in found:
                return np.asarray(found[key])
            known = ", ".join(found.files) or "none"
    except Exception as error:  # NumPy raises many kinds of errors for damaged files
        raise CommandError(
            f"--truth: {path} cannot be read as plain numbers ({type(error).__name__}); write it "
            "again with np.save or np.savez"
        ) from error
    raise CommandError(f"--truth: {path} has no array {key!r}; found {known}")
