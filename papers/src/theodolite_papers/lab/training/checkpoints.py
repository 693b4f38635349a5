"""Checkpoints: one file, replaced as a whole, from which a run goes on to the same result."""

import hashlib
import os
import pickle
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from theodolite.checks import require_count
from theodolite.errors import RecordError
from theodolite_papers.lab.training.recipe import Recipe

__all__ = ["Checkpoint", "fingerprint", "load_checkpoint", "save_checkpoint"]

_FORMAT = "theodolite-checkpoint-1"


@dataclass(frozen=True)
class Checkpoint:
    """Where the state of a run is kept, and after how many steps it is written.

    Args:
        path: of the file. A run that finds it goes on from there.
        every: steps between two writes; an epoch if not given.
    """

    path: str | Path
    every: int | None = None

    def __post_init__(self) -> None:
        if self.every is not None:
            require_count(1, every=self.every)


def fingerprint(recipe: Recipe, inputs: Tensor, targets: Tensor) -> dict[str, str]:
    """What must be equal for a run to be the same run: recipe, shapes, labels."""
    plain = {name: repr(value) for name, value in asdict(recipe).items()}
    plain["loss"] = repr(recipe.loss)
    labels = hashlib.sha256(targets.cpu().contiguous().numpy().tobytes()).hexdigest()
    return {**plain, "inputs": f"{tuple(inputs.shape)} {inputs.dtype}", "targets": labels}


def save_checkpoint(path: Path, identity: dict[str, str], state: dict[str, Any]) -> None:
    """Write beside the file, then take its place: a killed process leaves the old or the new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            torch.save({"format": _FORMAT, "identity": identity, **state}, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def load_checkpoint(path: Path, identity: dict[str, str]) -> dict[str, Any] | None:
    """The state of the run with this identity, or None where there is no file.

    Raises:
        RecordError: If the file is damaged, foreign, or belongs to another run.
    """
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
    changed = sorted(key for key in identity if state["identity"].get(key) != identity[key])
    if changed:
        listed = ", ".join(
            f"{key}: {state['identity'].get(key)} != {identity[key]}" for key in changed
        )
        raise RecordError(
            f"checkpoint {path}: expected the same run, but it was written with other settings "
            f"({listed}); pass the same recipe and data, or another path"
        )
    return state
