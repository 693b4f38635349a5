"""Names for tests and doctests; Hypothesis without deadlines: the first torch call is slow."""

from importlib.util import find_spec
from typing import Any

import hypothesis
import pytest
import torch

hypothesis.settings.register_profile("theodolite", deadline=None, derandomize=True)
hypothesis.settings.load_profile("theodolite")

# Builds of torch for a CPU come without Triton, in which this file is written.
collect_ignore = [] if find_spec("triton") else ["src/theodolite/engine/_tensor_core_kernels.py"]


@pytest.fixture(autouse=True)
def _doctest_names(doctest_namespace: dict[str, Any]) -> None:
    import numpy

    doctest_namespace["torch"] = torch
    doctest_namespace["np"] = numpy


@pytest.fixture
def generator() -> torch.Generator:
    """A seeded generator, fresh for every test."""
    return torch.Generator().manual_seed(0)
