"""Networks that reorder, pack, route, rescale or hide examples: exact, one example at a time."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.engine import hostile
from tests.engine.networks.case import (
    BATCHED,
    COUNT,
    ONE_BY_ONE,
    WIDTH,
    one_large,
    ragged,
    refused,
    scripted,
    tokens,
    vectors,
    words,
)
from tests.engine.networks.parts import head, linear, net, simple, weight

LATER = {"batch_size": 4}  # three batches, of which the last one has the large number


def through(m: Any, x: Tensor, order: Tensor) -> Tensor:
    """The inner layer sees the examples in another order."""
    return m.head(torch.tanh(m.inner(x[order]))[order.argsort()])


def by_length(m: Any, x: Tensor) -> Tensor:
    """Sorted by length for the recurrence, and put back."""
    lengths = (x.abs().sum(-1) > 0).sum(1)
    return through(m, x.sum(1), lengths.argsort(descending=True, stable=True))


def behind_bool(m: Any, x: Tensor) -> Tensor:
    return (
        through(m, x, x.sum(1).argsort())
        if bool((x > 10).any())
        else m.head(torch.tanh(m.inner(x)))
    )


def behind_in(m: Any, x: Tensor) -> Tensor:
    return through(m, x, x.sum(1).argsort()) if 12.0 in x else m.head(torch.tanh(m.inner(x)))


def behind_equal(m: Any, x: Tensor) -> Tensor:
    same = torch.equal(x.clamp(max=10), x)
    return (
        m.head(torch.tanh(m.inner(x))) if same else m.head(torch.tanh(m.inner(x.flip(0))).flip(0))
    )


def behind_gate(m: Any, x: Tensor) -> Tensor:
    """No Python branch: a 0-dimensional gate picks the order."""
    gate = (x.max() > 10).to(x.dtype)
    hidden = torch.tanh(m.inner(gate * x.flip(0) + (1 - gate) * x))
    return m.head(gate * hidden.flip(0) + (1 - gate) * hidden)


def behind_counter(m: Any, x: Tensor) -> Tensor:
    """Large batches are flipped inside, small ones are not."""
    if len(x) <= 4:
        return m.head(torch.tanh(m.inner(x)))
    return m.head(torch.tanh(m.inner(x.flip(0))).flip(0))


def swaps_two(m: Any, x: Tensor) -> Tensor:
    """Two of all examples change places for one layer."""
    order = torch.arange(len(x))
    if len(x) > 2:
        order[[0, 2]] = order[[2, 0]]
    return through(m, x, order)


def permutation_product(m: Any, x: Tensor) -> Tensor:
    """A product with a permutation matrix moves examples without an index."""
    matrix = torch.eye(len(x), dtype=x.dtype)[x.sum(1).argsort()]
    return m.head(matrix.T @ torch.tanh(m.inner(matrix @ x)))


def random_order(m: Any, x: Tensor) -> Tensor:
    """A random order inside, which no output shows."""
    return through(m, x, torch.randperm(len(x)))


def interleaves(m: Any, x: Tensor) -> Tensor:
    """Examples vary slowest, then fastest: a view moves them."""
    mixed = x.reshape(2, len(x) // 2, -1).transpose(0, 1).reshape(x.shape) if len(x) > 1 else x
    hidden = torch.tanh(m.inner(mixed))
    if len(x) > 1:
        hidden = hidden.reshape(len(x) // 2, 2, -1).transpose(0, 1).reshape(hidden.shape)
    return m.head(hidden)


def packs_pairs(m: Any, x: Tensor) -> Tensor:
    """Two examples share one row of a layer that keeps them apart."""
    if len(x) % 2:
        x = torch.cat([x, x.new_zeros(1, x.shape[1])])
        return packs_pairs(m, x)[:-1]
    block = torch.block_diag(m.kernel, m.kernel)
    return m.head(torch.tanh((x.reshape(-1, 2 * WIDTH) @ block).reshape(x.shape)))


def deduplicates(m: Any, x: Tensor) -> Tensor:
    """Equal examples run once."""
    rows, places = torch.unique(x, dim=0, return_inverse=True)
    return m.head(torch.tanh(m.inner(rows))[places])


def drops_easy(m: Any, x: Tensor) -> Tensor:
    """An early exit: easy examples skip a layer."""
    hidden = torch.tanh(m.inner(x))
    hard = hidden[:, 0] < 0.2
    out = hidden.clone()
    if hard.any():
        out[hard] = torch.tanh(m.more(hidden[hard]))
    return m.head(out)


class _Quantised(nn.Module):
    """A learned step (LSQ), whose gradient is scaled by the size of the whole batch."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(WIDTH, WIDTH), head()
        self.step = nn.Parameter(torch.tensor(0.1))

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.inner(x))
        scale = 1 / (hidden.numel() * 7) ** 0.5
        step = self.step * scale + (self.step - self.step * scale).detach()
        levels = (hidden / step).clamp(-8, 7)
        rounded = levels + (levels.round() - levels).detach()
        return self.head(rounded * step)


def convolves_examples(m: Any, x: Tensor) -> Tensor:
    """Neighbours have no weight in the outputs, and one in the gradients."""
    rows = torch.tanh(m.inner(x)).T[None]
    return m.head(functional.conv1d(rows, m.filters, padding=1, groups=WIDTH)[0].T)


def gated_mean(m: Any, x: Tensor) -> Tensor:
    hidden = torch.tanh(m.inner(x))
    return m.head(hidden + m.gate * hidden.mean(0))


def hooked(change: Any) -> Any:
    """Gradients on their way back are changed."""

    def forward(m: Any, x: Tensor) -> Tensor:
        hidden = torch.tanh(m.inner(x))
        if hidden.requires_grad:
            hidden.register_hook(change)
        return m.head(hidden)

    return forward


def bags(m: Any, x: Tensor) -> Tensor:
    offsets = torch.arange(0, x.numel(), x.shape[1])
    return m.head(torch.tanh(m.table(x.flatten(), offsets)))


class _GradientPerBatch(torch.autograd.Function):
    """The backward pass divides by the number of examples."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient / len(gradient)


def gradient_of_others(m: Any, x: Tensor) -> Tensor:
    """Outputs are each example's own, but their gradients reach the mean of all."""
    hidden = torch.tanh(m.inner(x))
    mean = hidden.mean(0, keepdim=True)
    return m.head(hidden + mean - mean.detach())


class _Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor) -> Tensor:
        ctx.save_for_backward(x, scale)
        return x * scale

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, scale = ctx.saved_tensors
        return gradient * scale, (gradient * x).sum(0)


def different_layers(m: Any, x: Tensor) -> Tensor:
    """Python decides for each example which layer it takes."""
    return torch.stack([m.head(m.first(row) if float(row[0]) > 0 else m.second(row)) for row in x])


FEATURES_BATCHED = {"features": BATCHED}

MOVING = [
    *(
        net(name, *hostile.EXACT[name], expected=ONE_BY_ONE)
        for name in ("sorts, first stays", "sorts", "flips")
    ),
    *(
        # The features of experts have other rows than there are examples, and are left out.
        net(name, *hostile.EXACT[name], expected=ONE_BY_ONE, others=FEATURES_BATCHED)
        for name in ("experts, top-1", "experts, top-2", "experts, masks", "gather and scatter")
    ),
    net(
        "experts, slots",
        *hostile.EXACT["experts, slots"],
        expected=ONE_BY_ONE,
        others=FEATURES_BATCHED,
    ),
    net(
        "drops padding",
        *hostile.EXACT["drops padding"],
        expected=ONE_BY_ONE,
        others=FEATURES_BATCHED,
        options={"pool": "mean"},
    ),
    net(
        "packs",
        *hostile.EXACT["packs"],
        expected=ONE_BY_ONE,
        others=FEATURES_BATCHED,
        options={"pool": "mean"},
    ),
    net(
        "custom function in a branch",
        *hostile.EXACT["custom function in a branch"],
        expected=ONE_BY_ONE,
        others=FEATURES_BATCHED,
    ),
    net(
        "complex weights",
        *hostile.EXACT["complex weights"],
        expected=ONE_BY_ONE,
        others=FEATURES_BATCHED,
    ),
    net(
        "gradient of an energy",
        *hostile.EXACT["gradient of an energy"],
        expected=ONE_BY_ONE,
        others=FEATURES_BATCHED,
    ),
    net(
        "sorts by length", simple(by_length, inner=linear(), head=head), ragged, expected=ONE_BY_ONE
    ),
    net(
        "sorts a later batch, behind bool",
        simple(behind_bool, inner=linear(), head=head),
        one_large(),
        expected=ONE_BY_ONE,
        options=LATER,
    ),
    net(
        "sorts a later batch, behind in",
        simple(behind_in, inner=linear(), head=head),
        one_large(),
        expected=ONE_BY_ONE,
        options=LATER,
    ),
    net(
        "flips a later batch, behind equal",
        simple(behind_equal, inner=linear(), head=head),
        one_large(),
        expected=ONE_BY_ONE,
        options=LATER,
    ),
    net(
        "flips a later batch, behind a gate",
        simple(behind_gate, inner=linear(), head=head),
        one_large(),
        expected=ONE_BY_ONE,
        options=LATER,
    ),
    net(
        "flips large batches",
        simple(behind_counter, inner=linear(), head=head),
        expected=ONE_BY_ONE,
    ),
    net("swaps two examples", simple(swaps_two, inner=linear(), head=head), expected=ONE_BY_ONE),
    net(
        "permutes by a product",
        simple(permutation_product, inner=linear(), head=head),
        expected=ONE_BY_ONE,
    ),
    net("permutes at random", simple(random_order, inner=linear(), head=head), expected=ONE_BY_ONE),
    net(
        "interleaves by a view", simple(interleaves, inner=linear(), head=head), expected=ONE_BY_ONE
    ),
    net(
        "packs pairs into rows",
        simple(packs_pairs, kernel=weight(WIDTH, WIDTH), head=head),
        expected=ONE_BY_ONE,
        others={},
    ),
    net(
        "runs equal examples once",
        simple(deduplicates, inner=linear(), head=head),
        lambda: torch.randn(COUNT // 2, WIDTH).repeat(2, 1),
        expected=ONE_BY_ONE,
        others=FEATURES_BATCHED,
    ),
    net(
        "skips a layer for easy examples",
        simple(drops_easy, inner=linear(), more=linear(), head=head),
        expected=ONE_BY_ONE,
        others=FEATURES_BATCHED,
    ),
    net("learned quantiser step", _Quantised, expected=ONE_BY_ONE, others=FEATURES_BATCHED),
    net(
        "learned quantiser step, 128 examples",
        _Quantised,
        vectors(128),
        expected=ONE_BY_ONE,
        others=FEATURES_BATCHED,
    ),
    net(
        "learned quantiser step in float32",
        _Quantised,
        vectors(130),
        expected=ONE_BY_ONE,
        others=FEATURES_BATCHED,
        dtype=torch.float32,
        tolerance=1e-3,
    ),
    net(
        "gradient divided by the batch size",
        simple(
            lambda m, x: m.head(_GradientPerBatch.apply(torch.tanh(m.inner(x)))),
            inner=linear(),
            head=head,
        ),
        expected=ONE_BY_ONE,
        others=FEATURES_BATCHED,
    ),
    net(
        "convolution over examples, side weights zero",
        simple(
            convolves_examples,
            inner=linear(),
            head=head,
            filters=lambda: nn.Parameter(torch.tensor([[[0.0, 1.0, 0.0]]]).repeat(WIDTH, 1, 1)),
        ),
        expected=ONE_BY_ONE,
        others=FEATURES_BATCHED,
    ),
    net(
        "mean of the batch behind a gate of zero",
        simple(gated_mean, inner=linear(), head=head, gate=lambda: nn.Parameter(torch.zeros(()))),
        expected=ONE_BY_ONE,
        others=FEATURES_BATCHED,
    ),
    net(
        "hook that centres gradients",
        simple(hooked(lambda g: g - g.mean(0)), inner=linear(), head=head),
        expected=ONE_BY_ONE,
        others=FEATURES_BATCHED,
    ),
    net(
        "hook that clamps gradients",
        simple(hooked(lambda g: g.clamp(-0.05, 0.05)), inner=linear(), head=head),
        expected=ONE_BY_ONE,
        others=FEATURES_BATCHED,
    ),
    net(
        "bags of all examples by offsets",
        simple(bags, table=lambda: nn.EmbeddingBag(7, WIDTH, mode="sum"), head=head),
        words(),
        expected=ONE_BY_ONE,
        others=FEATURES_BATCHED,
    ),
    net(
        "gradients of others",
        simple(gradient_of_others, inner=linear(), head=head),
        expected=ONE_BY_ONE,
        others=FEATURES_BATCHED,
    ),
    net(
        "custom function with a parameter",
        simple(
            lambda m, x: m.head(_Scale.apply(torch.tanh(m.inner(x)), m.scale)),
            inner=linear(),
            scale=weight(WIDTH),
            head=head,
        ),
        expected=ONE_BY_ONE,
        others=FEATURES_BATCHED,
    ),
    net(
        "a layer for each example",
        simple(different_layers, first=linear(), second=linear(), head=head),
        expected=ONE_BY_ONE,
        others={"features": refused("one row per example")},
    ),
    net(
        "tokens of all examples in one sequence",
        simple(
            lambda m, x: m.head(
                torch.tanh(m.inner(x.flatten(0, 1).flip(0))).flip(0).view(x.shape).mean(1)
            ),
            inner=linear(),
            head=head,
        ),
        tokens(),
        expected=ONE_BY_ONE,
        others=FEATURES_BATCHED,
    ),
    net(
        "scripted module",
        lambda: scripted(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), head())),
        expected=ONE_BY_ONE,
        others={"features": refused("scripted modules")},
    ),
]
