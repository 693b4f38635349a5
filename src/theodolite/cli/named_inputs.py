"""DATA of a model with several inputs: an .npz file, an array for each argument of ``forward``."""

import inspect
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from theodolite.checks import (
    require_finite,
    require_labels,
    require_nonempty,
    require_same_length,
)
from theodolite.cli.failures import CommandError
from theodolite.data import npz_tensor, opened_npz
from theodolite.errors import DataError, TheodoliteError

__all__ = ["NamedInputs", "load_named_inputs"]

_TARGETS = "y"


@dataclass(frozen=True)
class NamedInputs:
    """Inputs of one split by the name of the argument that takes them, and targets."""

    inputs: dict[str, Tensor]
    targets: Tensor


@dataclass(frozen=True)
class _Arguments:
    """What ``forward`` takes: all names, those without a default, and whether others may come."""

    known: tuple[str, ...]
    required: tuple[str, ...]
    others: bool

    @classmethod
    def of(cls, model: nn.Module) -> "_Arguments":
        try:
            parameters = list(inspect.signature(model.forward).parameters.values())
        except (TypeError, ValueError):  # compiled from elsewhere
            return cls((), (), True)
        kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        named = [p for p in parameters if p.kind in kinds]
        required = tuple(p.name for p in named if p.default is p.empty)
        others = any(p.kind is p.VAR_KEYWORD for p in parameters)
        return cls(tuple(p.name for p in named), required, others)

    def given(self, keys: Collection[str], split: str) -> list[str]:
        """Arguments that the arrays of a split are for; none where they are x and y alone."""
        ends = f"_{split}"
        found = [name for name in self.known if name != _TARGETS and name + ends in keys]
        if not found and self.others and f"x{ends}" not in keys:
            names = (key.removesuffix(ends) for key in keys if key.endswith(ends))
            found = [name for name in names if name not in ("", _TARGETS)]
        return [] if found == ["x"] else found

    def form(self, split: str) -> str:
        """The arrays that a file should have."""
        arrays = [f"{name}_{split}" for name in (*self.required, _TARGETS)]
        return f"an .npz file with {', '.join(arrays[:-1])} and {arrays[-1]}"


def load_named_inputs(model: nn.Module, word: str, split: str) -> NamedInputs | None:
    """Inputs by name, as they are in the file; None where one input will do.

    Arrays are ``NAME_train`` and ``NAME_test`` for the arguments NAME of ``forward``, beside the
    targets ``y_train`` and ``y_test``. Those of the split that is measured must be there.

    Raises:
        CommandError: If the model takes several inputs and the data are not given like this.
        DataError: If the file is damaged, or its arrays do not go together.
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
    return NamedInputs(inputs, targets)


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
            f"MODEL: forward takes {', '.join(arguments.required)}, and y_{split} stands for the "
            "targets; call theodolite.survey from Python, or rename the argument"
        )
    raise CommandError(
        f"MODEL: forward takes several inputs, {', '.join(arguments.required)}; expected DATA as "
        f"{arguments.form(split)}; {found}"
    )


def _require_split(arguments: _Arguments, keys: Collection[str], split: str, found: str) -> None:
    """The file is not one with named inputs of the other split only."""
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
        require_finite(**arrays)
        if not targets.is_floating_point() and targets.ndim == 1:
            require_labels(targets, name=f"{_TARGETS}_{split}")
    except TheodoliteError as error:
        raise DataError(f"{file}: {error}") from error
