"""The layout of records (docs/records.md), checked when they are read."""

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from types import NoneType
from typing import Any

import numpy as np

from theodolite.errors import RecordError
from theodolite.records._files import Record

_LARGEST = 1.7e308  # larger integers of Python cannot become floating-point numbers


class _Each:
    """A list, or the values of a mapping, all of one form."""

    def __init__(self, container: type, form: Any) -> None:
        self.container, self.form = container, form


class _OrNull:
    """A form, or null instead."""

    def __init__(self, form: Any) -> None:
        self.form = form


class _OrText(_OrNull):
    """A form, or text instead, as in records of earlier versions."""


# A form is a tuple of types, a set of texts to choose from, a mapping of keys to forms, _Each,
# _OrNull or _OrText. A key with a question mark may be absent; keys that are not named may hold
# anything.
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
_LAYERS = _Each(
    list,
    {
        "name": _TEXT,
        "index?": _COUNT,
        "type?": _TEXT,
        "parameters?": _COUNT,
        "read_at?": _TEXT_OR_NULL,
    },
)
_ANSWER = {
    "question": _TEXT,
    "text": _TEXT,
    "certainty": _TEXT,
    "evidence": _TEXT,
    "advice?": _TEXT,
    "finding?": _TEXT,
    "figures?": _Each(list, _TEXT),
}
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
    "note?": _TEXT_OR_NULL,
    "reason?": _TEXT,
    "count?": _COUNT,
}
_NOTE = _OrText({"note": _TEXT, "text": _TEXT, "facts": (dict,)})
_ANYTHING = {"versions?": (dict,), "routes?": _Each(dict, (dict,)), "seconds?": (dict,)}
_HEAD = {"name": _TEXT, "config": _CONFIG, "data": _DATA, "layers": _LAYERS} | _ANYTHING
_SURVEY = _HEAD | {
    "step": (int, NoneType),
    "rows": _Each(list, _ROW),
    "answers?": _Each(list, _ANSWER),
    "curves": _Each(list, _CURVE),
    "skipped": _Each(dict, _TEXT),
    "warnings": _Each(list, _WARNING),
    "cut?": _OrNull(_NOTE),
    "example_losses?": _OrNull({"mean": _TEXT, "measurements": _COUNT}),
}
_SCORE = {"n": _COUNT} | {
    f"{measure}{end}": _NUMBER for measure in ("error", "accuracy") for end in ("", "_low", "_high")
}
_NOTES = _Each(list, _NOTE)
_MODEL = {
    "name": _TEXT,
    "parameters": _COUNT,
    "error": _NUMBER,
    "examples": _COUNT,
    "forecast": {
        "measure": frozenset({"accuracy", "error"}),
        "value": _NUMBER,
        "low": _NUMBER,
        "high": _NUMBER,
        "from": _TEXT,
    },
    "features": _SCORE,
    "features_beside": _SCORE,
    "tangent": _OrNull(_SCORE | {"share?": _NUMBER}),
    "layers": _Each(list, _SCORE | {"name": _TEXT}),
    "best_layer": _TEXT_OR_NULL,
    "seconds": _Each(dict, _NUMBER),
    "notes": _NOTES,
}
_RESUMED = {"frozen": (bool,), "tangent_missing": (bool,), "digest": _TEXT}  # of one model alone
_TRANSFER = _ANYTHING | {
    "name": _TEXT,
    "config": (dict,),
    "data": {
        "probe": _COUNT,
        "task": _TEXT,
        "num_classes": (int, NoneType),
        "chance": _NUMBER_OR_NULL,
        "smallest_class?": (int, NoneType),
    },
    "ties?": _OrNull(_Each(list, _TEXT)),
    "answers?": _OrNull(_Each(list, _ANSWER)),
    "models": _Each(list, _MODEL),
    "problems": _Each(dict, _TEXT),
    "problem_notes?": _Each(dict, _TEXT),
    "notes": _NOTES,
}
_CURVE_PARTS = {
    "labels": "n",
    "error": "n",
    "error_interval": "en",
    "accuracy": "n",
    "accuracy_interval": "en",
}


def require_transfer(record: Record, folder: str | os.PathLike[str]) -> Record:
    """Check that a ranking has all entries that readers need, and a curve for each model.

    Raises:
        RecordError: If an entry is missing or of another type; the message says where.
    """
    _require(record.contents, _TRANSFER, folder)
    contents = record.contents
    names = {model["name"] for model in contents["models"]}
    if not names:
        raise RecordError(
            f"{folder}: damaged: models: expected at least one, got none; measure again"
        )
    if not names.issuperset(contents.get("ties") or ()):
        raise RecordError(f"{folder}: damaged: ties: expected names of models; measure again")
    if (contents["data"]["num_classes"] is None) != (contents["data"]["chance"] is None):
        raise RecordError(f"{folder}: damaged: data: expected classes and chance; measure again")
    if contents["data"]["probe"] < 1:
        raise RecordError(f"{folder}: damaged: data: expected at least one example; measure again")
    for index in range(len(contents["models"])):
        _require_labels_curve(record.arrays, f"{index}/", f"{folder}: damaged: model {index}")
    return record


def require_transfer_model(record: Record, folder: str | os.PathLike[str], name: str) -> Record:
    """Check the record of the model of this name, with which an interrupted ranking continues.

    Raises:
        RecordError: If an entry is missing, of another type, or of another model.
    """
    _require(record.contents, _MODEL | _RESUMED | {"name": frozenset({name})}, folder)
    misses = record.arrays.get("misses", np.empty(0))
    _require_axes({"misses": misses}, {"misses": "n"}, f"{folder}: damaged")
    _require_labels_curve(record.arrays, "", f"{folder}: damaged")
    return record


def _require_labels_curve(arrays: Mapping[str, np.ndarray], prefix: str, where: str) -> None:
    parts = {part: f"{prefix}curve/{part}" for part in _CURVE_PARTS}
    missing = next((name for name in parts.values() if name not in arrays), None)
    if missing is not None:
        raise RecordError(f"{where}: the array {missing!r} is missing; measure again")
    found = {part: arrays[name] for part, name in parts.items()}
    _require_axes(found, _CURVE_PARTS, where)
    if not np.all(np.isfinite(found["labels"]) & (found["labels"] > 0)):
        raise RecordError(f"{where}: expected positive numbers of labels; measure again")


def require_survey(
    record: Record, folder: str | os.PathLike[str], *, of_history: bool = False
) -> Record:
    """Check that a survey has all entries that readers need, and the arrays of its curves.

    Raises:
        RecordError: If an entry is missing or of another type; the message says where.
    """
    form = _SURVEY | {"step": _COUNT} if of_history else _SURVEY
    _require(record.contents, form, folder)
    _require_own_names(record.contents["layers"], folder)
    for curve in record.contents["curves"]:
        _require_curve(curve, record.arrays, folder)
    _require_losses(record, folder)
    return record


def require_history_head(record: Record, folder: str | os.PathLike[str]) -> Record:
    """The same for the head record of a history."""
    _require(record.contents, _HEAD, folder)
    _require_own_names(record.contents["layers"], folder)
    return record


def _require_own_names(layers: Sequence[Mapping[str, Any]], folder: str | os.PathLike[str]) -> None:
    """Refuse two layers of one name: rows and charts find a layer by its name."""
    counts = Counter(layer["name"] for layer in layers)
    for name, count in counts.items():
        if count > 1:
            raise RecordError(
                f"{folder}: damaged: layers: {_shown(name)} is there twice; measure again"
            )


def _require_losses(record: Record, folder: str | os.PathLike[str]) -> None:
    """Check that the losses of examples exist."""
    kept = record.contents.get("example_losses")
    if kept is None:
        return
    name = kept["mean"]
    if name not in record.arrays:
        raise RecordError(
            f"{folder}: damaged: example_losses: the array {_shown(name)} is missing; measure again"
        )
    _require_axes({"mean": record.arrays[name]}, {"mean": "n"}, f"{folder}: damaged: losses")


# Roles of the arrays of a curve, with the axes of each; equal letters mean equal lengths.
_ROLES = (
    {"x": "n", "y": "n", "chance?": "n"},
    {"images": "kchw", "values": "k"},
    {"matrix": "mm", "classes": "m"},
)


def _require_curve(
    curve: Mapping[str, Any], arrays: Mapping[str, np.ndarray], folder: str | os.PathLike[str]
) -> None:
    """Check that the arrays of a curve exist, and that their shapes match."""
    what = f"curve {_shown(curve['name'])} of layer {_shown(curve['layer'])}"
    found = {}
    for role, name in curve["arrays"].items():
        if name not in arrays:
            raise RecordError(f"{folder}: damaged: {what}: the array {_shown(name)} is missing")
        found[role] = arrays[name]
    for roles in _ROLES:
        needed = {role for role in roles if not role.endswith("?")}
        if needed <= set(found):
            _require_axes(found, roles, f"{folder}: damaged: {what}")
            return
    raise RecordError(
        f"{folder}: damaged: {what}: expected arrays x and y, images and values, or matrix and "
        f"classes, got {_shown(', '.join(found))}"
    )


def _require_axes(found: Mapping[str, np.ndarray], roles: Mapping[str, str], where: str) -> None:
    lengths: dict[str, int] = {}
    for name, axes in roles.items():
        array = found.get(name.rstrip("?"))
        if array is None:
            continue
        fits = array.ndim == len(axes) and array.size > 0 and array.dtype.kind in "fiu"
        pairs = zip(axes, array.shape, strict=True) if fits else ()
        if not fits or any(lengths.setdefault(axis, size) != size for axis, size in pairs):
            known = ", ".join(f"{axis} = {size}" for axis, size in lengths.items())
            raise RecordError(
                f"{where}: {name.rstrip('?')}: expected numbers of shape ({', '.join(axes)})"
                f"{' with ' + known if known else ''}, got {array.dtype} of shape {array.shape}"
            )


def _require(contents: Mapping[str, Any], form: Any, folder: str | os.PathLike[str]) -> None:
    problem = next(_problems(contents, form, ""), None)
    if problem is not None:
        raise RecordError(f"{folder}: damaged: {problem}; measure again, or restore the file")


def _problems(value: Any, form: Any, path: str) -> Iterator[str]:
    """All entries that do not match the form, depth first."""
    if isinstance(form, _OrNull):
        if not isinstance(value, str if isinstance(form, _OrText) else NoneType):
            yield from _problems(value, form.form, path)
    elif isinstance(form, (tuple, frozenset)):
        yield from _leaf_problems(value, form, path)
    else:
        yield from _branch_problems(value, form, path)


def _leaf_problems(value: Any, form: tuple[type, ...] | frozenset[str], path: str) -> Iterator[str]:
    if isinstance(form, frozenset):
        if not isinstance(value, str) or value not in form:
            yield f"{path}: expected {' or '.join(sorted(form))}, got {_shown(value)}"
    elif not isinstance(value, form) or (isinstance(value, bool) and bool not in form):
        yield f"{path}: expected {_words(form)}, got {_shown(value)}"
    elif isinstance(value, int) and abs(value) > _LARGEST:
        yield f"{path}: expected {_words(form)}, got one of {value.bit_length()} bits"


def _branch_problems(value: Any, form: Any, path: str) -> Iterator[str]:
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
    str: "text", bool: "true or false", int: "a whole number", float: "a number",
    dict: "a mapping", list: "a list", NoneType: "null",
}  # fmt: skip


def _words(kinds: tuple[type, ...]) -> str:
    names = [_NAMES[kind] for kind in kinds if not (kind is int and float in kinds)]
    return " or ".join(names)


def _shown(value: Any) -> str:
    text = repr(value) if not isinstance(value, (dict, list, np.ndarray)) else type(value).__name__
    return text if len(text) <= 40 else f"{text[:40]}..."
