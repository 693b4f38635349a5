"""Hypothesis without deadlines (the first torch call alone takes 200 ms), torch in doctests."""

import hypothesis
import pytest
import torch

hypothesis.settings.register_profile("theodolite", deadline=None, derandomize=True)
hypothesis.settings.load_profile("theodolite")


@pytest.fixture
def generator() -> torch.Generator:
    """A seeded generator, fresh for every test."""
    return torch.Generator().manual_seed(0)
