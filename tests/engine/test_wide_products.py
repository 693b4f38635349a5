"""Kernels from products in float64, as on chips that multiply these faster than float32."""

import pytest
import torch
from torch import nn

from theodolite.engine import _products, tangent_kernels
from theodolite.engine._kernel_engine import BatchList, prepare
from theodolite.engine._plan import EngineOptions
from theodolite.engine._products import Products
from theodolite.engine._tangents import kernels_of

EPS = 2 * torch.finfo(torch.float32).eps


@pytest.fixture
def wide(monkeypatch):
    """As if doubles were fast here, and every sum long."""
    monkeypatch.setattr(_products, "_doubles_are_fast", lambda device: True)
    monkeypatch.setattr(_products, "_LONG", 2)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 8), nn.ReLU(), nn.Linear(8, 3))


def examples(count, seed=1):
    return torch.randn(count, 6, generator=torch.Generator().manual_seed(seed))


def worst(found, wanted):
    """Largest error of a layer relative to its largest entry."""
    return max(
        float((found[layer] - wanted[layer]).abs().max() / wanted[layer].abs().max())
        for layer in wanted
    )


@pytest.mark.parametrize("outputs", ["full", "trace", "diagonal", 1])
@pytest.mark.parametrize("other", [False, True], ids=["symmetric", "cross"])
def test_kernels_agree_with_float64(wide, outputs, other):
    model, x = network(), examples(7)
    second = examples(5, seed=2) if other else None
    found = tangent_kernels(model, x, outputs=outputs, other=second)
    exact = tangent_kernels(
        model.double(),
        x.double(),
        outputs=outputs,
        other=None if second is None else second.double(),
    )
    assert all(kernel.dtype == torch.float32 for kernel in found.values())
    assert worst(found, exact) < 10 * EPS  # the factors come in float32


def test_any_tile_gives_the_same(wide):
    model, x, other = network(), examples(7), examples(5, seed=2)
    whole = tangent_kernels(model, x, other=other)
    data, second = (BatchList.of(given, None, None, torch.device("cpu")) for given in (x, other))
    request = EngineOptions(tile_bytes=2 * 72)  # two pairs of examples
    cut = kernels_of(prepare(model, data, request), data, second)
    assert worst(cut, whole) < EPS  # products of the inputs stay in float32


def test_kernels_are_symmetric(wide):
    for kernel in tangent_kernels(network(), examples(7)).values():
        matrix = kernel.flatten(2).flatten(0, 1)
        assert torch.equal(matrix, matrix.T)


def test_only_long_sums_of_float32_are_widened(monkeypatch):
    monkeypatch.setattr(_products, "_doubles_are_fast", lambda device: True)
    long, short = torch.ones(2, 128), torch.ones(2, 127)
    assert Products().wide(long).dtype == torch.float64
    assert Products().wide(short) is short
    assert Products("3xtf32").wide(long) is long
    half = long.half()
    assert Products().wide(half) is half


def test_a_cpu_does_not_widen():
    long = torch.ones(2, 128)
    assert Products().wide(long) is long
