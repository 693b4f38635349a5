"""Sizes as people write them."""

import pytest
import torch
from torch import nn

import theodolite as th
from theodolite.checks import size_in_bytes
from theodolite.engine import feature_grams
from theodolite.errors import DomainError, TheodoliteError


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4GB", 4 * 10**9),
        ("512MiB", 512 * 2**20),
        ("100", 100),
        ("1.5k", 1500),
        (" 2 tib ", 2 * 2**40),
        ("7B", 7),
        (2**20, 2**20),
        (1e6, 10**6),
        (None, None),
    ],
)
def test_sizes(text, size):
    assert size_in_bytes(text) == size


@pytest.mark.parametrize("text", ["much", "", "4XB", "-4GB", "0", "0GB", 0, -1, True, "4 GB more"])
def test_no_sizes(text):
    with pytest.raises(
        DomainError, match="memory_limit: expected a size such as '4GB' or '512MiB', got"
    ):
        size_in_bytes(text)


X, Y = torch.randn(20, 6, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 3


@pytest.mark.parametrize(
    "call",
    [
        lambda model, size: th.tangent_kernels(model, X, memory_limit=size).total,
        lambda model, size: feature_grams(model, X, memory_limit=size)["0"],
        lambda model, size: th.survey(
            model, (X, Y), families="kernel", options={"memory_limit": size}
        ).to_frame()["value"],
    ],
    ids=["tangent", "grams", "survey"],
)
def test_sizes_are_taken_everywhere(call):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
    assert (call(model, "1GB") == call(model, 10**9)).all()
    with pytest.raises(TheodoliteError, match=r"expected (at least|to stay below)"):
        call(model, "100B")
    with pytest.raises(DomainError, match="memory_limit: expected a size such as"):
        call(model, "plenty")
