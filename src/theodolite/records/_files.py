"""One record on disk: strict JSON beside one npz, never pickle.

A record is a folder. ``arrays-<digest>.npz`` is written first; then ``record.json``, which names
it, takes its place by ``os.replace``. That is the commit: a process killed at any moment leaves the
old record or the new one. The loader checks the digest and refuses what it does not understand.
"""

import hashlib
import io
import json
import math
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from theodolite._version import __version__
from theodolite.errors import RecordError

__all__ = ["SCHEMA", "Estimate", "Record", "load_record", "save_record"]

SCHEMA = 1
_FORMAT = "theodolite-record"
_MOST_NAMED = 5  # runs below a folder that is none
_INFINITE = {"Infinity": math.inf, "-Infinity": -math.inf}


@dataclass(frozen=True)
class Estimate:
    """A number with its uncertainty: standard error, and what chance alone would give.

    Example:
        >>> estimate = Estimate(0.42, error=0.03, null_mean=0.02, null_sd=0.01, method="jackknife")
        >>> round(estimate.z_score, 4)
        40.0
    """

    value: float
    error: float | None = None
    null_mean: float | None = None
    null_sd: float | None = None
    method: str = "exact"

    @property
    def z_score(self) -> float:
        """Distance from the null in its standard deviations; nan where there is no null."""
        if self.null_mean is None or not self.null_sd:
            return math.nan
        return (self.value - self.null_mean) / self.null_sd


@dataclass(frozen=True)
class Record:
    """What one measurement leaves behind.

    ``contents`` holds plain data (text, numbers, lists, mappings); numbers that are undefined are
    nan here and null with a reason on disk. ``reasons`` maps the path of such a number
    (``"layers/fc1/cka"``) to why.
    """

    contents: Mapping[str, Any]
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        kind = self.contents.get("kind", "no kind")
        return f"Record({kind}, {len(self.contents)} entries, {len(self.arrays)} arrays)"


def save_record(record: Record, folder: str | os.PathLike[str]) -> Path:
    """Write a record into a folder, replacing the one that is there in a single step.

    Args:
        record: what to write.
        folder: created if it does not exist.

    Returns:
        The path of ``record.json``.

    Raises:
        RecordError: If the contents hold something that is no plain data, or an array of objects.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = save_record(Record({"cka": 0.5}, {"curve": np.arange(3.0)}), folder)
        ...     load_record(folder).arrays["curve"]
        array([0., 1., 2.])
    """
    target = Path(folder)
    try:
        target.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise RecordError(
            f"expected a folder to save in, got {target}, which is a file or lies in one; pass the "
            "name of a folder"
        ) from error
    packed = _pack(record.arrays)
    digest = hashlib.sha256(packed).hexdigest()
    arrays_name = f"arrays-{digest[:16]}.npz"
    undefined: dict[str, str] = {}
    document = {
        "format": _FORMAT,
        "schema": SCHEMA,
        "package_version": __version__,
        "arrays": {"file": arrays_name, "sha256": digest},
        "contents": _plain(record.contents, "", record.reasons, undefined),
        "undefined": undefined,
    }
    text = json.dumps(document, indent=1, allow_nan=False, ensure_ascii=False)
    _replace(target / arrays_name, packed)
    path = target / "record.json"
    _replace(path, text.encode())
    for stale in target.glob("arrays-*.npz"):
        if stale.name != arrays_name:
            stale.unlink(missing_ok=True)
    return path


def load_record(folder: str | os.PathLike[str]) -> Record:
    """Read a record back, checked.

    Raises:
        RecordError: If there is no record, or it is damaged, foreign, or from a newer version; the
            message says which and what to do.
    """
    path = Path(folder) / "record.json"
    document = _read_document(path)
    packed = _read_arrays(path, document.get("arrays"))
    try:
        with np.load(io.BytesIO(packed), allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
    except (ValueError, OSError, KeyError, EOFError) as error:
        raise RecordError(f"{path.parent}: the arrays cannot be read ({error})") from error
    contents, undefined = document.get("contents"), document.get("undefined")
    if not isinstance(contents, dict) or not isinstance(undefined, dict):
        raise RecordError(f"{path}: damaged: 'contents' or 'undefined' is missing; measure again")
    return Record(_restored(contents, "", undefined), arrays, undefined)


def _pack(arrays: Mapping[str, np.ndarray]) -> bytes:
    for name, array in arrays.items():
        if np.asarray(array).dtype.hasobject:
            raise RecordError(f"arrays[{name!r}]: expected numbers or text, got objects")
    buffer = io.BytesIO()
    plain: dict[str, Any] = {name: np.asarray(array) for name, array in arrays.items()}
    np.savez_compressed(buffer, **plain)
    return buffer.getvalue()


def _plain(value: Any, path: str, reasons: Mapping[str, str], undefined: dict[str, str]) -> Any:
    """The value in strict JSON's types; each nan becomes null and is listed with its reason."""
    if isinstance(value, Estimate):
        value = vars(value)
    if isinstance(value, Mapping):
        if any(not isinstance(key, str) for key in value):
            raise RecordError(f"contents/{path}: expected text as keys, got {list(value)[:3]}")
        return {
            key: _plain(v, f"{path}/{key}".lstrip("/"), reasons, undefined)
            for key, v in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_plain(item, f"{path}/{i}", reasons, undefined) for i, item in enumerate(value)]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and math.isnan(value):
        undefined[path] = reasons.get(path, "undefined")
        return None
    if isinstance(value, float) and math.isinf(value):
        return {"number": "Infinity" if value > 0 else "-Infinity"}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise RecordError(
        f"contents/{path}: expected plain data, got {type(value).__name__}; "
        "convert numbers with float() and put arrays into the record's arrays"
    )


def _restored(value: Any, path: str, undefined: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        if set(value) == {"number"} and value["number"] in [*_INFINITE]:  # it may be a list
            return _INFINITE[value["number"]]
        return {
            key: _restored(v, f"{path}/{key}".lstrip("/"), undefined) for key, v in value.items()
        }
    if isinstance(value, list):
        return [_restored(item, f"{path}/{i}", undefined) for i, item in enumerate(value)]
    return math.nan if value is None and path in undefined else value


def _replace(path: Path, data: bytes) -> None:
    """Write next to the target, flush to the disk, then take its place in one step."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _read_document(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_bytes(), parse_constant=_refuse_constant)
    except FileNotFoundError:
        below = sorted(found.parent.name for found in path.parent.glob(f"*/{path.name}"))
        others = f" here, but in {', '.join(below[:_MOST_NAMED])}" if below else ""
        raise RecordError(
            f"{path.parent}: expected a folder with record.json, found none{others}"
        ) from None
    except NotADirectoryError:
        raise RecordError(
            f"{path.parent}: expected a folder with record.json, got a file"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise RecordError(f"{path}: damaged, not valid JSON ({error}); measure again") from error
    if not isinstance(document, dict) or document.get("format") != _FORMAT:
        raise RecordError(f"{path}: expected a record of this library, got another JSON file")
    schema = document.get("schema")
    if not isinstance(schema, int) or isinstance(schema, bool) or schema < 1:
        raise RecordError(f"{path}: damaged: expected a schema number, got {schema!r}")
    if schema > SCHEMA:
        raise RecordError(
            f"{path}: written in schema {schema} by version {document.get('package_version')}, "
            f"this version reads up to {SCHEMA}; upgrade theodolite"
        )
    return document


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not strict JSON")


def _read_arrays(path: Path, entry: Any) -> bytes:
    name = entry.get("file") if isinstance(entry, dict) else None
    if not isinstance(name, str) or Path(name).name != name or not name.startswith("arrays-"):
        raise RecordError(f"{path}: damaged: it names no arrays file; measure again")
    try:
        packed = (path.parent / name).read_bytes()
    except OSError as error:
        raise RecordError(
            f"{path.parent}: {name} is missing or unreadable; measure again"
        ) from error
    if hashlib.sha256(packed).hexdigest() != entry.get("sha256"):
        raise RecordError(
            f"{path.parent / name}: damaged, its digest does not match; measure again"
        )
    return packed
