"""Checkpoints: one file, replaced as a whole, from which a run resumes with the same result."""

import hashlib
import os
import pickle
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from theodolite.checks import require_count
from theodolite.errors import RecordError
from theodolite_papers.lab.training.batches import PlacedData
from theodolite_papers.lab.training.recipe import Recipe

__all__ = ["Checkpoint", "CheckpointFile"]

_FORMAT = "theodolite-checkpoint-1"


@dataclass(frozen=True)
class Checkpoint:
    """The file for the state of a run, and the number of steps between writes.

    Args:
        path: of the file. A run that finds it goes on from there.
        every: steps between two writes; an epoch if not given.
    """

    path: str | Path
    every: int | None = None

    def __post_init__(self) -> None:
        if self.every is not None:
            require_count(1, every=self.every)


class CheckpointFile:
    """The file of one run, with the settings that must be equal to resume it."""

    def __init__(
        self, given: Checkpoint | str | Path, model: nn.Module, recipe: Recipe, data: PlacedData
    ) -> None:
        self.model = model
        checkpoint = given if isinstance(given, Checkpoint) else Checkpoint(given)
        self._path = Path(checkpoint.path)
        self.every = checkpoint.every or recipe.steps_per_epoch(data.examples)
        plain = {name: repr(value) for name, value in asdict(recipe).items()}
        labels = hashlib.sha256(data.targets.cpu().contiguous().numpy().tobytes()).hexdigest()
        self._identity = {
            **plain,
            "loss": repr(recipe.loss),
            "inputs": f"{tuple(data.inputs.shape)} {data.inputs.dtype}",
            "targets": labels,
        }

    def save(self, state: dict[str, Any]) -> None:
        """Write a temporary file, then replace the old one.

        A killed process leaves either file whole.
        """
        folder = self._path.parent
        folder.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=folder, prefix=self._path.name, suffix=".part")
        try:
            with os.fdopen(handle, "wb") as file:
                torch.save({"format": _FORMAT, "identity": self._identity, **state}, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, self._path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise

    def load(self) -> dict[str, Any] | None:
        """The state that was saved, or None where there is no file.

        Raises:
            RecordError: If the file is damaged, foreign, or belongs to another run.
        """
        path, identity = self._path, self._identity
        if not path.exists():
            return None
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
        except (RuntimeError, pickle.UnpicklingError, EOFError, ValueError, OSError) as error:
            raise RecordError(
                f"checkpoint {path}: expected a file written by train, but it cannot be read "
                f"({str(error).partition(chr(10))[0][:80]}); delete it to start afresh"
            ) from error
        if not isinstance(state, dict) or state.get("format") != _FORMAT:
            raise RecordError(f"checkpoint {path}: expected {_FORMAT}; pass another path")
        kept = state["identity"]
        changed = sorted(key for key in identity if kept.get(key) != identity[key])
        if changed:
            listed = ", ".join(f"{key}: {kept.get(key)} != {identity[key]}" for key in changed)
            raise RecordError(
                f"checkpoint {path}: expected the same run, but it was written with other settings "
                f"({listed}); pass the same recipe and data, or another path"
            )
        return state
