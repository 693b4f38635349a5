"""Texts of several kinds that installed packages carry, cut into sequences of tokens.

Nothing is downloaded: the standard library, the instrument's dependencies and their licences are
on every machine that runs this. Other versions of the packages have other texts.
"""

import ast
import doctest
import importlib.metadata
import inspect
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from pydoc_data import topics

import numpy as np
import scipy
import torch
from jaxtyping import Int
from torch import Tensor

from theodolite.errors import DataError, UnknownNameError

__all__ = ["DOMAINS", "domain_text", "token_windows"]

_LONGEST = 10_000  # characters of one document
_CHARACTERS = 200_000  # of a domain


def _prose() -> Iterator[str]:
    for name in sorted(topics.topics):
        yield topics.topics[name]


def _code() -> Iterator[str]:
    for file in sorted((Path(scipy.__file__).parent / "optimize").glob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
            if isinstance(node, documented) and ast.get_docstring(node) is not None:
                node.body = node.body[1:] or [ast.Pass()]
        yield ast.unparse(tree)


def _licences() -> Iterator[str]:
    seen = set()
    found = importlib.metadata.distributions()
    for distribution in sorted(found, key=lambda one: one.metadata["Name"].lower()):
        for file in sorted(map(str, distribution.files or ())):
            name = Path(file).name.lower()
            if ".dist-info" in file and ("licen" in name or "copying" in name):
                text = distribution.read_text(str(Path(*Path(file).parts[1:]))) or ""
                if text and text not in seen:
                    seen.add(text)
                    yield text


def _docstrings() -> Iterator[list[str | doctest.Example]]:
    """Explanations and interpreter sessions, in turns, of NumPy's functions."""
    for name in sorted(dir(np)):
        value = getattr(np, name)
        if name[0] != "_" and callable(value):
            yield doctest.DocTestParser().parse(inspect.getdoc(value) or "")


def _manuals() -> Iterator[str]:
    for parts in _docstrings():
        yield "".join(part for part in parts if isinstance(part, str))


def _sessions() -> Iterator[str]:
    for parts in _docstrings():
        examples = [part for part in parts if isinstance(part, doctest.Example)]
        yield "".join(f">>> {example.source}{example.want}" for example in examples)


def _tables() -> Iterator[str]:
    import sklearn

    for file in sorted((Path(sklearn.__file__).parent / "datasets" / "data").glob("*.csv")):
        yield file.read_text(encoding="utf-8")


def _headers() -> Iterator[str]:
    for file in sorted((Path(np.get_include()) / "numpy").glob("*.h")):
        yield file.read_text(encoding="utf-8")


DOMAINS: Mapping[str, Callable[[], Iterator[str]]] = {
    "prose": _prose,  # the chapters of Python's reference that ``help`` shows
    "code": _code,  # scipy.optimize without docstrings and comments
    "licences": _licences,  # of all installed distributions, each text once
    "manuals": _manuals,  # docstrings of NumPy without their examples
    "sessions": _sessions,  # the examples of these docstrings: what is typed, what is answered
    "tables": _tables,  # the CSV files of scikit-learn's data sets
    "headers": _headers,  # C headers of NumPy
}


def domain_text(name: str) -> str:
    """Documents of one domain, each and in all no longer than a bound.

    Raises:
        UnknownNameError: If there is no such domain.
        DataError: If the installed packages carry no text of it.

    Example:
        >>> domain_text("sessions").startswith(">>> ")
        True
    """
    if name not in DOMAINS:
        raise UnknownNameError("domain of texts", name, DOMAINS)
    parts: list[str] = []
    for document in DOMAINS[name]():
        if document.strip():
            parts.append(document.strip()[:_LONGEST])
        if sum(map(len, parts)) >= _CHARACTERS:
            break
    if not parts:
        raise DataError(f"{name}: expected texts in the installed packages, found none")
    return "\n\n".join(parts)[:_CHARACTERS]


def token_windows(
    tokens: Int[Tensor, " t"], count: int, length: int, generator: torch.Generator
) -> Int[Tensor, "count length"]:
    """Stretches of a text that do not overlap, drawn at random.

    Raises:
        DataError: If the text is too short.

    Example:
        >>> token_windows(torch.arange(6), 3, 2, torch.Generator().manual_seed(0)).sort(0).values
        tensor([[0, 1],
                [2, 3],
                [4, 5]])
    """
    whole = len(tokens) // length
    if whole < count:
        raise DataError(f"tokens: expected at least {count * length}, got {len(tokens)}")
    chosen = torch.randperm(whole, generator=generator)[:count]
    return tokens[: whole * length].reshape(whole, length)[chosen]
