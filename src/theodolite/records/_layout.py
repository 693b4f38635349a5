"""The layout of records (docs/records.md), checked when they are read."""

import os
from collections.abc import Iterator, Mapping
from types import NoneType
from typing import Any

import numpy as np

from theodolite.errors import RecordError
from theodolite.records._files import Record

__all__ = ["require_history_head", "require_survey", "require_transfer"]

_LARGEST = 1.7e308  # beyond it Python's integers are no floating-point numbers


class _Each:
    """A list, or the values of a mapping, all of one form."""

    def __init__(self, container: type, form: Any) -> None:
        self.container, self.form = container, form


# A form is a tuple of types, a mapping of keys to forms, or _Each. A key with a question mark may
# be absent; keys that are not named may hold anything.
_TEXT, _TEXT_OR_NULL, _COUNT = (str,), (str, NoneType), (int,)
_NUMBER, _NUMBER_OR_NULL = (int, float), (int, float, NoneType)
_DATA = {
    "n": _COUNT,
    "probe": _COUNT,
    "task": _TEXT,
    "label_source": _TEXT,
    "split?": _TEXT,
    "classes?": (list, NoneType),
}
_LAYERS = _Each(list, {"name": _TEXT})
_CONFIG = {
    "families": _Each(list, _TEXT),
    "sketch_vectors?": (int, NoneType),
    "cadence?": (dict, NoneType),
}
_ROW = {
    "layer": _TEXT_OR_NULL,
    "family": _TEXT,
    "measure": _TEXT,
    "value": _NUMBER,
    "error": _NUMBER_OR_NULL,
    "null_mean": _NUMBER_OR_NULL,
    "null_sd": _NUMBER_OR_NULL,
    "method": _TEXT,
    "n": _COUNT,
    "read_at?": _TEXT_OR_NULL,
    "reason": _TEXT_OR_NULL,
}
_CURVE = {
    "layer": _TEXT_OR_NULL,
    "family": _TEXT,
    "name": _TEXT,
    "arrays": _Each(dict, _TEXT),
    "labels": _Each(dict, _TEXT),
}
_WARNING = {
    "layer": _TEXT_OR_NULL,
    "family?": _TEXT_OR_NULL,
    "measure": _TEXT,
    "text": _TEXT,
    "count?": _COUNT,
}
_ANYTHING = dict.fromkeys(("versions?", "routes?", "seconds?"), (dict,))
_HEAD = {"name": _TEXT, "config": _CONFIG, "data": _DATA, "layers": _LAYERS} | _ANYTHING
_SURVEY = _HEAD | {
    "step": (int, NoneType),
    "rows": _Each(list, _ROW),
    "curves": _Each(list, _CURVE),
    "skipped": _Each(dict, _TEXT),
    "warnings": _Each(list, _WARNING),
}
_SCORE = {"n": _COUNT, "error": _NUMBER, "accuracy": _NUMBER}
_TRANSFER = {
    "name": _TEXT,
    "config": (dict,),
    "data": {
        "probe": _COUNT,
        "task": _TEXT,
        "num_classes": (int, NoneType),
        "chance": _NUMBER_OR_NULL,
    },
    "models": _Each(
        list,
        {
            "name": _TEXT,
            "parameters": _COUNT,
            "error": _NUMBER,
            "forecast": {
                "measure": _TEXT,
                "value": _NUMBER,
                "low": _NUMBER,
                "high": _NUMBER,
                "from": _TEXT,
            },
            "features": _SCORE,
            "features_beside": _SCORE,
            "tangent": (dict, NoneType),
            "layers": _Each(list, {"name": _TEXT, "error": _NUMBER, "accuracy": _NUMBER}),
            "best_layer": _TEXT_OR_NULL,
            "seconds": _Each(dict, _NUMBER),
            "notes": _Each(list, _TEXT),
        },
    ),
    "problems": _Each(dict, _TEXT),
    "notes": _Each(list, _TEXT),
}
_CURVE_PARTS = ("labels", "error", "error_interval", "accuracy", "accuracy_interval")


def require_transfer(record: Record, folder: str | os.PathLike[str]) -> Record:
    """The record has what readers of a ranking of models rely on, and a curve for each of them.

    Raises:
        RecordError: If something is missing or of another type; the message says where.
    """
    _require(record.contents, _TRANSFER, folder)
    if not record.contents["models"]:
        raise RecordError(
            f"{folder}: damaged: models: expected at least one, got none; measure again"
        )
    for index in range(len(record.contents["models"])):
        for part in _CURVE_PARTS:
            if f"{index}/curve/{part}" not in record.arrays:
                raise RecordError(
                    f"{folder}: damaged: the array '{index}/curve/{part}' is missing; measure again"
                )
    return record


def require_survey(
    record: Record, folder: str | os.PathLike[str], *, of_history: bool = False
) -> Record:
    """The record has what readers of a survey rely on, and the arrays that its curves name.

    Raises:
        RecordError: If something is missing or of another type; the message says where.
    """
    form = _SURVEY | {"step": _COUNT} if of_history else _SURVEY
    _require(record.contents, form, folder)
    named = _curve_arrays(record.contents)
    missing = next((name for name in named if name not in record.arrays), None)
    if missing is not None:
        raise RecordError(
            f"{folder}: damaged: a curve names the array {missing!r}, which is not there"
        )
    return record


def require_history_head(record: Record, folder: str | os.PathLike[str]) -> Record:
    """The same for the record of a history itself."""
    _require(record.contents, _HEAD, folder)
    return record


def _curve_arrays(contents: Mapping[str, Any]) -> Iterator[str]:
    return (name for curve in contents["curves"] for name in curve["arrays"].values())


def _require(contents: Mapping[str, Any], form: Any, folder: str | os.PathLike[str]) -> None:
    problem = next(_problems(contents, form, ""), None)
    if problem is not None:
        raise RecordError(f"{folder}: damaged: {problem}; measure again, or restore the file")


def _problems(value: Any, form: Any, path: str) -> Iterator[str]:
    """What does not fit, depth first."""
    if isinstance(form, tuple):
        if not isinstance(value, form) or (isinstance(value, bool) and bool not in form):
            yield f"{path}: expected {_words(form)}, got {_shown(value)}"
        elif isinstance(value, int) and abs(value) > _LARGEST:
            yield f"{path}: expected {_words(form)}, got one of {value.bit_length()} bits"
        return
    container: Any = form.container if isinstance(form, _Each) else dict
    if not isinstance(value, container):
        yield f"{path}: expected {_words((container,))}, got {_shown(value)}"
    elif isinstance(form, _Each):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            yield from _problems(item, form.form, f"{path}/{key}")
    else:
        for name, inner in form.items():
            key = name.rstrip("?")
            here = f"{path}/{key}".lstrip("/")
            if key in value:
                yield from _problems(value[key], inner, here)
            elif key == name:
                yield f"{here} is missing"


_NAMES = {
    str: "text", int: "a whole number", float: "a number", dict: "a mapping", list: "a list",
    NoneType: "null",
}  # fmt: skip


def _words(kinds: tuple[type, ...]) -> str:
    names = [_NAMES[kind] for kind in kinds if not (kind is int and float in kinds)]
    return " or ".join(names)


def _shown(value: Any) -> str:
    text = repr(value) if not isinstance(value, (dict, list, np.ndarray)) else type(value).__name__
    return text if len(text) <= 40 else f"{text[:40]}..."
