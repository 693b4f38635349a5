"""Every method of every kind of factors against gradients that are written out."""

from math import prod

import pytest
import torch
from torch import nn
from torch.nn import functional

from theodolite.engine import factors as module
from theodolite.engine import gradient_sums
from theodolite.engine.batches import even_spans
from theodolite.engine.contract import Contraction, KernelBlock
from theodolite.engine.factors import (
    DenseFactors,
    LookupFactors,
    MixedFactors,
    OuterFactors,
    squared_norms_of,
)
from theodolite.engine.patches import PatchGeometry

N, C, T = 7, 3, 4


def draw(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def tokens(seed=0):
    found = torch.randint(0, 5, (N, T), generator=torch.Generator().manual_seed(seed))
    found[0, 2:] = -1
    return found


def outer(outputs, positions=T, *, bias=False, transposed=False):
    a, b = draw(N, positions, 6), draw(N, outputs, C, positions, seed=1)
    J = torch.einsum("nkct,ntd->nkcd", b, a)
    names, shape = ("weight", "bias") if bias else ("weight",), (6, C) if transposed else (C, 6)
    wanted = {"weight": J.mT if transposed else J}
    if bias:
        wanted["bias"] = b.sum(3)
    return OuterFactors(names, a, b, shape=shape, transposed=transposed), wanted


def convolution(outputs, stride=1, bias=True):
    images, kernel = draw(N, 2, 5, 4), draw(C, 2, 3, 3)
    b = draw(N, outputs, *functional.conv2d(images, kernel, stride=stride, padding=1).shape[1:])
    rows = []
    for image, grads in zip(images, b, strict=True):
        weight = kernel.clone().requires_grad_()
        result = functional.conv2d(image[None], weight, stride=stride, padding=1)
        for grad in grads:
            rows += torch.autograd.grad(result, weight, grad[None], retain_graph=True)
    geometry = PatchGeometry.of(2, 3, stride, 1)
    wanted = {"weight": torch.stack(rows).view(N, outputs, *kernel.shape)}
    names = ("weight", "bias") if bias else ("weight",)
    if bias:
        wanted["bias"] = b.flatten(3).sum(3)
    found = OuterFactors(names, images, b.flatten(3), geometry=geometry, shape=kernel.shape)
    return found, wanted


def lookup(outputs):
    picked, b = tokens(), draw(N, outputs, 6, T)
    b = b * (picked >= 0)[:, None, None]
    hot = functional.one_hot(picked.clamp(min=0), 5).double()
    return LookupFactors(("weight",), picked, b, 5), {
        "weight": torch.einsum("nkdt,ntr->nkrd", b, hot)
    }


def mixed(outputs):
    one, table = lookup(outputs)
    a, b = draw(N, 2, 6, seed=2), draw(N, outputs, 5, 2, seed=3)
    both = table["weight"] + torch.einsum("nkct,ntd->nkcd", b, a)
    return MixedFactors(OuterFactors(("weight",), a, b, shape=(5, 6)), one), {"weight": both}


def dense(outputs):
    rows = draw(N, outputs, 8)
    return DenseFactors(("weight",), [rows[:, :, :5], rows[:, :, 5:]], (2, 4)), {
        "weight": rows.view(N, outputs, 2, 4)
    }


KINDS = {
    "one position": lambda c: outer(c, 1),
    "one position with a bias": lambda c: outer(c, 1, bias=True),
    "positions": outer,
    "positions with a bias": lambda c: outer(c, bias=True),
    "transposed": lambda c: outer(c, transposed=True),
    "convolution": convolution,
    "convolution with stride": lambda c: convolution(c, stride=2),
    "convolution without a bias": lambda c: convolution(c, bias=False),
    "lookup": lookup,
    "mixed": mixed,
    "dense": dense,
}
kinds = pytest.mark.parametrize("kind", KINDS)
outputs_of = pytest.mark.parametrize("outputs", [1, 3])


@pytest.fixture(params=[0, 10**9], ids=["gradients", "factors"])
def _forced(request, monkeypatch):
    """Gradients are formed wherever there are positions, or nowhere."""
    monkeypatch.setitem(module._PRODUCTS_PER_ENTRY, "cpu", request.param)


def flat(wanted, outputs):
    return torch.cat([value.reshape(N, outputs, -1) for value in wanted.values()], 2)


def unpacked(found, rows):
    """Rows of entries in the order of the parameters' own."""
    parts = [found.unpack(row) for row in rows.reshape(-1, rows.shape[-1])]
    entries = [torch.cat([part.reshape(-1) for part in own.values()]) for own in parts]
    return torch.stack(entries).view(rows.shape)


@kinds
@outputs_of
@pytest.mark.usefixtures("_forced")
def test_gradients_and_norms(kind, outputs):
    found, wanted = KINDS[kind](outputs)
    rows = flat(wanted, outputs)
    assert (len(found), found.output_count, found.entries) == rows.shape
    torch.testing.assert_close(unpacked(found, found.gradients()), rows)
    torch.testing.assert_close(found.squared_norms(), rows.square().sum(2))
    shapes = {name: value.shape[2:] for name, value in wanted.items()}
    assert {n: v.shape for n, v in found.unpack(found.gradients()[0, 0]).items()} == shapes


@kinds
@outputs_of
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize(
    "ranges", [[(0, 7)], [(0, 2), (2, 4), (4, 6)], [(1, 2), (2, 6)], [(0, 2), (5, 7)]], ids=str
)
@pytest.mark.usefixtures("_forced")
def test_weighted_sums_of_ranges(kind, outputs, weighted, ranges):
    found, wanted = KINDS[kind](outputs)
    weights = draw(N, outputs, seed=5)
    ranges = [slice(*pair) for pair in ranges]
    rows = flat(wanted, outputs) * (weights.unsqueeze(2) if weighted else 1.0)
    sums = found.weighted_sums(ranges, weights if weighted else None)
    expected = torch.stack([rows[part].sum((0, 1)) for part in ranges])
    torch.testing.assert_close(unpacked(found, sums), expected)


@kinds
@pytest.mark.usefixtures("_forced")
def test_slices_are_those_of_the_whole(kind):
    found, _ = KINDS[kind](3)
    parts = [found[rows] for rows in found.spans(3 * found.working_bytes)]
    assert [len(part) for part in parts] == [3, 3, 1]
    assert prod(parts[0].gradients().shape) == 3 * 3 * found.entries
    joined = torch.cat([part.squared_norms() for part in parts])
    torch.testing.assert_close(joined, found.squared_norms())


@kinds
@outputs_of
@pytest.mark.parametrize("route", ["positions", "gradients"])
@pytest.mark.parametrize("tile", [2**20, 500])
def test_gram_matrices(kind, outputs, route, tile):
    found, wanted = KINDS[kind](outputs)
    if isinstance(found, OuterFactors):
        found.route = route
    rows = flat(wanted, outputs)
    exact = torch.einsum("xip,yjp->xiyj", rows, rows)
    left, right = found[:3], found[3:]
    block = KernelBlock(torch.full((3, outputs, 4, outputs), torch.nan).double())
    Contraction(tile, 3, symmetric=False).add(left, right, block, overwrite=True)
    torch.testing.assert_close(block.values, exact[:3, :, 3:])
    whole = KernelBlock(torch.ones(N, outputs, N, outputs).double())
    Contraction(tile, 3, symmetric=True).add(found, found, whole, overwrite=False)
    whole.mirror(3)
    torch.testing.assert_close(whole.values, exact + 1)


def test_a_table_that_some_examples_only_look_up():
    both, wanted = mixed(2)
    rows = flat(wanted, 2)
    alone, table = lookup(2)
    block = KernelBlock(torch.zeros(N, 2, N, 2).double())
    Contraction(2**20, N, symmetric=False).add(both, alone, block, overwrite=True)
    exact = torch.einsum("xip,yjp->xiyj", rows, flat(table, 2))
    torch.testing.assert_close(block.values, exact)
    Contraction(2**20, N, symmetric=False).add(alone, both, block, overwrite=True)
    torch.testing.assert_close(block.values, exact.permute(2, 3, 0, 1))


@pytest.mark.parametrize("scale", [1e-30, 1e-20, 1.0, 1e18, 1e25])
@pytest.mark.parametrize("length", [100, 4000])  # few numbers are added in float64
def test_norms_of_very_small_and_large_numbers(scale, length):
    rows = draw(4, 1, length).float() * scale
    wanted = rows.double().square().sum(2)
    torch.testing.assert_close(squared_norms_of(rows), wanted, rtol=1e-5, atol=0)


def test_norms_that_are_not_finite_stay_so():
    for length in (2, 10_000):
        assert squared_norms_of(torch.tensor([1.0, torch.inf]).repeat(length // 2)).isinf()


class Skipping(nn.Module):
    """Leaves its middle layer out for small batches."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.middle, self.last = (nn.Linear(4, 4) for _ in range(3))
        self.double()

    def forward(self, x):
        hidden = self.first(x).tanh()
        return self.last(self.middle(hidden).tanh() if len(x) == 4 else hidden)


@pytest.mark.parametrize("labels", [[0] * 11, [0, 0, 1, 1, 1, 1, 1, 2, 2, 2, 2]], ids=str)
def test_a_layer_of_some_batches_only(labels):
    model, x = Skipping(), draw(11, 4)
    labels = torch.tensor(labels)
    found = gradient_sums(model, x, labels, batch_size=4, check=False)
    rows = []
    spans = [slice(part.start, part.stop) for part in even_spans(11, 4)]
    assert {part.stop - part.start for part in spans} == {3, 4}
    for batch in spans:
        losses = functional.cross_entropy(model(x[batch]), labels[batch], reduction="none")
        for loss in losses:
            weight = model.middle.weight
            (row,) = torch.autograd.grad(loss, weight, retain_graph=True, allow_unused=True)
            rows.append(torch.zeros(20) if row is None else None)
            if row is not None:
                (bias,) = torch.autograd.grad(loss, model.middle.bias, retain_graph=True)
                rows[-1] = torch.cat([row.flatten(), bias])
    rows = torch.stack([row.double() for row in rows])
    sums = found["middle"]
    torch.testing.assert_close(sums.norms, rows.norm(dim=1))
    for label, square in enumerate(sums.classes.sum_square):
        torch.testing.assert_close(square, rows[labels == label].sum(0).square().sum())
    torch.testing.assert_close(sums.overall.sum_square, rows.sum(0).square().sum())
