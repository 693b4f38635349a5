"""Names for tests and doctests; Hypothesis without deadlines: the first torch call is slow."""

import resource
import signal
from collections.abc import Callable, Iterator
from typing import Any

import hypothesis
import pytest
import torch

hypothesis.settings.register_profile("theodolite", deadline=None, derandomize=True)
hypothesis.settings.load_profile("theodolite")


@pytest.fixture(autouse=True)
def _doctest_names(doctest_namespace: dict[str, Any]) -> None:
    import numpy

    doctest_namespace["torch"] = torch
    doctest_namespace["np"] = numpy


@pytest.fixture
def generator() -> torch.Generator:
    """A seeded generator, fresh for every test."""
    return torch.Generator().manual_seed(0)


@pytest.fixture
def full_disk() -> Iterator[Callable[[int], None]]:
    """A function that limits the files of this process to so many bytes, as a full disk does."""
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)
