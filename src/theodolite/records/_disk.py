"""Files that are written completely or not at all; folders with one writing process at a time."""

import os
import secrets
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from numbers import Integral
from pathlib import Path
from typing import Any

from theodolite.errors import DtypeError, RecordError, WriteError

if sys.platform != "win32":
    import fcntl


def require_path(**values: Any) -> None:
    """Check that each value is the path of a file or folder."""
    for name, value in values.items():
        if not isinstance(value, (str, os.PathLike)):
            raise DtypeError(
                f"{name}: expected a path as text or pathlib.Path, got {type(value).__name__}"
            )


_CLASS_WORDS = {
    bool: "True or False", int: "a whole number", Integral: "a whole number", float: "a number",
    str: "text", list: "a list", Sequence: "a list", Mapping: "a mapping",
}  # fmt: skip


def require_class(kind: type, **values: Any) -> None:
    """Check that each value is an object of the class; ``checks.require_kind`` needs torch."""
    for name, value in values.items():
        if not isinstance(value, kind):
            wanted = _CLASS_WORDS.get(kind, kind.__name__)
            raise DtypeError(f"{name}: expected {wanted}, got {type(value).__name__}")


def replace_file(path: str | os.PathLike[str], data: bytes) -> Path:
    """Write a file under a temporary name beside it, flush it to the disk, then move it.

    A reader sees the old file or the new one. A failed write leaves only the old one.

    Raises:
        WriteError: If the disk is full, or the folder cannot be written.
    """
    target = Path(path)
    temporary = target.parent / f".{target.name}.{secrets.token_hex(4)}"
    try:
        with temporary.open("xb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, target)
    except BaseException as error:
        with suppress(OSError, ValueError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, (OSError, ValueError)):  # ValueError: an impossible file name
            raise WriteError(
                f"{target}: cannot be written ({_reason(error)}); free some space, or name "
                "a folder that can be written"
            ) from error
        raise
    return target


def remove_leftovers(folder: Path, *names: str) -> None:
    """Remove temporary files of killed processes; call this only while the folder is locked."""
    for name in names:
        for path in folder.glob(f".{name}.*"):
            with suppress(OSError):
                path.unlink()


def is_there(path: Path) -> bool:
    """Whether there is a file or folder; False if the system does not let us know."""
    try:
        return path.exists()
    except OSError:
        return False


def folders_in(folder: Path) -> list[Path]:
    """The folders in a folder, in order of their names; none if it was removed.

    Raises:
        RecordError: If it cannot be listed.
    """
    try:
        return sorted(path for path in folder.iterdir() if path.is_dir())
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:  # ValueError: an impossible name
        raise RecordError(f"{folder}: cannot be listed ({_reason(error)})") from error


@contextmanager
def made_folder(folder: Path) -> Iterator[Path]:
    """The folder, created if it does not exist; removed again if the block fails.

    Raises:
        RecordError: If it is a file, or inside a file.
        WriteError: If it cannot be created.
    """
    made = _make(folder)
    try:
        yield folder
    except BaseException:
        _remove_empty(made)
        raise


def _make(folder: Path) -> list[Path]:
    """Create a folder; return the folders that did not exist, the deepest first."""
    made: list[Path] = []
    try:
        with _naming_the_folder(folder):
            made = [path for path in (folder, *folder.parents) if not path.exists()]
            folder.mkdir(parents=True, exist_ok=True)
    except BaseException:
        _remove_empty(made)
        raise
    return made


def _remove_empty(folders: Iterable[Path]) -> None:
    for folder in folders:
        with suppress(OSError, ValueError):
            folder.rmdir()


@contextmanager
def _naming_the_folder(folder: Path) -> Iterator[None]:
    """Convert an error of the system about a folder into an error of this library."""
    try:
        yield
    except (FileExistsError, NotADirectoryError) as error:
        raise RecordError(
            f"expected a folder to save in, got {folder}, which is a file or lies in one; pass the "
            "name of a folder"
        ) from error
    except ValueError as error:
        raise RecordError(
            f"expected a folder to save in, got {str(folder)!r} ({error}); pass another name"
        ) from error
    except OSError as error:
        raise _unusable(folder, error) from error


def _unusable(folder: Path, error: OSError) -> WriteError:
    return WriteError(
        f"{folder}: the folder cannot be created or used ({_reason(error)}); name another"
    )


def _reason(error: OSError | ValueError) -> str:
    return str(getattr(error, "strerror", None) or error)


def read_file(path: Path, max_bytes: int | None) -> bytes:
    """The bytes of a regular file.

    Raises:
        RecordError: If it is larger than the limit, or not a regular file.
        OSError: If it cannot be read.
    """
    found = path.stat()
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(f"{path.name} is a folder")
    if not stat.S_ISREG(found.st_mode):  # reading a pipe would never end
        raise RecordError(f"{path}: expected a regular file, got a pipe, socket or device")
    require_size(path, found.st_size, max_bytes)
    return path.read_bytes()


def require_size(path: Path, size: int, max_bytes: int | None) -> None:
    """Raise a RecordError if a file, or its unpacked content, is larger than the limit."""
    if max_bytes is not None and size > max_bytes:
        raise RecordError(
            f"{path}: it takes {size:,} bytes, more than the limit of {max_bytes:,}; if you trust "
            "the file, pass a larger max_bytes="
        )


@contextmanager
def held_folder(folder: Path) -> Iterator[bool]:
    """Create and lock a folder; other processes and threads that lock it wait.

    The operating system releases the lock when the process ends for any reason. A folder that was
    created here is removed again if the block fails and leaves it empty.

    Yields:
        Whether the folder is locked. Windows, and some network file systems, have no such locks.
        Without a lock nothing is removed that another process may need.

    Raises:
        RecordError: If it is a file, inside a file, or has an impossible name.
        WriteError: If it cannot be created, or the block raises another error of the system.
    """
    if sys.platform == "win32":
        _make(folder)
        yield False
        return
    descriptor, held, made = _lock(folder)
    try:
        yield held
    except BaseException as error:
        if held:
            _remove_empty(made)
        if isinstance(error, OSError) and not isinstance(error, WriteError):
            raise _unusable(folder, error) from error
        raise
    finally:
        if held:  # after closing alone, a forked child process would still hold the lock
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def _lock(folder: Path) -> tuple[int, bool, list[Path]]:
    """The open folder, whether it is locked, and the folders that were created."""
    made: list[Path] = []
    while True:
        made += _make(folder)
        with _naming_the_folder(folder):
            try:
                descriptor = os.open(folder, os.O_RDONLY)
            except FileNotFoundError:  # the process that created it has failed and removed it
                continue
        held = False
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            held = True
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), folder.stat()):
                return descriptor, held, made
        os.close(descriptor)
