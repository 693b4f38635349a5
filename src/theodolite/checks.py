"""Checks of the user's arguments: each error names the argument and says what to do.

Arguments are passed by keyword, so that the message can use the caller's own name for them:
``require_finite(features=features, targets=targets)``.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from theodolite.errors import DomainError, DtypeError, NotFiniteError, ShapeError

__all__ = [
    "dtype_text",
    "require_axes",
    "require_between",
    "require_choice",
    "require_count",
    "require_finite",
    "require_finite_data",
    "require_flag",
    "require_function",
    "require_kind",
    "require_labels",
    "require_nonempty",
    "require_nonnegative",
    "require_positive",
    "require_same_length",
    "require_same_shape",
    "require_square",
    "require_symmetric",
    "require_tensors",
    "size_in_bytes",
    "size_text",
    "symmetry_tolerance",
]


_MOST_CLASSES = 2**17  # labels may go up to a large vocabulary without num_classes


def _shape(tensor: Tensor) -> str:
    return str(tuple(tensor.shape))


def require_kind(kinds: type | tuple[type, ...], **values: Any) -> None:
    """Check that each value is an object of one of the classes."""
    allowed = kinds if isinstance(kinds, tuple) else (kinds,)
    for name, value in values.items():
        if not isinstance(value, allowed):
            listed = " or ".join(_class_text(kind) for kind in allowed)
            raise DtypeError(f"{name}: expected {listed}, got {_given(value)}")


_CLASS_WORDS = {
    type(None): "None",
    bool: "True or False",
    nn.Module: "a torch.nn.Module",
    str: "text",
    Integral: "a whole number",
    Mapping: "a mapping",
    Sequence: "a list",
    Iterable: "a list",
}


def _class_text(kind: type) -> str:
    """A class in plain words, or its name; classes of torch with their package."""
    package = "torch." if kind.__module__.startswith("torch") else ""
    return _CLASS_WORDS.get(kind, f"{package}{kind.__name__}")


def require_flag(**values: Any) -> None:
    """Check that each value is True or False."""
    for name, value in values.items():
        if not isinstance(value, (bool, np.bool_)):
            raise DtypeError(f"{name}: expected True or False, got {_given(value)}")


def require_tensors(**values: Any) -> None:
    """Check that each value is a tensor."""
    for name, value in values.items():
        if not isinstance(value, Tensor):
            raise DtypeError(
                f"{name}: expected a tensor, got {type(value).__name__}; "
                "convert it with torch.as_tensor"
            )


def require_axes(count: int, **tensors: Tensor) -> None:
    """Check that each tensor has exactly ``count`` axes."""
    require_tensors(**tensors)
    for name, tensor in tensors.items():
        if tensor.ndim != count:
            raise ShapeError(
                f"{name}: expected {count} axes, got shape {_shape(tensor)}; "
                "reshape it, e.g. with flatten(1) or unsqueeze(-1)"
            )


def require_nonempty(**tensors: Tensor) -> None:
    """Check that no axis of any tensor has length 0."""
    require_tensors(**tensors)
    for name, tensor in tensors.items():
        if tensor.numel() == 0:
            raise ShapeError(f"{name}: expected at least one entry, got shape {_shape(tensor)}")


def require_same_length(**tensors: Tensor) -> None:
    """Check that all tensors have the same number of examples (length of axis 0)."""
    require_tensors(**tensors)
    for name, tensor in tensors.items():
        if tensor.ndim == 0:
            raise ShapeError(f"{name}: expected one row per example, got a single number")
    lengths = {name: len(tensor) for name, tensor in tensors.items()}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name} has {length}" for name, length in lengths.items())
        raise ShapeError(f"expected one row per example in every argument, but {listed}")


def require_same_shape(**tensors: Tensor) -> None:
    """Check that all tensors have the same shape."""
    if len({tensor.shape for tensor in tensors.values()}) > 1:
        listed = ", ".join(f"{name} is {_shape(tensor)}" for name, tensor in tensors.items())
        raise ShapeError(f"expected equal shapes, but {listed}")


def require_square(**tensors: Tensor) -> None:
    """Check that each tensor is a non-empty square matrix."""
    for name, tensor in tensors.items():
        if tensor.ndim != 2 or tensor.shape[0] != tensor.shape[1] or len(tensor) == 0:
            raise ShapeError(f"{name}: expected a square matrix, got shape {_shape(tensor)}")


def require_finite(**tensors: Tensor) -> None:
    """Check for NaN and infinity in one pass; a second pass only finds the entry."""
    _require_finite(tensors, "a diverged run or an overflow upstream is the usual cause")


def require_finite_data(**tensors: Tensor) -> None:
    """Check the arrays of a data set for NaN and infinity."""
    _require_finite(tensors, "leave such examples out, or fill in the missing numbers")


def _require_finite(tensors: Mapping[str, Tensor], advice: str) -> None:
    for name, tensor in tensors.items():
        values = tensor.detach()
        if not values.is_floating_point() or torch.linalg.vector_norm(values).isfinite():
            continue
        finite = values.isfinite()  # the norm alone may have overflowed
        if not finite.all():
            first = tuple(int(index) for index in (~finite).nonzero()[0])
            raise NotFiniteError(
                f"{name}: expected finite numbers, got {values[first].item()} at index {first} "
                f"({int((~finite).sum())} of {values.numel()} entries); {advice}"
            )


def require_nonnegative(**tensors: Tensor) -> None:
    """Check for NaN, infinity and negative entries."""
    require_finite(**tensors)
    for name, tensor in tensors.items():
        negative = tensor.detach() < 0
        if negative.any():
            first = tuple(int(index) for index in negative.nonzero()[0])
            raise DomainError(
                f"{name}: expected numbers of at least 0, got {tensor[first].item()} at index "
                f"{first}; if rounding is the cause, call clamp(min=0) first"
            )


def symmetry_tolerance(dtype: torch.dtype) -> float:
    """Relative asymmetry that rounding can cause for matrices of this original dtype."""
    return max(1e-8, 8 * torch.finfo(dtype).eps)


def require_symmetric(**tensors: Tensor) -> None:
    """Check that each tensor is square, finite, and symmetric up to rounding of its dtype."""
    require_square(**tensors)
    require_finite(**tensors)
    for name, tensor in tensors.items():
        values = tensor.detach()
        asymmetry = (values - values.T).abs().max()
        scale = values.abs().max()
        if asymmetry > symmetry_tolerance(values.dtype) * scale:
            raise DomainError(
                f"{name}: expected a symmetric matrix, got a relative asymmetry of "
                f"{(asymmetry / scale).item():.1e}; if it is rounding, pass (m + m.T) / 2"
            )


def require_labels(labels: Tensor, num_classes: int | None = None, name: str = "labels") -> int:
    """Check for integer class labels, one per example, all in ``0 .. num_classes - 1``.

    Labels far beyond the number of examples (hashes, ids) are refused unless ``num_classes`` allows
    them, because work and memory grow with the largest label.

    Returns:
        The number of classes: ``num_classes``, or one more than the largest label.
    """
    require_axes(1, **{name: labels})
    require_nonempty(**{name: labels})
    if num_classes is not None:
        require_count(1, num_classes=num_classes)
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise DomainError(
            f"{name}: expected integer class labels, got {labels.dtype}; convert with .long()"
        )
    low, high = int(labels.min()), int(labels.max())
    if low < 0:
        raise DomainError(
            f"{name}: expected labels of at least 0, got {low}; number the classes from 0"
        )
    if num_classes is not None and high >= num_classes:
        raise DomainError(
            f"{name}: expected labels below num_classes = {num_classes}, got {high}; "
            "pass a larger num_classes or relabel"
        )
    if num_classes is None and high >= max(_MOST_CLASSES, len(labels)):
        raise DomainError(
            f"{name}: expected classes numbered from 0, got a label of {high} among {len(labels)} "
            f"examples; relabel with torch.unique({name}, return_inverse=True)[1]"
        )
    return num_classes if num_classes is not None else high + 1


def require_between(
    low: float, high: float, *, open_low: bool = False, open_high: bool = False, **values: float
) -> None:
    """Check that each number is in the interval; ends are included unless declared open."""
    for name, value in values.items():
        if not isinstance(value, (Real, Tensor)) or (isinstance(value, Tensor) and value.ndim):
            raise DtypeError(f"{name}: expected a number, got {_given(value)}")
        above = value > low if open_low else value >= low
        below = value < high if open_high else value <= high
        if not (above and below):  # also catches NaN
            left, right = "(" if open_low else "[", ")" if open_high else "]"
            raise DomainError(
                f"{name}: expected a number in {left}{low}, {high}{right}, got {value}"
            )


def _given(value: Any) -> str:
    """A wrong value for messages: short text and numbers as they are, others by their class."""
    if value is None or isinstance(value, Real) or (isinstance(value, str) and len(value) <= 40):
        return repr(value)
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__


def require_positive(**values: float) -> None:
    """Check that each number is finite and greater than 0."""
    require_between(0.0, float("inf"), open_low=True, open_high=True, **values)


def require_count(minimum: int, **values: int) -> None:
    """Check that each number is an integer of at least ``minimum``."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise DomainError(f"{name}: expected an integer of at least {minimum}, got {value!r}")


def require_function(**values: Any) -> None:
    """Check that each value can be called, and is no class, whose objects are meant."""
    for name, value in values.items():
        if isinstance(value, type):
            raise DtypeError(
                f"{name}: expected a function, got {_given(value)}; make an instance first"
            )
        if not callable(value):
            raise DtypeError(f"{name}: expected a function, got {_given(value)}")


def require_choice(options: Sequence[str | None], **values: str | None) -> None:
    """Check that each value is one of the allowed values."""
    for name, value in values.items():
        known = value is None or isinstance(value, str)
        if not known or value not in options:
            listed = ", ".join(repr(option) for option in options)
            raise DomainError(f"{name}: expected one of {listed}, got {value!r}")


_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_UNITS |= {f"{unit}I": 1024**power for power, unit in enumerate("KMGT", start=1)}


def size_in_bytes(size: int | float | str | None) -> int | None:
    """Convert ``4GB``, ``512MiB`` or a number into bytes; None stays None.

    Raises:
        DomainError: If it is none of these, or not positive.

    Examples:
        >>> size_in_bytes("4GB"), size_in_bytes("1.5 MiB"), size_in_bytes(1e6)
        (4000000000, 1572864, 1000000)
    """
    if size is None:
        return None
    known = isinstance(size, (str, Real))
    text = size.strip().upper() if isinstance(size, str) else f"{size:.0f}" if known else ""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?I?)B?", text)
    if isinstance(size, bool) or found is None or found[2] not in _UNITS or not float(found[1]):
        raise DomainError(f"memory_limit: expected a size such as '4GB' or '512MiB', got {size!r}")
    return int(float(found[1]) * _UNITS[found[2]])


def dtype_text(dtype: torch.dtype) -> str:
    """The name of a dtype for messages.

    Examples:
        >>> dtype_text(torch.float32)
        'float32'
    """
    return str(dtype).removeprefix("torch.")


def size_text(count: float) -> str:
    """A number of bytes for messages.

    Examples:
        >>> size_text(10), size_text(26_300_000), size_text(3.2e9)
        ('10 bytes', '26.3 MB', '3.2 GB')
    """
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            share = count / size
            return f"{share:.3g} {unit}" if share < 999.5 else f"{share:.0f} {unit}"
    return f"{count:.0f} bytes"
