"""Weights from a file into a model: tensors only, every name accounted for."""

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from theodolite.cli.failures import CommandError

__all__ = ["load_weights_"]

# Where training scripts put the weights beside other things.
_SECTIONS = ("state_dict", "model_state_dict", "model")
_SHOWN = 3


def load_weights_(model: nn.Module, path: Path) -> None:
    """Copy a checkpoint's weights into a model, in place.

    Reads ``torch.save`` files with ``weights_only=True`` (nothing in them is executed) and
    ``.safetensors``. Prefixes that wrappers add to all names are taken off.

    Raises:
        CommandError: If the file is missing or holds anything but tensors, or if names or shapes
            do not fit the model.
    """
    own = model.state_dict()
    weights = _without_prefix(_weights(_read(path), path), own)
    problems = _problems(own, weights)
    if problems:
        raise CommandError(
            f"checkpoint {path}: does not fit the model: {'; '.join(problems)}; "
            "check MODEL and its --arg options"
        )
    model.load_state_dict(weights)


def _read(path: Path) -> Any:
    if not path.is_file():
        raise CommandError(f"checkpoint {path}: there is no such file")
    if path.suffix == ".safetensors":
        return _read_safetensors(path)
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError) as error:
        detail = " ".join(str(error).split())[:100]
        raise CommandError(
            f"checkpoint {path}: expected a state_dict written by torch.save, holding tensors "
            f"only, but it cannot be read safely ({detail}...); save model.state_dict()"
        ) from error


def _read_safetensors(path: Path) -> Any:
    try:
        from safetensors.torch import load_file
    except ImportError as error:
        raise CommandError(
            f"checkpoint {path}: safetensors is not installed; run pip install safetensors"
        ) from error
    try:
        return load_file(path)
    except Exception as error:  # the Rust reader has error classes of its own
        raise CommandError(f"checkpoint {path}: cannot be read as safetensors ({error})") from error


def _weights(content: Any, path: Path) -> dict[str, Tensor]:
    for key in _SECTIONS:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
            break
    if not isinstance(content, Mapping) or not content:
        raise CommandError(
            f"checkpoint {path}: expected a mapping of names to tensors, got "
            f"{type(content).__name__}; save model.state_dict()"
        )
    strange = [str(key) for key, value in content.items() if not isinstance(value, Tensor)]
    if strange:
        raise CommandError(
            f"checkpoint {path}: expected tensors only, but {_listed(strange)} are something "
            "else; save model.state_dict()"
        )
    return {str(key): value for key, value in content.items()}


def _without_prefix(weights: dict[str, Tensor], own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Names as the model has them, where a wrapper put one word before each."""
    names = set(own)
    for depth in (1, 2):
        if set(weights) & names:
            break
        heads = {".".join(name.split(".")[:depth]) + "." for name in weights}
        if len(heads) == 1:
            shorter = {name.removeprefix(next(iter(heads))): v for name, v in weights.items()}
            if set(shorter) & names:
                return shorter
    return weights


def _problems(own: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> list[str]:
    missing = [name for name in own if name not in weights]
    unknown = [name for name in weights if name not in own]
    shapes = [
        f"{name} is {tuple(weights[name].shape)} instead of {tuple(own[name].shape)}"
        for name in own
        if name in weights and weights[name].shape != own[name].shape
    ]
    problems = []
    if missing:
        problems.append(f"it lacks {_listed(missing)}")
    if unknown:
        problems.append(f"the model has no {_listed(unknown)}")
    if shapes:
        problems.append(_listed(shapes))
    return problems


def _listed(names: list[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
