"""Networks of all kinds, written by someone who had not seen the check."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.engine.networks.case import (
    BATCHED,
    CLASSES,
    EXACT,
    ONE_BY_ONE,
    WIDTH,
    images,
    one_large,
    refused,
    tokens,
    words,
)
from tests.engine.networks.parts import head, linear, net, simple, weight

COMPANY = refused("depend")
LATER = {"batch_size": 4}
FEATURES_BATCHED = {"features": BATCHED}
MLP = {"inner": linear(), "head": head}


def halts_each(m: Any, x: Tensor) -> Tensor:
    """Adaptive computation in which each example stops by itself."""
    hidden, total, result = x, x.new_zeros(len(x)), torch.zeros_like(x)
    runs = torch.ones(len(x), dtype=torch.bool)
    for _ in range(8):
        if not runs.any():
            break
        hidden = torch.tanh(m.inner(hidden))
        share = torch.sigmoid(9 * m.halt(hidden)).squeeze(1)
        last = runs & (total + share > 0.99)
        result = result + (torch.where(last, 1 - total, share) * runs)[:, None] * hidden
        total, runs = total + share * runs, runs & ~last
    return m.head(result)


def soft_sort(m: Any, x: Tensor) -> Tensor:
    """The features of each example are sorted, softly."""
    values = m.inner(x)[:, :, None]
    distances = (values.transpose(1, 2) - values.sort(1, descending=True)[0]).abs()
    return m.head(((-2 * distances).softmax(-1) @ x[:, :, None])[..., 0])


def neighbours(m: Any, x: Tensor) -> Tensor:
    """Edges to the nearest points of the same set, with indices into all sets."""
    n, t, d = x.shape
    nearest = torch.cdist(x, x).topk(2, largest=False)[1]
    places = (nearest + torch.arange(n)[:, None, None] * t).flatten()
    others = x.reshape(n * t, d)[places].view(n, t, 2, d)
    edges = torch.cat([x[:, :, None].expand_as(others), others - x[:, :, None]], -1)
    return m.head(m.edge(edges.permute(0, 3, 1, 2)).relu().amax(-1).mean(-1))


def merges_tokens(m: Any, x: Tensor) -> Tensor:
    """Tokens are added to those that are most alike."""
    first, second = x[:, ::2], x[:, 1::2]
    best = (first @ second.transpose(1, 2)).argmax(-1)
    merged = second.scatter_add(1, best[..., None].expand_as(first), first)
    return m.head(torch.tanh(m.inner(merged)).mean(1))


def modulated(m: Any, x: Tensor) -> Tensor:
    """Kernels of each example, all of them as groups of one convolution."""
    n = len(x)
    kernels = m.kernels[None] * (m.style(x.mean((2, 3)))[:, None, :, None, None] + 1)
    maps = functional.conv2d(x.view(1, -1, 6, 6), kernels.flatten(0, 1), groups=n)
    return m.head(torch.tanh(maps.view(n, -1)))


def codes(m: Any, x: Tensor) -> Tensor:
    """Vector quantisation with a straight-through gradient."""
    hidden = m.inner(x)
    nearest = m.codes[torch.cdist(hidden, m.codes).argmin(-1)]
    return m.head(hidden + (nearest - hidden).detach() + nearest - nearest.detach())


def pads(m: Any, x: Tensor) -> Tensor:
    """Zeros fill the batch to a size that accelerators like."""
    return m.head(torch.tanh(m.inner(torch.cat([x, x.new_zeros(32 - len(x), WIDTH)]))))[: len(x)]


def shifted_by_all(m: Any, x: Tensor) -> Tensor:
    """A softmax whose exponents are shifted by the largest of the batch: the same numbers."""
    powers = (m.inner(x) - m.inner(x).max()).exp()
    return m.head(powers / powers.sum(1, keepdim=True))


def forgets(m: Any, x: Tensor) -> Tensor:
    """A recurrence whose gradient falls below the range of float32 within forty steps."""
    hidden = torch.tanh(m.inner(x))
    for _ in range(40):
        hidden = torch.tanh(0.1 * m.inner(hidden) + x)
    return m.head(hidden)


def parted(x: Tensor) -> Tensor:
    """Examples with large numbers come first."""
    large = x[:, 0] > 10
    return torch.cat([torch.where(large)[0], torch.where(~large)[0]])


def parts_and_joins(m: Any, x: Tensor) -> Tensor:
    order, result = parted(x), torch.empty(len(x), CLASSES, dtype=x.dtype)
    result[order] = m.head(torch.tanh(m.inner(x[order])))
    return result


def small_branch(m: Any, x: Tensor) -> Tensor:
    """A block behind a small factor, whose gradient is divided by the batch size."""
    hidden = torch.tanh(m.first(x))
    block = m.inner(hidden)
    return m.head(hidden + 1e-5 * (block / len(x) + (block - block / len(x)).detach()))


class _Clipped(torch.autograd.Function):
    """The backward pass clips by the norm of the whole batch."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient / gradient.norm().clamp(min=1e-3)


class _Exchanged(torch.autograd.Function):
    """The backward pass gives the gradient of an example to another."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.flip(0)


def experts_choose(m: Any, x: Tensor) -> Tensor:
    """Every expert takes the half of the batch that it likes best."""
    shares = m.router(x).softmax(-1)
    result = torch.zeros_like(x)
    for index, expert in enumerate((m.first, m.second)):
        gate, chosen = shares[:, index].topk((len(x) + 1) // 2)
        result = result.index_add(0, chosen, gate[:, None] * expert(x[chosen]))
    return m.head(result)


def ghosts(m: Any, x: Tensor) -> Tensor:
    """Batch normalisation of four examples at a time."""
    parts = [p - p.mean(0) for p in m.inner(x).split(4)]
    return m.head(torch.tanh(torch.cat(parts)))


def ranks(m: Any, x: Tensor) -> Tensor:
    """Sorted, multiplied by the rank, and put back."""
    order = x[:, 0].argsort()
    factors = 1 + torch.arange(len(x)) / len(x)
    return m.head((m.inner(x[order]) * factors[:, None].to(x))[order.argsort()])


def low_rank(m: Any, x: Tensor) -> Tensor:
    """Only the first singular direction of the batch is kept."""
    left, sizes, right = torch.linalg.svd(m.inner(x), full_matrices=False)
    return m.head((left[:, :1] * sizes[:1]) @ right[:1])


def hashed(m: Any, x: Tensor) -> Tensor:
    """Attention to the example before, in the order of a hash."""
    order = (x > 0).long().sum(1).argsort(stable=True)
    hidden = m.inner(x[order])
    return m.head((hidden + 0.1 * hidden.roll(1, 0))[order.argsort()])


def counted_words(m: Any, x: Tensor) -> Tensor:
    """Tokens that are frequent in the batch weigh less."""
    counts = torch.bincount(x.flatten(), minlength=7).to(m.table.weight)
    return m.head((m.table(x) / counts[x][..., None].sqrt()).mean(1))


def seeded_by_data(m: Any, x: Tensor) -> Tensor:
    seed = int(x.detach().double().abs().sum() * 1000)
    noise = torch.randn(1, WIDTH, generator=torch.Generator().manual_seed(seed))
    return m.head(m.inner(x) + noise.to(x))


def quantised_in_groups(m: Any, x: Tensor) -> Tensor:
    """One scale for eight numbers, wherever they are."""
    hidden = m.inner(x)
    groups = hidden.reshape(-1, 8 if hidden.numel() % 8 == 0 else hidden.numel())
    scale = groups.abs().amax(1, keepdim=True) / 7
    rounded = ((groups / scale).round() * scale).view_as(hidden)
    return m.head(torch.tanh(hidden + (rounded - hidden).detach()))


def overwrites_result(m: Any, x: Tensor) -> Tensor:
    """Autograd needs what the last line overwrites."""
    hidden = torch.relu(m.inner(x))
    hidden[hidden > 0.1] = 0.1
    return m.head(hidden)


class _Scale(nn.Module):
    """A factor before a normalisation: its gradient is a rest that cancels."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(1.5))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


def dependent(name: str, forward: Any, data: Any = None, **parts: Any) -> Any:
    return net(name, simple(forward, **(parts or MLP)), data, expected=COMPANY)


OUTSIDE = [
    net(
        "squeezed outputs",
        simple(
            lambda m, x: m.head(torch.tanh(m.inner(x))).squeeze(),
            inner=linear(),
            head=linear(WIDTH, 1),
        ),
        options={"classes": 2},
    ),
    net(
        "squeezed maps",
        simple(
            lambda m, x: m.head(torch.relu(m.conv(x)).mean((2, 3), keepdim=True).squeeze()),
            conv=lambda: nn.Conv2d(2, WIDTH, 3),
            head=head,
        ),
        images(),
        expected=ONE_BY_ONE,
    ),
    net(
        "scale before a layer norm",
        lambda: nn.Sequential(
            nn.Linear(WIDTH, 8), _Scale(), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, CLASSES)
        ),
    ),
    net("forgets in float32", simple(forgets, **MLP), dtype=torch.float32, tolerance=1e-4),
    net(
        "each example halts by itself",
        simple(halts_each, halt=linear(WIDTH, 1), **MLP),
        expected=EXACT,
    ),
    net("soft sort of features", simple(soft_sort, **MLP)),
    net(
        "neighbours inside a set",
        simple(neighbours, edge=lambda: nn.Conv2d(2 * WIDTH, 6, 1), head=lambda: head(6)),
        tokens(),
    ),
    net("merges tokens", simple(merges_tokens, **MLP), tokens(steps=4)),
    net(
        "modulated kernels in groups",
        simple(modulated, style=linear(2), kernels=weight(3, 2, 3, 3), head=lambda: head(48)),
        images(),
    ),
    net(
        "splines",
        simple(
            lambda m, x: m.head(((x[:, :, None] - m.knots).relu() * m.slopes).sum(-1)),
            knots=weight(WIDTH, 5),
            slopes=weight(WIDTH, 5),
            head=head,
        ),
    ),
    net("vector quantisation", simple(codes, codes=weight(5, WIDTH), **MLP)),
    net(
        "a linear system for each example",
        simple(
            lambda m, x: m.head(
                torch.linalg.solve(torch.diag_embed(m.inner(x).exp()) + 0.1 * m.matrix, x)
            ),
            matrix=weight(WIDTH, WIDTH),
            **MLP,
        ),
    ),
    net(
        "padded to a fixed batch",
        simple(pads, **MLP),
        expected=ONE_BY_ONE,
        others={"features": refused("one row per example")},
    ),
    net(
        "softmax shifted by the largest of all",
        simple(shifted_by_all, **MLP),
    ),
    net(
        "parts a later batch, behind where",
        simple(parts_and_joins, **MLP),
        one_large(11),
        expected=ONE_BY_ONE,
        options=LATER,
    ),
    net(
        "gradient divided by the batch size, behind a small factor",
        simple(small_branch, first=linear(), **MLP),
        expected=ONE_BY_ONE,
        others=FEATURES_BATCHED,
        dtype=torch.float32,
        tolerance=1e-4,
    ),
    net(
        "gradient clipped over the batch",
        simple(lambda m, x: m.head(_Clipped.apply(torch.tanh(m.inner(x)))), **MLP),
        expected=ONE_BY_ONE,
        others=FEATURES_BATCHED,
    ),
    net(
        "gradient of the example opposite",
        simple(lambda m, x: m.head(_Exchanged.apply(torch.tanh(m.inner(x)))), **MLP),
        expected=ONE_BY_ONE,
        others=FEATURES_BATCHED,
    ),
    net(
        "orders a later batch, behind where",
        simple(lambda m, x: m.head(torch.tanh(m.inner(x[parted(x)]))), **MLP),
        one_large(11),
        expected=COMPANY,
        options=LATER,
    ),
    dependent(
        "experts choose examples",
        experts_choose,
        router=linear(WIDTH, 2),
        first=linear(),
        second=linear(),
        head=head,
    ),
    dependent("batch norm of four at a time", ghosts),
    dependent("rank in the batch", ranks),
    dependent("first singular direction of the batch", low_rank),
    dependent("neighbour in the order of a hash", hashed),
    dependent(
        "frequent words of the batch",
        counted_words,
        words(),
        table=lambda: nn.Embedding(7, WIDTH),
        head=head,
    ),
    dependent("seed made of the batch", seeded_by_data),
    dependent("quantiser in groups of eight", quantised_in_groups),
    dependent(
        "layer norm over the batch",
        lambda m, x: m.head(functional.layer_norm(m.inner(x).T, (len(x),)).T),
    ),
    net(
        "differences of all pairs",
        simple(
            lambda m, x: m.head(x) + (m.inner(x)[:, :1] - x.sum(1)).mean(1, keepdim=True), **MLP
        ),
        expected=COMPANY,
        others=FEATURES_BATCHED,
    ),
    dependent("transposed by a reshape", lambda m, x: m.head(m.inner(x).T.reshape(len(x), -1))),
    dependent(
        "table made for each batch size",
        lambda m, x: m.head(
            m.inner(x)
            + torch.randn(len(x), WIDTH, generator=torch.Generator().manual_seed(len(x))).to(x)
        ),
    ),
    net(
        "overwrites what autograd needs",
        simple(overwrites_result, **MLP),
        expected=refused("autograd refuses"),
        others=FEATURES_BATCHED,
    ),
]
