"""Where the models and the examples of a ranking come from.

Models are modules, callables that build them, or names. Examples that are not tensors (texts, or
images of another library) are drawn by number and converted into tensors for each model.
"""

import hashlib
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass
from functools import partial
from numbers import Number
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from theodolite.advice.reasons import Reason, reason
from theodolite.engine import Batch, require_model, unwrap
from theodolite.errors import DomainError, DtypeError
from theodolite.records import Note, unique_names
from theodolite.surveys.named_models import ModelSource, build_model
from theodolite.surveys.shards import probe_digest

Source = nn.Module | Callable[[], nn.Module] | str


def named_sources(models: Any) -> dict[str, Source]:
    """Models by name. Models without a name get that of their class or function, and a number."""
    if isinstance(models, (nn.Module, str)) or not isinstance(models, (Mapping, Sequence)):
        models = [models]
    if isinstance(models, Mapping):
        found = {str(name): source for name, source in models.items()}
    else:
        names = [source if isinstance(source, str) else own_name(source) for source in models]
        found = dict(zip(unique_names(names), models, strict=True))
    if not found:
        raise DomainError("models: expected at least one model, got none")
    for name, source in found.items():
        if isinstance(source, type) and issubclass(source, nn.Module):
            continue
        if not isinstance(source, (nn.Module, str)) and not callable(source):
            raise DtypeError(
                f"models[{name!r}]: expected a torch.nn.Module, a callable that builds one or a "
                f"name such as timm:resnet18, got {type(source).__name__}"
            )
    return found


def numbered(data: Any, targets: Any) -> tuple[Any, list[Any] | None]:
    """Replace a list of texts or other objects among the inputs by numbers; return the list."""
    pair = targets is None and isinstance(data, (tuple, list)) and len(data) == 2
    inputs = data[0] if pair else data
    if not isinstance(inputs, (list, tuple, np.ndarray)) and not hasattr(inputs, "iloc"):
        return data, None
    items = list(inputs)
    plain = (Tensor, np.ndarray, np.generic, Number, list, tuple, Mapping, Batch)
    if not items or (isinstance(items[0], plain) and not isinstance(items[0], str)):
        return data, None
    places = torch.arange(len(items))
    return ((places, data[1]) if pair else places), items


def items_digest(items: Sequence[Any], digest: str) -> str:
    """SHA-256 over the objects and ``digest``; ``digest`` itself if there are no objects."""
    if not items:
        return digest
    found = hashlib.sha256(digest.encode())
    for item in items:
        found.update(pickle.dumps(item))
    return found.hexdigest()


def from_items(
    items: Sequence[Any], prepare: Callable[[Any], Any] | None, name: str
) -> Callable[[Tensor], Any]:
    """Return the function that converts numbers of objects into the inputs of a model.

    Raises:
        DtypeError: If no ``prepare`` function was given.
    """
    if prepare is None:
        kind = "texts" if isinstance(items[0], str) else f"objects ({type(items[0]).__name__})"
        raise DtypeError(
            f"data: expected tensors, got {kind}; pass prepare=, or prepare={{{name!r}: ...}}, a "
            "function that takes a list of them and returns the inputs of the model, such as "
            'lambda texts: tokenizer(texts, padding=True, return_tensors="pt")'
        )
    return lambda places: prepare([items[place] for place in places.tolist()])


def own_name(source: Any) -> str:
    """Name of a function or class, or of the class of a module."""
    return str(getattr(source, "__name__", type(source).__name__))


def unmatched(sources: Mapping[str, Source], **given: Any) -> list[Reason]:
    """Notes that name the entries of mappings without a model of that name."""
    return [
        reason(Note.UNUSED_ENTRY, option=option, key=str(key))
        for option, mapping in given.items()
        if isinstance(mapping, Mapping)
        for key in mapping
        if key not in sources
    ]


def built_model(name: str, source: Source) -> nn.Module:
    """The module itself, or the module that the name or the callable builds."""
    if isinstance(source, str):
        return build_model(ModelSource(source))
    if isinstance(source, nn.Module):
        require_model(source)
        return unwrap(source)
    made = source()
    if not isinstance(made, nn.Module):
        raise DtypeError(
            f"models[{name!r}]: expected a callable that returns a torch.nn.Module, got "
            f"{type(made).__name__} from it"
        )
    return unwrap(made)


def identity(source: Any) -> str:
    """A digest that distinguishes models, or ``prepare`` functions, of one name.

    It covers the weights of a module, the text of a file, the arguments of a ``partial`` and the
    fields of a dataclass. Of a function it covers instructions, defaults and closure. It covers
    neither the functions that it calls nor lists and dictionaries, which may change.
    """
    if isinstance(source, nn.Module):
        weights = {key: value for key, value in source.state_dict().items() if _is_plain(value)}
        return f"{own_name(source)} {probe_digest(Batch((), weights))}"
    if isinstance(source, str):
        file = Path(source.rpartition(":")[0])
        text = file.read_bytes() if file.suffix == ".py" and file.is_file() else b""
        return f"{source} {hashlib.sha256(text).hexdigest()}"
    if isinstance(source, partial):
        return f"{identity(source.func)} {source.args} {source.keywords}"
    if isinstance(source, FunctionType):
        cells = [cell.cell_contents for cell in source.__closure__ or () if _is_filled(cell)]
        held = [*cells, *(source.__defaults__ or ()), *(source.__kwdefaults__ or {}).values()]
        parts = repr([_instructions(source.__code__), *map(_constants, held)])
        return f"{own_name(source)} {hashlib.sha256(parts.encode()).hexdigest()}"
    return repr(source) if is_dataclass(source) else own_name(source)


def _instructions(code: CodeType) -> list[Any]:
    """The instructions of a function, without its place in the source."""
    constants = [
        _instructions(part) if isinstance(part, CodeType) else repr(part) for part in code.co_consts
    ]
    return [code.co_code, code.co_names, constants]


def _constants(value: Any) -> str:
    """The constant values that a function keeps beside its instructions."""
    if isinstance(value, Tensor):
        return probe_digest(Batch((value,))) if _is_plain(value) else "tensor"
    if value is None or isinstance(value, (bool, int, float, complex, bytes)):
        return repr(value)
    if isinstance(value, tuple):
        return f"({', '.join(map(_constants, value))})"
    # A called function may call this one in turn, so only its instructions count.
    is_function = isinstance(value, FunctionType)
    return repr(_instructions(value.__code__)) if is_function else identity(value)


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:  # a function that refers to itself, during its definition
        return False


def _is_plain(value: Any) -> bool:
    return isinstance(value, Tensor) and not is_lazy(value) and value.layout == torch.strided
