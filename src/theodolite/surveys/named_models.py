"""Models by name (MODEL on the command line): a callable of a file or package, timm, or hf."""

import importlib
import importlib.util
import inspect
import pickle
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from theodolite.errors import DomainError, TheodoliteError, UnknownNameError
from theodolite.records import listed

_FORMS = "FILE.py:CALLABLE, PACKAGE.MODULE:CALLABLE, timm:NAME or hf:NAME"
# Keys under which training scripts store the weights.
_SECTIONS = ("state_dict", "model_state_dict", "model")
_SHOWN = 3  # largest number of weight names in a message


@dataclass(frozen=True)
class ModelSource:
    """The source of a model.

    Args:
        word: ``file.py:callable``, ``package.module:callable``, ``timm:NAME`` or ``hf:NAME``.
        arguments: keyword arguments of the callable.
        checkpoint: file with weights; they replace pretrained weights.
        seed: seed of the initial weights.
    """

    word: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    checkpoint: Path | None = None
    seed: int = 0


def build_model(source: ModelSource) -> nn.Module:
    """Build the model with the weights of the checkpoint, in evaluation mode.

    The global random state is not changed.

    Raises:
        DomainError: If it cannot be found or built, or the checkpoint does not fit.
        UnknownNameError: If the file or module has no such name.
    """
    kind, separator, name = source.word.rpartition(":")
    if not separator or not kind or not name:
        raise DomainError(f"MODEL: expected {_FORMS}, got {source.word!r}")
    started = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    devices = range(torch.cuda.device_count()) if started else ()
    with torch.random.fork_rng(devices), _import_path(kind):
        torch.manual_seed(source.seed)
        model = _named(kind, name, source)
    if not isinstance(model, nn.Module):
        raise DomainError(
            f"{source.word}: expected a torch.nn.Module or a callable that returns one, got "
            f"{type(model).__name__}"
        )
    if source.checkpoint is not None:
        load_weights_(model, source.checkpoint)
    return model.eval()


def _named(kind: str, name: str, source: ModelSource) -> Any:
    if kind == "timm":
        return _timm(name, source)
    if kind == "hf":
        return _hugging_face(name, source)
    module = _module(kind)
    target: Any = module
    for part in name.split("."):
        if not hasattr(target, part):
            raise UnknownNameError(f"callable of {kind}:", name, _model_names(module))
        target = getattr(target, part)
    return target if isinstance(target, nn.Module) else _called(target, source)


def _called(target: Any, source: ModelSource) -> Any:
    if not callable(target):
        raise DomainError(f"{source.word}: expected a callable, got {type(target).__name__}")
    try:
        inspect.signature(target).bind(**source.arguments)
    except TypeError as error:
        given = ", ".join(f"{key}={value!r}" for key, value in source.arguments.items())
        raise DomainError(
            f"{source.word}: cannot be called {f'with {given}' if given else 'without arguments'}: "
            f"{error}; pass its arguments as --arg NAME=VALUE"
        ) from error
    except ValueError:  # some callables have no signature
        pass
    with _as_one_sentence(source.word, "could not be built"):
        return target(**source.arguments)


def _module(kind: str) -> ModuleType:
    if kind.endswith(".py"):
        return _file_module(Path(kind))
    try:
        found = importlib.util.find_spec(kind)
    except (ImportError, ValueError, AttributeError):
        found = None
    if found is None:
        raise DomainError(
            f"MODEL: expected {_FORMS}; there is no module {kind!r} (looked in this folder too)"
        )
    with _as_one_sentence(kind, "could not be imported"):
        return importlib.import_module(kind)


def _file_module(path: Path) -> ModuleType:
    if not path.is_file():
        raise DomainError(f"MODEL: {path}: there is no such file")
    name = f"theodolite_model_{path.stem}"
    specification = importlib.util.spec_from_file_location(name, path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module  # dataclasses look up the module of a class
    written, sys.dont_write_bytecode = (
        sys.dont_write_bytecode,
        True,
    )  # nothing is written beside the user's file
    try:
        with _as_one_sentence(str(path), "could not be imported"):
            specification.loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = written
    return module


def _model_names(module: ModuleType) -> list[str]:
    """Callables that the module defines itself, or all its callables if there are none."""
    public = {key: value for key, value in vars(module).items() if not key.startswith("_")}
    callables = [key for key, value in public.items() if callable(value)]
    own = [key for key in callables if getattr(public[key], "__module__", "") == module.__name__]
    return own or callables


def _timm(name: str, source: ModelSource) -> Any:
    timm = _extra("timm", "vision")
    options = {"pretrained": source.checkpoint is None, **source.arguments}
    with _as_one_sentence(source.word, "timm could not build it"):
        return timm.create_model(name, **options)


def _hugging_face(name: str, source: ModelSource) -> Any:
    """A model of the class that its configuration names, e.g. for image classification."""
    transformers = _extra("transformers", "hf")
    with _as_one_sentence(source.word, "transformers could not load it"):
        config = transformers.AutoConfig.from_pretrained(name, **source.arguments)
        known = getattr(transformers, (config.architectures or ["AutoModel"])[0], None)
        factory = transformers.AutoModel if known is None else known
        if source.checkpoint is None:
            return factory.from_pretrained(name, config=config)
        return factory._from_config(config) if known is not None else factory.from_config(config)


def _extra(package: str, extra: str) -> Any:
    if sys.modules.get(package, package) is None or importlib.util.find_spec(package) is None:
        raise DomainError(
            f"{package} is needed for this model and is not installed; "
            f"run pip install 'theodolite[{extra}]'"
        )
    try:
        return importlib.import_module(package)
    except Exception as error:  # torchvision built for another torch raises RuntimeError
        text = " ".join(str(error).split())[:200]
        raise DomainError(
            f"{package} is installed and cannot be imported: {type(error).__name__}: {text}; "
            "install builds of torch and torchvision that belong together"
        ) from error


@contextmanager
def _import_path(kind: str) -> Iterator[None]:
    """Make imports find the working folder and that of the file, as ``python file.py`` does."""
    added = [str(Path.cwd())]
    if kind.endswith(".py"):
        added.insert(0, str(Path(kind).resolve().parent))
    sys.path[:0] = added
    try:
        yield
    finally:
        for entry in added:
            sys.path.remove(entry)


@contextmanager
def _as_one_sentence(what: str, problem: str) -> Iterator[None]:
    """Convert an error of other code into one sentence that names the place."""
    try:
        yield
    except TheodoliteError:
        raise
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
        text = " ".join(str(error).split())[:300]
        raise DomainError(f"{what}: {problem}: {type(error).__name__}: {text}{place}") from error


def load_weights_(model: nn.Module, path: Path) -> None:
    """Copy a checkpoint's weights into a model, in place.

    Reads ``torch.save`` files with ``weights_only=True`` (nothing in them is executed) and
    ``.safetensors``. Prefixes that wrappers add to all names are removed.

    Raises:
        DomainError: If the file is missing or contains anything except tensors, or if names or
            shapes do not fit the model.
    """
    own = model.state_dict()
    weights = _without_prefix(_weights(_read(path), path), own)
    problems = _problems(own, weights)
    if problems:
        raise DomainError(
            f"checkpoint {path}: does not fit the model: {'; '.join(problems)}; "
            "check MODEL and its --arg options"
        )
    model.load_state_dict(weights)


def _read(path: Path) -> Any:
    if not path.is_file():
        raise DomainError(f"checkpoint {path}: there is no such file")
    if path.suffix == ".safetensors":
        return _read_safetensors(path)
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError) as error:
        raise DomainError(
            f"checkpoint {path}: expected a state_dict written by torch.save, holding tensors "
            f"only, but it cannot be read safely; save model.state_dict()"
        ) from error


def _read_safetensors(path: Path) -> Any:
    try:
        from safetensors.torch import load_file
    except ImportError as error:
        raise DomainError(
            f"checkpoint {path}: safetensors is not installed; run pip install safetensors"
        ) from error
    try:
        return load_file(path)
    except Exception as error:  # the Rust reader raises its own error classes
        raise DomainError(f"checkpoint {path}: cannot be read as safetensors ({error})") from error


def _weights(content: Any, path: Path) -> dict[str, Tensor]:
    for key in _SECTIONS:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
            break
    if not isinstance(content, Mapping) or not content:
        raise DomainError(
            f"checkpoint {path}: expected a mapping of names to tensors, got "
            f"{type(content).__name__}; save model.state_dict()"
        )
    strange = [str(key) for key, value in content.items() if not isinstance(value, Tensor)]
    if strange:
        raise DomainError(
            f"checkpoint {path}: expected tensors only, but {listed(strange, _SHOWN)} are "
            "something else; save model.state_dict()"
        )
    return {str(key): value for key, value in content.items()}


def _without_prefix(weights: dict[str, Tensor], own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Names as in the model, without a first word that a wrapper added to each."""
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
        problems.append(f"it lacks {listed(missing, _SHOWN)}")
    if unknown:
        problems.append(f"the model has no {listed(unknown, _SHOWN)}")
    if shapes:
        problems.append(listed(shapes, _SHOWN))
    return problems
