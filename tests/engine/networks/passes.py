"""Forward passes of ordinary networks, one of each kind that people write."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.engine.networks.case import (
    CLASSES,
    COUNT,
    WIDTH,
    scripted,
)
from tests.engine.networks.parts import Wrapped, head


def scan(m: Any, x: Tensor) -> Tensor:
    """A recurrence written out: one call per step."""
    state = x.new_zeros(len(x), WIDTH)
    for step in x.unbind(1):
        state = torch.tanh(m.inner(state) + m.into(step))
    return m.head(state)


def gathers(m: Any, x: Tensor) -> Tensor:
    """Every example picks one of its own positions by what it contains."""
    best = m.score(x).squeeze(-1).argmax(1)
    picked = x.gather(1, best[:, None, None].expand(-1, 1, WIDTH)).squeeze(1)
    return m.head(torch.tanh(m.inner(picked)))


def masked_mean(m: Any, x: Tensor) -> Tensor:
    """A mask of each example's own padding."""
    mask = (x.abs().sum(-1) > 0).to(x.dtype)
    hidden = torch.tanh(m.inner(x)) * mask[..., None]
    return m.head(hidden.sum(1) / mask.sum(1, keepdim=True))


def soft_experts(m: Any, x: Tensor) -> Tensor:
    """Every expert answers every example; gates weigh the answers."""
    gates = m.router(x).softmax(-1)
    answers = torch.stack([m.first(x), m.second(x)], -1)
    return m.head(torch.tanh((answers * gates[:, None, :]).sum(-1)))


def mapped(m: Any, x: Tensor) -> Tensor:
    """``vmap`` of a functional layer inside the forward pass."""
    inner = torch.func.vmap(lambda row: torch.tanh(m.kernel @ row))(x)
    return m.head(inner)


def mapped_modules(m: Any, x: Tensor) -> Tensor:
    """An ensemble by ``functional_call`` under ``vmap`` over stacked weights."""
    stacked = {"weight": m.weights, "bias": m.biases}
    plain = nn.Linear(WIDTH, WIDTH, device="meta")
    call = torch.func.vmap(lambda p: torch.func.functional_call(plain, p, (x,)))
    return m.head(torch.tanh(call(stacked)).mean(0))


def squeezes(m: Any, x: Tensor) -> Tensor:
    maps = torch.relu(m.conv(x))
    gate = torch.sigmoid(m.gate(maps.mean((2, 3))))
    return m.head((maps * gate[:, :, None, None]).flatten(1))


def pairs(m: Any, first: Tensor, second: Tensor) -> Tensor:
    """Two inputs through the same tower."""
    return m.head(torch.tanh(m.tower(first)) * torch.tanh(m.tower(second)))


def hypernetwork(m: Any, x: Tensor) -> Tensor:
    """Every example makes a matrix of its own."""
    matrices = m.maker(x).view(len(x), WIDTH, WIDTH)
    return m.head(torch.tanh(torch.bmm(matrices, x[:, :, None]).squeeze(2)))


def distances(m: Any, x: Tensor) -> Tensor:
    return m.head(torch.exp(-torch.cdist(x, m.centres).square() / 8))


def graph(m: Any, x: Tensor) -> Tensor:
    """Graph convolution with an adjacency of each example's own."""
    adjacency = torch.softmax(x @ x.mT, -1)
    return m.head(torch.tanh(m.inner(adjacency @ x)).mean(1))


def rotates(m: Any, x: Tensor) -> Tensor:
    angle = torch.arange(x.shape[1], dtype=x.dtype)[:, None] / torch.tensor([1.0, 10.0]).to(x)
    first, second = m.query(x).chunk(2, -1)
    turned = torch.cat(
        [first * angle.cos() - second * angle.sin(), first * angle.sin() + second * angle.cos()], -1
    )
    mixed = functional.scaled_dot_product_attention(turned, turned, m.value(x), is_causal=True)
    return m.head(mixed[:, -1])


def unfolds(m: Any, x: Tensor) -> Tensor:
    patches = functional.unfold(x, 3, stride=3).transpose(1, 2)
    return m.head(torch.tanh(m.inner(patches)).mean(1))


def mixer(m: Any, x: Tensor) -> Tensor:
    x = x + m.tokens(x.transpose(1, 2)).transpose(1, 2)
    return m.head((x + m.channels(torch.tanh(x))).mean(1))


def fixed_iterations(m: Any, x: Tensor) -> Tensor:
    """A fixed number of steps towards a fixed point."""
    z = torch.zeros_like(x)
    for _ in range(5):
        z = torch.tanh(0.3 * m.inner(z) + x)
    return m.head(z)


def swish_gate(m: Any, x: Tensor) -> Tensor:
    return m.head(m.down(functional.silu(m.gate(x)) * m.up(x)))


def loops_over_rows(m: Any, x: Tensor) -> Tensor:
    """A Python loop over examples, one call each."""
    return m.head(torch.stack([torch.tanh(m.inner(row)) for row in x]))


def reads_lists(m: Any, x: Tensor) -> Tensor:
    """Works on every example as a list entry, as detection models do."""
    return torch.cat([m.head(torch.tanh(m.inner(part))) for part in x.split(1)])


def sequence_first(m: Any, x: Tensor) -> Tensor:
    return m.head(m.layer(x.transpose(0, 1)).mean(0))


def decodes(m: Any, x: Tensor) -> Tensor:
    query = m.query.expand(len(x), -1, -1)
    return m.head(m.layer(query, x).flatten(1))


def bag(m: Any, x: Tensor) -> Tensor:
    return m.head(torch.tanh(m.table(x)))


def two_names() -> nn.Module:
    """One module under two names."""
    inner = nn.Linear(WIDTH, WIDTH)
    return Wrapped(
        lambda m, x: m.head(torch.tanh(m.second(torch.tanh(m.first(x))))),
        first=inner,
        second=inner,
        head=head(),
    )


def empty_layer() -> nn.Module:
    """A layer without outputs beside others."""
    return Wrapped(
        lambda m, x: torch.cat([m.head(x), m.none(x)], 1), head=nn.Linear(6, CLASSES),
        none=nn.Linear(6, 0),
    )  # fmt: skip


@scripted
def smooth(x: Tensor) -> Tensor:
    return torch.tanh(x) * torch.sigmoid(x)


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.square()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 2 * x * gradient


class HuggingConv(nn.Module):
    """Hugging Face's Conv1D: a transposed linear layer by ``addmm``."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH))
        self.bias = nn.Parameter(torch.randn(WIDTH))
        self.head = head()

    def forward(self, x: Tensor) -> Tensor:
        flat = torch.addmm(self.bias, x.view(-1, WIDTH), self.weight)
        return self.head(torch.tanh(flat.view(x.shape)).mean(1))


def normed(norm: Callable[[], nn.Module], *more: nn.Module) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        norms = norm()
        for module in norms.modules():
            if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
                module.running_mean.normal_()
                module.running_var.uniform_(0.5, 2.0)
        conv = nn.Conv2d(2, 4, 3, padding=1)
        return nn.Sequential(conv, norms, *more, nn.Flatten(), nn.Linear(144, CLASSES))

    return make


def fitted() -> nn.Module:
    """A regression fitted to 1e-6: residuals are small beside the rounding of the outputs."""
    return nn.Sequential(nn.Linear(WIDTH, 64), nn.Tanh(), nn.Linear(64, 1))


def fitted_targets() -> Tensor:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model, x = fitted(), torch.randn(COUNT, WIDTH)
        noise = 1e-6 * torch.randn(COUNT, 1)
    with torch.no_grad():
        return model(x) + noise


def normalises_weights(m: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        m.inner.weight.div_(m.inner.weight.norm())
    return m.head(torch.tanh(m.inner(x)))


def squared(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).square().sum(1)


def attention(**options: Any) -> Callable[[], nn.Module]:
    return lambda: nn.TransformerEncoderLayer(WIDTH, 2, 6, dropout=0.0, **options)
