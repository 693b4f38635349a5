"""Names for tests and doctests, and where the shape checker is on.

Hypothesis has no deadlines: the first torch call is slow.
"""

import resource
import signal
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import hypothesis
import jaxtyping
import pytest
import torch

from tests.shape_checker import checked

hypothesis.settings.register_profile("theodolite", deadline=None, derandomize=True)
hypothesis.settings.load_profile("theodolite")

# The shape checker more than triples the time of a survey. It is on in the tests of the engine and
# of functions that take arrays, which declare shapes. Elsewhere the package runs as users run it.
_ROOT = Path(__file__).parent
_ARRAYS = ("linalg", "measures", "theory", "metrics", "interventions", "engine")
_SHAPE_CHECKED = (*(_ROOT / "tests" / name for name in (*_ARRAYS, "conformance")), _ROOT / "src")
# hundreds of calls of the same functions
_TABLES_OF_NETWORKS = ("test_hostile.py", "test_networks.py")
_PAPERS = (_ROOT / "papers" / "src" / "theodolite_papers").glob("*/formulas")
jaxtyping.install_import_hook(
    [
        *(f"theodolite.{name}" for name in _ARRAYS),
        *(f"theodolite_papers.{folder.parent.name}.formulas" for folder in _PAPERS),
    ],
    f"{checked.__module__}.{checked.__name__}",
)


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path: Path) -> Generator[None, list[Any], list[Any]]:
    """Look for doctests only in files that have some: others need not even be imported.

    Packages are: a module that is imported before its package would be there twice.
    """
    found = yield
    if file_path.suffix != ".py" or file_path.stem == "__init__":
        return found
    if ">>>" in file_path.read_text():
        return found
    tests = file_path.name.startswith("test_")
    return [part for part in found if tests and type(part) is pytest.Module]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Run a test with or without the shape checker, by the folder it is in."""
    on = any(item.path.is_relative_to(folder) for folder in _SHAPE_CHECKED)
    on = on or "formulas" in item.path.parts
    on = on and item.path.name not in _TABLES_OF_NETWORKS
    jaxtyping.config.update("jaxtyping_disable", not on)
    return (yield)


@pytest.fixture(autouse=True)
def _doctest_names(doctest_namespace: dict[str, Any]) -> None:
    import numpy

    doctest_namespace["torch"] = torch
    doctest_namespace["np"] = numpy


@pytest.fixture
def generator() -> torch.Generator:
    """A seeded generator, fresh for every test."""
    return torch.Generator().manual_seed(0)


@contextmanager
def _small_files(size: int) -> Iterator[None]:
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


@pytest.fixture
def full_disk() -> Callable[[int], AbstractContextManager[None]]:
    """A block in which files grow to so many bytes at most, as on a full disk.

    The block holds only what is to fail: the limit is that of the process, whose output may go to a
    file too.
    """
    return _small_files
