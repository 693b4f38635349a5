"""NumPy in, NumPy out; torch in, torch out: the decorator of every public function on arrays.

The decorated function only gets tensors. Arguments annotated as ``Float`` are promoted: integers
and booleans to float64, half precision to float32. So inside the function ``argument.dtype`` is the
dtype whose rounding matters. The function computes in float64 (see :func:`double`). Floating-point
results are converted back to the promoted dtype, on the device of the input.
"""

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import fields, is_dataclass
from functools import wraps
from numbers import Real
from types import MappingProxyType, NoneType, UnionType
from typing import Any, ParamSpec, TypeVar, get_args

import numpy as np
import torch
from torch import Tensor

from theodolite.checks import require_flag, require_kind
from theodolite.errors import DtypeError

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

_FEW = 8  # largest number of entries that repr prints
_HALF = (torch.float16, torch.bfloat16)


def double(tensor: Tensor) -> Tensor:
    """The tensor in float64, on the CPU if its device has no float64 (MPS)."""
    return tensor.cpu().double() if tensor.device.type == "mps" else tensor.double()


def eps_of(*tensors: Tensor) -> float:
    """Rounding unit of the input dtype with the fewest digits.

    Examples:
        >>> eps_of(torch.ones(1), torch.ones(1).double()) == torch.finfo(torch.float32).eps
        True
    """
    return max(torch.finfo(tensor.dtype).eps for tensor in tensors if tensor.is_floating_point())


def prints_shapes(result: type[T]) -> type[T]:
    """Class decorator for dataclasses: ``repr`` shows shapes instead of long arrays."""

    def short(self: Any) -> str:
        parts = (f"{f.name}={_printed(getattr(self, f.name))}" for f in fields(self) if f.repr)
        return f"{type(self).__qualname__}({', '.join(parts)})"

    result.__repr__ = short  # type: ignore[method-assign]
    return result


def _printed(value: Any) -> str:
    """Few numbers, or the shape of many."""
    if not isinstance(value, (Tensor, np.ndarray)):
        return repr(value)
    if math.prod(value.shape) > _FEW:
        return f"{type(value).__name__}{tuple(value.shape)}"
    return str(value.tolist())


def array_function(function: Callable[P, R]) -> Callable[P, R]:
    """Let a function on tensors accept and return NumPy arrays too.

    Mixing NumPy arrays and tensors in one call is an error, and so are complex numbers. NumPy input
    is copied. The static types name tensors only.
    """
    signature = inspect.signature(function)
    wants_float = {
        name: _admits(parameter.annotation, "float") and not _admits(parameter.annotation, "int")
        for name, parameter in signature.parameters.items()
    }

    accepted = {
        name: _accepted(parameter.annotation) for name, parameter in signature.parameters.items()
    }

    @wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        bound = signature.bind(*args, **kwargs)
        for name, value in bound.arguments.items():
            _require_kind(value, name, accepted[name])
        leaves = list(_leaves(bound.arguments.values()))
        from_numpy = _one_kind(leaves, function.__name__)
        for name, value in bound.arguments.items():
            bound.arguments[name] = _import(value, name, wants_float.get(name, False))
        tensors = [leaf for leaf in _leaves(bound.arguments.values()) if isinstance(leaf, Tensor)]
        result = function(*bound.args, **bound.kwargs)
        floats = [tensor.dtype for tensor in tensors if tensor.is_floating_point()]
        if not tensors:
            return result
        dtype = _promoted(floats) if floats else None
        return _export(result, dtype, tensors[0].device, from_numpy)

    return wrapper


def checks_classes(function: Callable[P, R]) -> Callable[P, R]:
    """Let a function on tensors alone refuse other classes and kinds of numbers than annotated."""
    signature = inspect.signature(function)
    accepted = {
        name: tuple(kind for kind in _accepted(parameter.annotation) if kind is not np.ndarray)
        for name, parameter in signature.parameters.items()
    }
    numbers = {
        name: [kind for kind in ("float", "int") if _admits(parameter.annotation, kind)]
        for name, parameter in signature.parameters.items()
    }

    @wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        for name, value in signature.bind(*args, **kwargs).arguments.items():
            _require_kind(value, name, accepted[name])
            if isinstance(value, Tensor) and numbers[name]:
                _require_numbers(value, name, numbers[name])
        return function(*args, **kwargs)

    return wrapper


def _require_numbers(tensor: Tensor, name: str, kinds: list[str]) -> None:
    real = tensor.is_floating_point()
    whole = not real and not tensor.is_complex() and tensor.dtype != torch.bool
    if tensor.is_complex() or (kinds == ["float"] and not real) or (kinds == ["int"] and not whole):
        words = {"float": "floating-point numbers", "int": "integers"}
        wanted = words[kinds[0]] if len(kinds) == 1 else "real numbers"
        raise DtypeError(f"{name}: expected {wanted}, got {tensor.dtype}; convert it first")


def _admits(annotation: Any, kind: str) -> bool:
    """Whether a jaxtyping annotation, or any member of a union, accepts this kind of number."""
    dtypes = getattr(annotation, "dtypes", None)
    if isinstance(dtypes, (list, tuple)):
        return any(str(dtype).startswith(kind) for dtype in dtypes)
    return any(_admits(argument, kind) for argument in get_args(annotation))


def _accepted(annotation: Any) -> tuple[type, ...]:
    """Classes that an argument may have; none if its class is not checked here."""
    members = get_args(annotation) if isinstance(annotation, UnionType) else (annotation,)
    arrays = [member for member in members if hasattr(member, "array_type")]
    others = [member for member in members if not hasattr(member, "array_type")]
    if not all(isinstance(member, type) for member in others):
        return ()
    if arrays:
        return (Tensor, np.ndarray, *(Real if member is float else member for member in others))
    return tuple(others) if all(_is_checked(member) for member in others) else ()


def _is_checked(kind: type) -> bool:
    """Whether only objects of this class can be meant: no number, text or collection."""
    plain = kind in (bool, NoneType, Tensor, torch.Generator)
    return plain or is_dataclass(kind) or hasattr(kind, "_fields")


def _require_kind(value: Any, name: str, accepted: tuple[type, ...]) -> None:
    if not accepted or isinstance(value, accepted):
        return
    if np.ndarray in accepted:
        raise DtypeError(
            f"{name}: expected a tensor or a NumPy array, got {type(value).__name__}; "
            "convert it with torch.as_tensor"
        )
    if accepted == (bool,):
        require_flag(**{name: value})
    else:
        require_kind(accepted, **{name: value})


def _leaves(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _leaves(value)
        elif isinstance(value, (Tensor, np.ndarray)):
            yield value
        elif isinstance(value, Mapping):
            yield from _leaves(value.values())
        elif is_dataclass(value) and not isinstance(value, type):
            yield from _leaves(getattr(value, field.name) for field in fields(value))


def _one_kind(leaves: list[Any], name: str) -> bool:
    """Whether the arrays are NumPy arrays; an error if they are mixed."""
    kinds = {isinstance(leaf, np.ndarray) for leaf in leaves}
    if len(kinds) > 1:
        raise DtypeError(
            f"{name}: expected all NumPy arrays or all tensors, got both; "
            "convert one side with torch.from_numpy or .numpy()"
        )
    return kinds == {True}


def _import(value: Any, name: str, wants_float: bool) -> Any:
    if isinstance(value, (list, tuple)):
        items = [_import(item, name, wants_float) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, Mapping):
        return {key: _import(item, name, wants_float) for key, item in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        answer = copy(value)
        for field in fields(value):
            part = _import(getattr(value, field.name), f"{name}.{field.name}", wants_float)
            object.__setattr__(answer, field.name, part)  # the result of another array function
        return answer
    return _import_array(value, name, wants_float)


def _import_array(value: Any, name: str, wants_float: bool) -> Any:
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "biuf":
            raise DtypeError(f"{name}: expected real numbers, got an array of {value.dtype}")
        value = torch.from_numpy(value.astype(_torch_dtype(value.dtype), copy=True, order="C"))
    if not isinstance(value, Tensor):
        return value
    if value.is_complex():
        raise DtypeError(f"{name}: expected real numbers, got {value.dtype}; pass .real or .abs()")
    if value.dtype in _HALF:
        return value.float()
    if wants_float and not value.is_floating_point():
        return value.double()
    return value


def _torch_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The nearest NumPy dtype that torch accepts: native order, no long double, no uint64."""
    if dtype.kind == "u" and dtype.itemsize > 1:
        return np.dtype(np.int64)
    if dtype.kind == "f" and dtype.itemsize > 8:
        return np.dtype(np.float64)
    return dtype.newbyteorder("=")


def _promoted(dtypes: list[torch.dtype]) -> torch.dtype:
    widest = dtypes[0]
    for dtype in dtypes[1:]:
        widest = torch.promote_types(widest, dtype)
    return widest


def _export(result: Any, dtype: torch.dtype | None, device: torch.device, to_numpy: bool) -> Any:
    """Convert every tensor in the result to the promised dtype, device and kind."""
    if isinstance(result, Tensor):
        result = result.to(device, dtype if result.is_floating_point() else None)
        return result.detach().cpu().numpy() if to_numpy else result
    if is_dataclass(result) and not isinstance(result, type):
        answer = copy(result)
        for field in fields(result):
            value = _export(getattr(result, field.name), dtype, device, to_numpy)
            object.__setattr__(
                answer, field.name, value
            )  # a frozen dataclass whose types say Tensor
        return answer
    if isinstance(result, tuple) and hasattr(result, "_fields"):
        return type(result)(*(_export(item, dtype, device, to_numpy) for item in result))
    if isinstance(result, (list, tuple)):
        return type(result)(_export(item, dtype, device, to_numpy) for item in result)
    if isinstance(result, Mapping):
        items = {key: _export(item, dtype, device, to_numpy) for key, item in result.items()}
        return MappingProxyType(items) if isinstance(result, MappingProxyType) else items
    return result


def ratio_or_nan(numerator: Tensor, denominator: Tensor, defined: Tensor | bool = True) -> Tensor:
    """``numerator / denominator`` if defined and the denominator is nonzero, else nan.

    The division gets a safe denominator, so that masked entries give no inf or nan to the gradient.

    Examples:
        >>> ratio_or_nan(torch.tensor([1.0, 1.0]), torch.tensor([2.0, 0.0])).tolist()
        [0.5, nan]
    """
    valid = denominator != 0
    valid = valid if defined is True else valid & defined
    return nan_unless(valid, numerator / torch.where(valid, denominator, 1.0))


def nan_unless(defined: Tensor, value: Tensor) -> Tensor:
    """The value if defined, else nan with gradient zero.

    Examples:
        >>> nan_unless(torch.tensor([True, False]), torch.tensor([1.0, 2.0])).tolist()
        [1.0, nan]
    """
    return torch.where(defined, value, torch.nan)


def safe_sqrt(value: Tensor) -> Tensor:
    """Square root with gradient zero (not inf) at zero.

    Negative values, which come only from rounding, count as zero.

    Examples:
        >>> safe_sqrt(torch.tensor([4.0, 0.0, -1e-17])).tolist()
        [2.0, 0.0, 0.0]
    """
    positive = value > 0
    root = torch.where(positive, value, torch.ones_like(value)).sqrt()
    return torch.where(positive, root, torch.zeros_like(value))


@contextmanager
def full_precision() -> Iterator[None]:
    """Switch off TF32 and bfloat16 in float32 products inside the block."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
