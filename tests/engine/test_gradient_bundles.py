"""Layers that are treated together have the numbers that they have one by one."""

from collections import Counter

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from theodolite.engine import _example_gradients as engine
from theodolite.engine import _gradient_bundles as bundles
from theodolite.engine import _gradient_samples as samples
from theodolite.engine import gradient_sums
from theodolite.errors import CaptureError

LABELS = torch.tensor([0, 1, 1, 2, 0, 1, 2, 1, 1, 0])  # classes of 3, 5 and 2


class Block(nn.Module):
    """A layer of a transformer in small: a norm, a matrix stored as (C, D), one as (D, C)."""

    def __init__(self, width=4):
        super().__init__()
        self.norm, self.first = nn.LayerNorm(width), nn.Linear(width, 6)
        self.second = nn.Parameter(torch.randn(6, width) / 3)
        self.bias = nn.Parameter(torch.randn(width))

    def forward(self, x):
        hidden = torch.tanh(self.first(self.norm(x)))
        flat = torch.addmm(self.bias, hidden.reshape(-1, 6), self.second)
        return x + flat.view(x.shape)


class Blocks(nn.Module):
    """Some layers on sequences; ``lengths`` cuts the sequence before each of them."""

    def __init__(self, lengths=(5, 5, 5)):
        super().__init__()
        torch.manual_seed(0)
        self.blocks, self.head = nn.ModuleList(Block() for _ in lengths), nn.Linear(4, 3)
        self.lengths = lengths

    def forward(self, x):
        for block, length in zip(self.blocks, self.lengths, strict=True):
            x = block(x[:, :length])
        return self.head(x.mean(1))


def measured(model, monkeypatch, *, stacked, **options):
    with monkeypatch.context() as patch:
        if not stacked:
            patch.setattr(bundles, "_STACKED", {"cpu": 0})
        x = torch.randn(10, 5, 4, generator=torch.Generator().manual_seed(1))
        dtype = next(model.parameters()).dtype
        return gradient_sums(model, x.to(dtype), LABELS, **options)


def assert_same(found, expected, rtol=1e-12):
    assert found.measured == expected.measured == "in batches"
    for mine, theirs in ((found.stacked, expected.stacked),):
        torch.testing.assert_close(mine.norms, theirs.norms, rtol=rtol, atol=1e-14)
        for one, other in ((mine.classes, theirs.classes), (mine.overall, theirs.overall)):
            torch.testing.assert_close(one.sum_square, other.sum_square, rtol=rtol, atol=1e-14)


@pytest.mark.parametrize("by_factors", [True, False])
@pytest.mark.parametrize("limit", [2**25, 2**11], ids=["whole", "in chunks"])
@pytest.mark.parametrize("lengths", [(5, 5, 5), (5, 5, 2), (1, 1, 1)], ids=str)
def test_stacks_have_the_numbers_of_single_layers(by_factors, limit, lengths, monkeypatch):
    monkeypatch.setattr(engine, "prefers_factors", lambda *_: by_factors)
    monkeypatch.setattr(engine, "_CHUNK_BYTES", {"cpu": limit})
    model = Blocks(lengths).double()
    expected = measured(model, monkeypatch, stacked=False, batch_size=7)
    assert_same(measured(model, monkeypatch, stacked=True, batch_size=7), expected)


@pytest.mark.parametrize("large", [True, False])
def test_stacks_are_checked(large, monkeypatch):
    if large:
        monkeypatch.setattr(samples, "LARGE", 0)
    model = Blocks().double()
    expected = measured(model, monkeypatch, stacked=False, check=False)
    assert_same(measured(model, monkeypatch, stacked=True), expected)
    correct = bundles.OuterStack._product
    monkeypatch.setattr(  # gradients of the third layer with inputs of the first
        bundles.OuterStack, "_product", lambda self, a, b: correct(self, a, b.flip(0))
    )
    with pytest.raises(CaptureError, match=r"'blocks.*as autograd gives them"):
        measured(Blocks().double(), monkeypatch, stacked=True)


def test_layers_of_very_different_gradients_keep_their_digits(monkeypatch):
    """Float32 cannot square numbers below 1e-19; one layer must not set the scale of another."""

    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.layers = nn.ModuleList(nn.Linear(4, 4, bias=False) for _ in range(2))

        def forward(self, x):
            x = x.mean(1)
            return 1e-25 * self.layers[0](x) + self.layers[1](x)

    model = Scaled()
    expected = measured(model, monkeypatch, stacked=False)
    found = measured(model, monkeypatch, stacked=True)
    assert float(found["layers.0"].norms.min()) > 0
    for layer in ("layers.0", "layers.1"):
        torch.testing.assert_close(found[layer].norms, expected[layer].norms, rtol=1e-6, atol=0)


def test_a_layer_of_some_batches_only_is_measured_in_batches(monkeypatch):
    class Skipping(Blocks):
        def forward(self, x):
            blocks = self.blocks if x.shape[0] == 6 else self.blocks[:2]
            for block in blocks:
                x = block(x)
            return self.head(x.mean(1))

    torch.manual_seed(0)
    model = Skipping().double()
    norms = [nn.LayerNorm(4, elementwise_affine=False) for _ in range(3)]
    for block, norm in zip(model.blocks, norms, strict=True):  # matrices alone
        block.norm, block.first.bias = norm, None
        block.bias.requires_grad_(False)
    x = torch.randn(11, 5, 4, generator=torch.Generator().manual_seed(1)).double()
    found = gradient_sums(model, x, torch.zeros(11, dtype=torch.long), batch_size=6, check=False)
    assert found.measured == "in batches"
    assert int(found["blocks.1"].norms.count_nonzero()) == 11
    assert int(found["blocks.2"].norms.count_nonzero()) == 6


class Operations(TorchDispatchMode):
    """Counts what is dispatched."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.counts[func._schema.name] += not func.is_view
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("check", [True, False])
def test_operations_beside_the_passes_do_not_grow_with_the_layers(check, monkeypatch):
    """Twice the layers take twice the operations of the passes, and no more of all others."""
    monkeypatch.setattr(samples, "LARGE", 0)

    def beside_passes(depth):
        model = Blocks((5,) * depth).double()
        measured(model, monkeypatch, stacked=True, check=check)  # where examples lie is known then
        with Operations() as ours:
            measured(model, monkeypatch, stacked=True, check=check)
        x = torch.randn(10, 5, 4, dtype=torch.float64)
        with Operations() as plain:
            functional.cross_entropy(model(x), LABELS).backward()
        return ours.counts.total() - (1 + check) * plain.counts.total()

    assert beside_passes(12) <= beside_passes(6)
