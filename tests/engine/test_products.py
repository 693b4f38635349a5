"""Products of symmetric kernels: the same in stripes, between two sets, and exactly symmetric."""

import pytest
import torch
from torch import nn

from tests.engine.forced import force
from tests.reference.tangents import full_kernel, tangent_features
from tests.tolerances import assert_close
from theodolite.engine import tangent_kernels
from theodolite.engine.batches import iterate_batches
from theodolite.engine.inputs import BatchList
from theodolite.engine.kernel_engine import prepare
from theodolite.engine.kernels import kernels_of
from theodolite.engine.plan import EngineOptions
from theodolite.engine.state import untouched

MODES = ["full", "trace", 1]


def draw(*shape, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=dtype)


def network():
    torch.manual_seed(0)
    layers = [nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 6, bias=False), nn.Tanh(), nn.Linear(6, 3)]
    return nn.Sequential(*layers).double()


def planned(model, x, outputs="full", other=None, **options):
    """Kernels, as options decide."""
    with untouched(model):
        data = BatchList([*iterate_batches(x)])
        second = None if other is None else BatchList([*iterate_batches(other)])
        engine = prepare(model, data, EngineOptions(outputs=outputs, **options))
        return kernels_of(engine, data, second)


@pytest.mark.parametrize("stripes", [1, 2, 4, 9])
@pytest.mark.parametrize("outputs", MODES, ids=str)
def test_kernels_in_stripes_are_the_same(outputs, stripes, monkeypatch):
    model, x = network(), draw(9, 5)
    wanted = planned(model, x, outputs)
    force(monkeypatch, stripes=stripes)
    found = planned(model, x, outputs)
    for layer, kernel in wanted.items():
        assert_close(found[layer], kernel, scale=float(kernel.abs().max()))


def test_kernels_equal_those_of_all_gradients():
    model, x = network(), draw(9, 5)
    J = torch.cat(list(tangent_features(model, x).values()), 2)
    total = tangent_kernels(model, x).total
    assert_close(total, full_kernel(J, J), scale=float(total.abs().max()))


@pytest.mark.parametrize("outputs", MODES, ids=str)
def test_kernels_are_exactly_symmetric(outputs):
    model, x = network().float(), draw(33, 5, dtype=torch.float32)
    for kernel in tangent_kernels(model, x, outputs=outputs).values():
        matrix = kernel.flatten(2).flatten(0, 1) if outputs == "full" else kernel
        assert torch.equal(matrix, matrix.T)


def test_kernels_between_two_sets_are_blocks_of_the_whole():
    model, x = network(), draw(9, 5)
    between = tangent_kernels(model, x[:4], other=x[4:])
    for layer, kernel in tangent_kernels(model, x).items():
        assert_close(between[layer], kernel[:4, :, 4:], scale=float(kernel.abs().max()))


def test_any_tile_gives_the_same(monkeypatch):
    model, x, other = network(), draw(7, 5), draw(5, 5)
    wanted = planned(model, x, other=other)
    force(monkeypatch, tile_bytes=2 * 72)  # two pairs of examples
    found = planned(model, x, other=other)
    for layer, kernel in wanted.items():
        assert_close(found[layer], kernel, scale=float(kernel.abs().max()))


class Longest(nn.Module):
    """As many positions as the longest example has."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(5, 4, bias=False)

    def forward(self, x):
        length = int((x.abs().sum(2) > 0).sum(1).max())
        return self.inner(x[:, :length]).tanh().sum(1)


def test_examples_with_more_positions_than_the_first_come_out_symmetric_too():
    torch.manual_seed(0)
    model, x = Longest(), draw(21, 3, 5, dtype=torch.float32)
    x[0, 1:] = 0.0
    kernel = planned(model, x, check=False)["inner"].reshape(84, 84)  # the first one plans
    assert torch.equal(kernel, kernel.T)
