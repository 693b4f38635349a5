"""One record on disk: strict JSON and one npz file, without pickle.

A record is a folder. ``arrays-<digest>.npz`` is written first. Then ``os.replace`` puts
``record.json``, which names it, into place. So a process that is killed at any moment leaves the
old record or the new one. Processes that write one folder take turns. The loader checks the digests
of both files and the sizes of arrays, and refuses unknown formats.
"""

import hashlib
import io
import itertools
import json
import math
import os
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from theodolite._version import __version__
from theodolite.errors import RecordError
from theodolite.records._disk import (
    folders_in,
    held_folder,
    is_there,
    read_file,
    remove_leftovers,
    replace_file,
    require_size,
)
from theodolite.records._estimates import Estimate

SCHEMA = 2  # schema 2 added a digest of the record itself, and types and shapes of its arrays
LARGEST_RECORD = 2**30  # default limit for reading, in bytes
_FORMAT = "theodolite-record"
_DOCUMENT = "record.json"
_MOST_NAMED = 5  # largest number of runs in the message about a folder without a run
_MOST_LETTERS = 80  # largest number of letters of a name in a message
MOST_READS = 100  # attempts to read a record that other processes replace
_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
_INFINITE = {"Infinity": math.inf, "-Infinity": -math.inf}


@dataclass(frozen=True)
class Record:
    """The data of one measurement.

    ``contents`` holds plain data (text, numbers, lists, mappings). Undefined numbers are nan here,
    and null with a reason on disk. ``reasons`` maps the path of such a number
    (``"layers/fc1/cka"``) to the reason. A loaded record has its ``file`` and the checked
    ``digest``; records of versions before 0.3 have no digest.
    """

    contents: Mapping[str, Any]
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)
    file: Path | None = field(default=None, compare=False)
    digest: str | None = field(default=None, compare=False)

    @property
    def unverified(self) -> bool:
        """Whether it was read from a file without a digest, whose changes cannot be detected."""
        return self.file is not None and self.digest is None

    def __repr__(self) -> str:
        kind = self.contents.get("kind", "no kind")
        mark = ", no digest" if self.unverified else ""
        return f"Record({kind}, {len(self.contents)} entries, {len(self.arrays)} arrays{mark})"


def save_record(record: Record, folder: str | os.PathLike[str]) -> Path:
    """Write a record into a folder; it replaces an existing record in a single step.

    Processes that save to one folder take turns; the last record stays.

    Args:
        record: the record.
        folder: the folder; created if it does not exist.

    Returns:
        The path of ``record.json``.

    Raises:
        RecordError: If the contents are not plain data, or an array has objects.
        WriteError: If the disk is full, or the folder cannot be written.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = save_record(Record({"cka": 0.5}, {"curve": np.arange(3.0)}), folder)
        ...     load_record(folder).arrays["curve"]
        array([0., 1., 2.])
    """
    files = packed_record(record)
    with claimed(folder, overwrite=True) as place:
        return files.write(place)


def holds_run(folder: str | os.PathLike[str], *, below: bool = False) -> bool:
    """Whether the folder, or a folder directly below, has a record or a step of a history."""
    path = Path(folder)
    if is_there(path / _DOCUMENT):
        return True
    inside = _listed_folders(path)
    return any(runs_in(one) for one in inside if one.name.startswith("steps")) or (
        below and any(holds_run(other) for other in inside)
    )


def runs_in(folder: Path) -> list[Path]:
    """The folders with a record directly below a folder; none if it cannot be listed."""
    return [path for path in _listed_folders(folder) if is_there(path / _DOCUMENT)]


def _listed_folders(folder: Path) -> list[Path]:
    try:
        return folders_in(folder)
    except RecordError:
        return []


def numbered(folder: str | os.PathLike[str]) -> Iterator[Path]:
    """The folder, then ``name-2``, ``name-3``, ..."""
    path = Path(folder)
    yield path
    if path.name in ("", ".."):  # for paths such as "." the real name is needed
        path = path.resolve()
    if not path.name:
        raise RecordError(f"{path}: the root folder holds a run already; name a folder in it")
    yield from (path.with_name(f"{path.name}-{number}") for number in itertools.count(2))


@contextmanager
def claimed(folder: str | os.PathLike[str], *, overwrite: bool) -> Iterator["Place"]:
    """Lock a folder to write in: this one, or the first beside it without a run.

    The check for a run is made under the lock, so that two processes never take the same folder.
    """
    for candidate in numbered(folder):
        with held_folder(candidate) as alone:
            if overwrite or not holds_run(candidate):
                yield Place(candidate, alone)
                return


@dataclass(frozen=True)
class Place:
    """A folder to write in.

    Args:
        folder: an existing folder.
        alone: whether it is locked, so that no other process writes there now.
    """

    folder: Path
    alone: bool


@dataclass(frozen=True)
class PackedRecord:
    """The two files of a record."""

    arrays_name: str
    arrays: bytes
    document: bytes

    def write(self, place: Place) -> Path:
        """Write the arrays, then the document that names them; then remove old files."""
        arrays, path = place.folder / self.arrays_name, place.folder / _DOCUMENT
        known = arrays.exists()
        replace_file(arrays, self.arrays)
        try:
            replace_file(path, self.document)
        except BaseException:
            if place.alone and not known:
                arrays.unlink(missing_ok=True)
            raise
        if place.alone:  # no record names them, and no other process is writing such a record
            for stale in set(place.folder.glob("arrays-*.npz")) - {arrays}:
                with suppress(OSError):
                    stale.unlink()
            remove_leftovers(place.folder, path.name, "arrays-*.npz")
        return path


def packed_record(record: Record) -> PackedRecord:
    """Make the files of a record in memory.

    Raises:
        RecordError: If the contents are not plain data, or an array has objects.
    """
    arrays = {name: np.asarray(array) for name, array in record.arrays.items()}
    packed = _pack(arrays)
    digest = hashlib.sha256(packed).hexdigest()
    undefined: dict[str, str] = {}
    document: dict[str, Any] = {
        "format": _FORMAT,
        "schema": SCHEMA,
        "package_version": __version__,
        "arrays": {
            "file": f"arrays-{digest[:16]}.npz",
            "sha256": digest,
            "members": {name: [array.dtype.str, *array.shape] for name, array in arrays.items()},
        },
    }
    try:
        document["contents"] = _plain(record.contents, "", record.reasons, undefined)
        document["undefined"] = undefined
        document["digest"] = _digest(document)
        text = json.dumps(document, indent=1, allow_nan=False, ensure_ascii=False)
    except RecursionError as error:
        raise RecordError("contents: expected plain data, got mappings nested too deep") from error
    try:
        encoded = text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, as in the name of a file
        encoded = json.dumps(document, indent=1, allow_nan=False).encode()
    return PackedRecord(document["arrays"]["file"], packed, encoded)


def _digest(document: Mapping[str, Any]) -> str:
    """SHA-256 of the document without its digest and without white space."""
    rest = {key: value for key, value in document.items() if key != "digest"}
    return hashlib.sha256(json.dumps(rest, allow_nan=False).encode()).hexdigest()


def load_record(
    folder: str | os.PathLike[str], *, max_bytes: int | None = LARGEST_RECORD
) -> Record:
    """Read a record and check it.

    Args:
        folder: the folder of the record.
        max_bytes: limit for ``record.json`` and for the unpacked arrays; None for no limit.

    Returns:
        The record, with its file and its checked digest.

    Raises:
        RecordError: If there is no record, or it is damaged, too large, of another program or of a
            newer version. The message says which and what to do.
    """
    path = Path(folder) / _DOCUMENT
    for _ in range(MOST_READS):
        raw = _read_document(path, max_bytes)
        try:
            return _parsed(path, raw, max_bytes)
        except RecordError:
            if _read_document(path, max_bytes) == raw:
                raise
        # Since the document was read, another process has replaced the record and its arrays.
    raise RecordError(
        f"{path}: other processes replace it faster than it can be read; try again when "
        "they have finished"
    )


def _parsed(path: Path, raw: bytes, max_bytes: int | None) -> Record:
    try:
        document = _document(path, raw)
        digest = _checked_digest(path, document)
        packed = _read_packed(path, document.get("arrays"), max_bytes)
        arrays = _unpack(path, document["arrays"], packed, max_bytes)
        contents, undefined = document.get("contents"), document.get("undefined")
        if not isinstance(contents, dict) or not isinstance(undefined, dict):
            raise RecordError(
                f"{path}: damaged: 'contents' or 'undefined' is missing; measure again"
            )
        if any(not isinstance(reason, str) for reason in undefined.values()):
            raise RecordError(f"{path}: damaged: expected reasons as text; measure again")
        restored = _restored(contents, "", undefined)
    except RecursionError as error:
        raise RecordError(f"{path}: damaged, it is nested too deep; measure again") from error
    return Record(restored, arrays, undefined, file=path, digest=digest)


def _checked_digest(path: Path, document: Mapping[str, Any]) -> str | None:
    """The digest in a record; None for records of schema 1."""
    digest = document.get("digest")
    if digest is None and document["schema"] == 1:
        return None
    if digest != _digest(document):
        raise RecordError(
            f"{path}: changed since it was written, its digest does not match; restore the file, "
            "or measure again"
        )
    return str(digest)


def _pack(arrays: Mapping[str, np.ndarray]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in arrays.items():
            if array.dtype.hasobject:
                raise RecordError(f"arrays[{name!r}]: expected numbers or text, got objects")
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)
    return buffer.getvalue()


def _unpack(
    path: Path, entry: Mapping[str, Any], packed: bytes, max_bytes: int | None
) -> dict[str, np.ndarray]:
    """The arrays of an npz, after their sizes; of schema 1 the sizes are those that it names."""
    file = path.parent / entry["file"]
    arrays = {}
    try:
        with zipfile.ZipFile(io.BytesIO(packed)) as archive:
            require_size(file, sum(info.file_size for info in archive.infolist()), max_bytes)
            for info in archive.infolist():
                name = info.filename.removesuffix(".npy")
                declared = None if "members" not in entry else entry["members"][name]
                if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    raise ValueError(f"compression {info.compress_type} is not supported")
                with archive.open(info) as member:  # read() without a limit would unpack everything
                    unpacked = io.BytesIO(member.read(info.file_size))
                arrays[name] = _array(unpacked, info.file_size, declared)
        if "members" in entry and set(arrays) != set(entry["members"]):
            raise ValueError("expected the arrays that the record names")
    except RecordError:
        raise
    except Exception as error:  # three parsers raise many kinds of errors for damaged bytes
        raise RecordError(f"{file}: the arrays cannot be read ({error}); measure again") from error
    return arrays


def _array(stream: io.BytesIO, size: int, declared: Any) -> np.ndarray:
    """One array, read only if its header agrees with the record and with the size of the file."""
    version = np.lib.format.read_magic(stream)
    header = _HEADERS[version](stream)
    shape, _, dtype = header
    if declared is not None and declared != [dtype.str, *shape]:
        raise ValueError(f"expected {declared}, got {[dtype.str, *shape]}")
    if dtype.hasobject or math.prod(shape) * dtype.itemsize != size - stream.tell():
        raise ValueError(f"expected {dtype} of shape {shape}, got {size - stream.tell()} bytes")
    stream.seek(0)
    return np.lib.format.read_array(stream, allow_pickle=False)


def _plain(value: Any, path: str, reasons: Mapping[str, str], undefined: dict[str, str]) -> Any:
    """The value in types of strict JSON; each nan becomes null and is listed with its reason."""
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


def _read_document(path: Path, max_bytes: int | None) -> bytes:
    try:
        return read_file(path, max_bytes)
    except FileNotFoundError:
        below = [other.name for other in runs_in(path.parent)]
        found = "none" if path.parent.exists() else "no such folder"
        found += f" here, but in {', '.join(below[:_MOST_NAMED])}" if below else ""
        raise RecordError(
            f"{path.parent}: expected a folder with record.json, found {found}"
        ) from None
    except NotADirectoryError:
        raise RecordError(
            f"{path.parent}: expected a folder with record.json, got a file"
        ) from None
    except (OSError, ValueError) as error:
        if isinstance(error, RecordError):
            raise
        raise RecordError(f"{path}: cannot be read ({error})") from error


def _document(path: Path, raw: bytes) -> dict[str, Any]:
    try:
        document = json.loads(raw, parse_constant=_refuse_constant, parse_float=_finite)
    except ValueError as error:
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


def _finite(number: str) -> float:
    value = float(number)
    if math.isinf(value):
        raise ValueError(f"{number} is too large for a float")
    return value


def _read_packed(path: Path, entry: Any, max_bytes: int | None) -> bytes:
    name = entry.get("file") if isinstance(entry, dict) else None
    if not isinstance(name, str) or Path(name).name != name or not name.startswith("arrays-"):
        raise RecordError(f"{path}: damaged: it names no arrays file; measure again")
    try:
        packed = read_file(path.parent / name, max_bytes)
    except (OSError, ValueError) as error:
        if isinstance(error, RecordError):
            raise
        raise RecordError(
            f"{path.parent}: {name[:_MOST_LETTERS]} is missing or unreadable; measure again"
        ) from error
    if hashlib.sha256(packed).hexdigest() != entry.get("sha256"):
        raise RecordError(
            f"{path.parent / name}: damaged, its digest does not match; measure again"
        )
    return packed
