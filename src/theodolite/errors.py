"""The errors of this library: one base class; each is also a builtin error that callers expect.

Every message says what was expected, what was passed, and what to do.
"""

from collections.abc import Iterable
from difflib import get_close_matches

__all__ = [
    "CaptureError",
    "DataError",
    "DomainError",
    "DtypeError",
    "MemoryLimitError",
    "NotFiniteError",
    "ProcessError",
    "RangeError",
    "RecordError",
    "ShapeError",
    "StudyError",
    "TheodoliteError",
    "TrackingError",
    "UnknownNameError",
    "UnwrittenWarning",
    "WriteError",
]


_CLOSE = 0.65  # similarity of names; less alike names are no suggestion


class TheodoliteError(Exception):
    """Base class of all errors that this library raises on purpose."""


class ShapeError(TheodoliteError, ValueError):
    """An array has the wrong number of axes, or lengths that do not match."""


class DomainError(TheodoliteError, ValueError):
    """A value lies outside the domain of the quantity: NaN, a label out of range, a threshold."""


class NotFiniteError(DomainError):
    """Numbers are NaN or infinite: a run has diverged, or a number has overflowed."""


class RangeError(NotFiniteError):
    """Numbers are too large or too small for their dtype."""


class DtypeError(TheodoliteError, TypeError, ValueError):
    """Complex numbers, text, or NumPy arrays mixed with tensors."""


class CaptureError(TheodoliteError, RuntimeError):
    """The engine cannot follow the model, or a check of its result failed."""


class DataError(TheodoliteError, ValueError):
    """A data set is missing, damaged or malformed; the message says which file to put where."""


class MemoryLimitError(TheodoliteError, MemoryError):
    """The planned run needs more memory than allowed; the message has the numbers."""


class ProcessError(TheodoliteError, RuntimeError):
    """Another process of the same measurement has failed, or does not take part.

    Attributes:
        unexpected: whether its error is not an error of this library.
    """

    unexpected = False


class RecordError(TheodoliteError, ValueError):
    """A record on disk is damaged, from another program, or from a newer version."""


class WriteError(TheodoliteError, OSError):
    """A file cannot be written: the disk is full, or the folder is read-only."""


class UnwrittenWarning(UserWarning):
    """A result is in memory and not on disk; the message says why."""


class StudyError(TheodoliteError, RuntimeError):
    """Runs of a study or sweep failed; finished runs are on disk, and running again resumes."""


class TrackingError(TheodoliteError, ConnectionError):
    """A tracking server or its database cannot be used; the message says which, and why."""


class UnknownNameError(TheodoliteError, LookupError):
    """A name that does not exist; the message has the nearest existing names, then a hint."""

    def __init__(self, kind: str, name: object, known: Iterable[str], hint: str = "") -> None:
        names, text = [item for item in known if item], str(name)
        near = get_close_matches(text, names, n=3, cutoff=_CLOSE)
        near = near or [item for item in names if text and item.startswith(text)][:3]
        listed = [repr(item) for item in near or names[:8]]
        if near:
            *others, last = listed
            advice = f"did you mean {', '.join(others)}{' or ' * bool(others)}{last}?"
        elif not names:
            advice = f"there is none to choose from{'.' * bool(hint)}"
        else:
            more = f" and {len(names) - 8} more" if len(names) > 8 else ""
            advice = f"expected one of {', '.join(listed)}{more}{'.' * bool(hint)}"
        super().__init__(f"unknown {kind} {name!r}; {advice}{hint}")
        self.name = name
