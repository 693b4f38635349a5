"""Products of a matrix with itself, and in another precision: the same kernels."""

import pytest
import torch
from threadpoolctl import ThreadpoolController
from torch import nn

from tests.reference.tangents import full_kernel, tangent_features
from tests.tolerances import assert_close
from theodolite.engine import _products, tangent_kernels
from theodolite.engine._contractions import KernelBlock
from theodolite.engine._kernel_engine import BatchList, prepare
from theodolite.engine._plan import EngineOptions
from theodolite.engine._products import Products, gram_into, is_gram, on_one_thread
from theodolite.engine._tangents import kernels_of
from theodolite.engine.state import untouched

CPU = torch.device("cpu")
MODES = ["full", "trace", "diagonal", 1]


@pytest.fixture
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with ThreadpoolController().limit(limits=1, user_api="blas"):
        yield
    torch.set_num_threads(threads)


def draw(*shape, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=dtype)


def network():
    torch.manual_seed(0)
    layers = [nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 6, bias=False), nn.Tanh(), nn.Linear(6, 3)]
    return nn.Sequential(*layers).double()


def planned(model, x, outputs="full", **options):
    """Kernels and the contractions of their layers, as options decide."""
    with untouched(model):
        data = BatchList.of(x, None, None, CPU)
        request = EngineOptions(outputs=outputs, **options)
        engine = prepare(model, data, request)
        plan = engine.plan(len(x), len(x), True, len(engine.layers))
        contractions = [engine.contraction(plan, layer, len(x)) for layer in engine.layers]
        return kernels_of(engine, data, None), contractions


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("shape", [(1, 1), (1, 4), (5, 1), (7, 3), (130, 65)], ids=str)
def test_the_product_is_right_and_exactly_symmetric(one_thread, shape, dtype):
    rows = draw(*shape, dtype=dtype)
    whole = torch.full((shape[0] + 2, shape[0] + 3), 4.0, dtype=dtype)
    target = whole[1:-1, 2:-1]
    gram_into(target, rows)
    assert_close(target.double(), rows.double() @ rows.double().T, dtype=dtype)
    assert torch.equal(target, target.T)
    target.zero_()
    assert int((whole == 4.0).sum()) == 5 * shape[0] + 6  # nothing beside it was touched


def test_rows_that_lie_apart_are_multiplied_alike(one_thread):
    rows = draw(6, 2, 5)[:, 1]
    assert is_gram(rows, rows)
    assert_close(Products().of(rows, rows), rows @ rows.T)


def test_only_a_matrix_with_itself_is_a_gram_matrix(one_thread):
    rows = draw(6, 5)
    assert is_gram(rows, rows)
    assert is_gram(rows, rows[:])
    assert not is_gram(rows[:3], rows[3:])
    assert not is_gram(rows[:3], rows)
    assert not is_gram(rows[:5], rows[:5].T)
    assert not is_gram(rows[None], rows[None])
    assert not is_gram(rows.half(), rows.half())


def test_several_threads_are_left_to_pytorch():
    threads = torch.get_num_threads()
    rows = draw(6, 5)
    try:
        torch.set_num_threads(2)
        assert not on_one_thread(CPU)
        assert not is_gram(rows, rows)
        torch.set_num_threads(1)
        with ThreadpoolController().limit(limits=2, user_api="blas"):
            assert not is_gram(rows, rows)
    finally:
        torch.set_num_threads(threads)


def test_a_sum_of_products_is_added_to(one_thread):
    rows, start = draw(6, 5), draw(6, 6)
    total = start.clone()
    Products().into(total, rows, rows, False)
    assert_close(total, start + rows @ rows.T)


@pytest.mark.parametrize("outputs", MODES, ids=str)
def test_whole_kernels_equal_those_in_parts(one_thread, outputs):
    model, x = network(), draw(9, 5)
    found, contractions = planned(model, x, outputs)
    assert all(entry.whole and entry.span == 9 for entry in contractions)
    parts, contractions = planned(model, x, outputs, parts=4)
    assert not any(entry.whole for entry in contractions)
    for layer, kernel in parts.items():
        assert_close(found[layer], kernel, scale=float(kernel.abs().max()))


def test_whole_kernels_equal_those_of_all_gradients(one_thread):
    model, x = network(), draw(9, 5)
    J = torch.cat(list(tangent_features(model, x).values()), 2)
    total = tangent_kernels(model, x).total
    assert_close(total, full_kernel(J, J), scale=float(total.abs().max()))


@pytest.mark.parametrize("outputs", MODES, ids=str)
def test_whole_kernels_are_exactly_symmetric(one_thread, outputs):
    model, x = network().float(), draw(33, 5, dtype=torch.float32)
    mode = outputs if isinstance(outputs, str) else "trace"
    for kernel in tangent_kernels(model, x, outputs=outputs).values():
        for matrix in KernelBlock(kernel, mode).matrices():
            assert torch.equal(matrix, matrix.T)


def test_kernels_between_two_sets_are_blocks_of_the_whole(one_thread):
    model, x = network(), draw(9, 5)
    between = tangent_kernels(model, x[:4], other=x[4:])
    for layer, kernel in tangent_kernels(model, x).items():
        assert_close(between[layer], kernel[:4, :, 4:], scale=float(kernel.abs().max()))


def test_a_kernel_that_would_outgrow_a_tile_is_made_in_parts(one_thread):
    model, x = network(), draw(9, 5)
    wanted, _ = planned(model, x)
    found, contractions = planned(model, x, tile_bytes=9 * 9 * 3 * 8 - 1)
    assert not any(entry.whole for entry in contractions)
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


def test_examples_with_more_positions_than_the_first_come_out_symmetric_too(one_thread):
    torch.manual_seed(0)
    model, x = Longest(), draw(21, 3, 5, dtype=torch.float32)
    x[0, 1:] = 0.0
    kernels, [contraction] = planned(model, x)
    assert contraction.whole  # for all the plan knows, which has seen the first example only
    kernel = kernels["inner"].reshape(84, 84)
    assert torch.equal(kernel, kernel.T)


def test_too_large_numbers_become_infinite_as_in_pytorch(one_thread):
    rows = torch.full((3, 4), 1e30)  # a warning would be an error here
    target = torch.empty(3, 3)
    gram_into(target, rows)
    assert torch.equal(target, rows @ rows.T)


EPS = 2 * torch.finfo(torch.float32).eps


@pytest.fixture
def wide(monkeypatch):
    """As if doubles were fast here, and every sum long."""
    monkeypatch.setattr(_products, "_doubles_are_fast", lambda device: True)
    monkeypatch.setattr(_products, "_LONG", 2)


def wide_network():
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
    model, x = wide_network(), examples(7)
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
    model, x, other = wide_network(), examples(7), examples(5, seed=2)
    whole = tangent_kernels(model, x, other=other)
    data, second = (BatchList.of(given, None, None, torch.device("cpu")) for given in (x, other))
    request = EngineOptions(tile_bytes=2 * 72)  # two pairs of examples
    cut = kernels_of(prepare(model, data, request), data, second)
    assert worst(cut, whole) < EPS  # products of the inputs stay in float32


def test_kernels_are_symmetric(wide):
    for kernel in tangent_kernels(wide_network(), examples(7)).values():
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
