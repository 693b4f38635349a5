"""Networks with one answer per example that leave examples in place: all must go in batches."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from tests.engine import hostile, zoo
from tests.engine.networks.case import (
    BATCHED,
    CLASSES,
    COUNT,
    EXACT,
    ONE_BY_ONE,
    WIDTH,
    Network,
    images,
    ragged,
    refused,
    scripted,
    tokens,
    vectors,
    words,
)


class Wrapped(nn.Module):
    """A model made of parts and a forward pass."""

    def __init__(self, forward: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self._forward = forward
        for name, part in parts.items():
            if isinstance(part, nn.Module | nn.Parameter):
                setattr(self, name, part)
            elif isinstance(part, Tensor):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._forward(self, *args, **kwargs)


def head(width: int = WIDTH) -> nn.Linear:
    return nn.Linear(width, CLASSES)


def simple(function: Callable[[Any, Tensor], Tensor], **parts: Any) -> Callable[[], nn.Module]:
    """A model that is a function of its parts, which are made anew each time."""
    return lambda: Wrapped(function, **{name: make() for name, make in parts.items()})


def weight(*shape: int) -> Callable[[], nn.Parameter]:
    return lambda: nn.Parameter(torch.randn(*shape))


def linear(width: int = WIDTH, rows: int | None = None) -> Callable[[], nn.Module]:
    return lambda: nn.Linear(width, width if rows is None else rows)


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
def _smooth(x: Tensor) -> Tensor:
    return torch.tanh(x) * torch.sigmoid(x)


class _Square(torch.autograd.Function):
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


def _zoo(name: str) -> Network:
    def build() -> nn.Module:
        return zoo.specimen(name).model

    def data() -> Any:
        return zoo.specimen(name).inputs

    readout = zoo.specimen(name).readout
    return Network(name, build, data, BATCHED, options={"readout": readout, "classes": 2})


def net(name: str, build: Callable[[], nn.Module], data: Any = None, **more: Any) -> Network:
    return Network(name, build, data or vectors(), more.pop("expected", BATCHED), **more)


def attention(**options: Any) -> Callable[[], nn.Module]:
    return lambda: nn.TransformerEncoderLayer(WIDTH, 2, 6, dropout=0.0, **options)


ORDINARY = [
    *map(_zoo, zoo.ZOO),
    *(
        net(name, *hostile.EXACT[name])
        for name in (
            "LSTMCell",
            "RNNCell",
            "GRUCell",
            "tied embedding",
            "scalar parameters",
            "Fourier filter",
            "grouped queries",
            "checkpointed",
        )
    ),
    net("sparse embedding", *hostile.EXACT["sparse embedding"]),
    net("encoder and decoder", *hostile.EXACT["encoder and decoder"], options={"readout": "last"}),
    net("group norm", normed(lambda: nn.GroupNorm(2, 4), nn.SiLU(inplace=True)), images()),
    net(
        "batch norm in evaluation mode",
        normed(lambda: nn.BatchNorm2d(4), nn.ReLU(inplace=True)),
        images(),
    ),
    net(
        "instance norm and in-place ReLU",
        normed(lambda: nn.InstanceNorm2d(4, affine=True), nn.ReLU(inplace=True)),
        images(),
    ),
    net(
        "instance norm without parameters",
        normed(lambda: nn.InstanceNorm2d(4), nn.Tanh()),
        images(),
    ),
    net(
        "dropout in evaluation mode",
        lambda: nn.Sequential(nn.Linear(WIDTH, 8), nn.Dropout(0.5), nn.Tanh(), head(8)),
    ),
    net(
        "layer norm",
        lambda: nn.Sequential(nn.Linear(WIDTH, 8), nn.LayerNorm(8), nn.GELU(), head(8)),
    ),
    net("RMS norm", lambda: nn.Sequential(nn.Linear(WIDTH, 8), nn.RMSNorm(8), nn.GELU(), head(8))),
    net("PReLU", lambda: nn.Sequential(nn.Linear(WIDTH, 8), nn.PReLU(8), head(8))),
    net(
        "GRU",
        simple(
            lambda m, x: m.head(m.gru(x)[0][:, -1]),
            gru=lambda: nn.GRU(WIDTH, WIDTH, batch_first=True),
            head=head,
        ),
        tokens(),
    ),
    net(
        "bidirectional LSTM, two layers",
        simple(
            lambda m, x: m.head(m.lstm(x)[0].mean(1)),
            head=lambda: head(8),
            lstm=lambda: nn.LSTM(WIDTH, WIDTH, 2, batch_first=True, bidirectional=True),
        ),
        tokens(),
    ),
    net(
        "LSTM, sequence first",
        simple(
            lambda m, x: m.head(m.lstm(x.transpose(0, 1))[0][-1]),
            head=head,
            lstm=lambda: nn.LSTM(WIDTH, WIDTH),
        ),
        tokens(),
    ),
    net(
        "transformer encoder",
        simple(
            lambda m, x: m.head(m.layer(x).mean(1)), head=head, layer=attention(batch_first=True)
        ),
        tokens(),
    ),
    net(
        "transformer encoder, sequence first",
        simple(sequence_first, head=head, layer=attention()),
        tokens(),
    ),
    net(
        "transformer decoder",
        simple(
            decodes,
            head=lambda: head(8),
            query=weight(1, 2, WIDTH),
            layer=lambda: nn.TransformerDecoderLayer(WIDTH, 2, 6, 0.0, batch_first=True),
        ),
        tokens(),
    ),
    net(
        "spectral norm",
        lambda: nn.Sequential(
            parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH)), nn.Tanh(), head()
        ),
    ),
    net(
        "orthogonal weights",
        lambda: nn.Sequential(
            parametrizations.orthogonal(nn.Linear(WIDTH, WIDTH)), nn.Tanh(), head()
        ),
    ),
    net("embedding bag", simple(bag, table=lambda: nn.EmbeddingBag(7, WIDTH), head=head), words()),
    net("Conv1D of Hugging Face", HuggingConv, tokens()),
    net("scan over time", simple(scan, inner=linear(), into=linear(), head=head), tokens()),
    net(
        "gather per example",
        simple(gathers, score=linear(WIDTH, 1), inner=linear(), head=head),
        tokens(),
    ),
    net("mask per example", simple(masked_mean, inner=linear(), head=head), ragged),
    net(
        "experts without routing",
        simple(soft_experts, router=linear(WIDTH, 2), first=linear(), second=linear(), head=head),
    ),
    net(
        "vmap inside",
        simple(mapped, kernel=weight(WIDTH, WIDTH), head=head),
        expected=ONE_BY_ONE,
        others={"features": BATCHED},
    ),
    net(
        "stacked weights under vmap",
        simple(mapped_modules, weights=weight(2, WIDTH, WIDTH), biases=weight(2, WIDTH), head=head),
        expected=ONE_BY_ONE,
        others={"features": BATCHED},
    ),
    net(
        "squeeze and excitation",
        simple(squeezes, conv=lambda: nn.Conv2d(2, 4, 3), gate=linear(), head=lambda: head(64)),
        images(),
    ),
    net(
        "two inputs, one tower",
        simple(pairs, tower=linear(), head=head),
        lambda: ((torch.randn(COUNT, WIDTH), torch.randn(COUNT, WIDTH)),),
    ),
    net("hypernetwork", simple(hypernetwork, maker=linear(WIDTH, 16), head=head)),
    net(
        "radial basis functions", simple(distances, centres=weight(5, WIDTH), head=lambda: head(5))
    ),
    net("graph of each example", simple(graph, inner=linear(), head=head), tokens()),
    net("rotary attention", simple(rotates, query=linear(), value=linear(), head=head), tokens()),
    net("unfolded patches", simple(unfolds, inner=linear(18, WIDTH), head=head), images()),
    net("mixer", simple(mixer, tokens=linear(3), channels=linear(), head=head), tokens()),
    net("fixed number of iterations", simple(fixed_iterations, inner=linear(), head=head)),
    net(
        "gated feed-forward",
        simple(swish_gate, gate=linear(), up=linear(), down=linear(), head=head),
    ),
    net(
        "loop over examples",
        simple(loops_over_rows, inner=linear(), head=head),
        expected=ONE_BY_ONE,
        others={"features": BATCHED},
    ),
    net(
        "list of examples",
        simple(reads_lists, inner=linear(), head=head),
        expected=ONE_BY_ONE,
        others={"features": refused("one row per example")},
    ),
    net(
        "cosine classifier",
        simple(
            lambda m, x: (
                5 * functional.normalize(torch.tanh(m.inner(x))) @ functional.normalize(m.classes).T
            ),
            inner=linear(),
            classes=weight(CLASSES, WIDTH),
        ),
    ),
    net(
        "bilinear",
        simple(
            lambda m, x: m.head(m.form(x, x)),
            form=lambda: nn.Bilinear(WIDTH, WIDTH, WIDTH),
            head=head,
        ),
    ),
    net(
        "maxout",
        simple(
            lambda m, x: m.head(m.inner(x).view(len(x), WIDTH, 2).amax(2)),
            inner=linear(WIDTH, 8),
            head=head,
        ),
    ),
    net(
        "feature-wise scale and shift",
        simple(
            lambda m, x: m.head(torch.tanh(m.inner(x) * m.scale(x) + m.shift(x))),
            inner=linear(),
            scale=linear(),
            shift=linear(),
            head=head,
        ),
    ),
    net(
        "log-sum-exp head",
        simple(
            lambda m, x: m.head(torch.tanh(m.inner(x))).view(len(x), CLASSES, 2).logsumexp(2),
            inner=linear(),
            head=linear(WIDTH, 2 * CLASSES),
        ),
    ),
    net(
        "Fourier features",
        simple(
            lambda m, x: m.head(torch.cat([(x @ m.waves).sin(), (x @ m.waves).cos()], 1)),
            waves=lambda: torch.randn(WIDTH, 5),
            head=lambda: head(10),
        ),
    ),
    net(
        "custom function without parameters",
        simple(lambda m, x: m.head(_Square.apply(m.inner(x))), inner=linear(), head=head),
    ),
    net(
        "scripted function",
        simple(lambda m, x: m.head(_smooth(m.inner(x))), inner=linear(), head=head),
    ),
    net(
        "wide causal convolution",
        simple(
            lambda m, x: m.head(torch.tanh(m.conv(functional.pad(x.mT, (2, 0))))[..., -1]),
            conv=lambda: nn.Conv1d(WIDTH, WIDTH, 3),
            head=head,
        ),
        tokens(),
    ),
    net(
        "transposed convolution",
        lambda: nn.Sequential(
            nn.ConvTranspose2d(2, 3, 2, 2), nn.Tanh(), nn.Flatten(), nn.Linear(432, CLASSES)
        ),
        images(),
    ),
    net(
        "pixel shuffle",
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3), nn.PixelShuffle(2), nn.Tanh(), nn.Flatten(), nn.Linear(64, CLASSES)
        ),
        images(),
    ),
    net(
        "set attention",
        simple(
            lambda m, x: m.head(
                m.attend(m.seeds.expand(len(x), -1, -1), x, x, need_weights=False)[0].flatten(1)
            ),
            seeds=weight(1, 2, WIDTH),
            head=lambda: head(8),
            attend=lambda: nn.MultiheadAttention(WIDTH, 2, batch_first=True),
        ),
        tokens(),
    ),
    net(
        "position table",
        simple(
            lambda m, x: m.head(
                torch.tanh(m.table(x) + m.places(torch.arange(x.shape[1]))).mean(1)
            ),
            table=lambda: nn.Embedding(7, WIDTH),
            places=lambda: nn.Embedding(3, WIDTH),
            head=head,
        ),
        words(),
    ),
    net(
        "in-place everywhere",
        simple(
            lambda m, x: m.head(m.inner(x).mul_(m.scale).add_(x).sub_(0.1).relu_()),
            inner=linear(),
            scale=weight(WIDTH),
            head=head,
        ),
    ),
    net(
        "detached branch",
        simple(
            lambda m, x: m.head(torch.tanh(m.inner(x)) + m.other(x).detach()),
            inner=linear(),
            other=linear(),
            head=head,
        ),
    ),
    net(
        "checkpointed block",
        simple(
            lambda m, x: m.head(
                checkpoint(lambda z: torch.tanh(m.inner(z)), x, use_reentrant=False)
            ),
            inner=linear(),
            head=head,
        ),
    ),
    net("one module under two names", two_names),
    net("layer without outputs", empty_layer, vectors(width=6), others={"gradients": EXACT}),
    # Residuals of 1e-6 beside outputs of 1 have no digit left in float32: only the outcome counts.
    net(
        "regression fitted to 1e-6",
        fitted,
        dtype=torch.float32,
        tolerance=1.0,
        options={"labels": fitted_targets(), "loss": squared},
    ),
    net(
        "one example",
        simple(lambda m, x: m.head(torch.tanh(m.inner(x))), inner=linear(), head=head),
        vectors(1),
    ),
    net(
        "bfloat16",
        lambda: nn.Sequential(
            nn.Linear(WIDTH, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), head(32)
        ),
        dtype=torch.bfloat16,
        tolerance=0.05,
    ),
    net(
        "float16",
        lambda: nn.Sequential(
            nn.Linear(WIDTH, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), head(32)
        ),
        dtype=torch.float16,
        tolerance=0.01,
    ),
    net(
        "sixteen layers in float32",
        lambda: nn.Sequential(
            *(layer for _ in range(16) for layer in (nn.Linear(WIDTH, WIDTH), nn.ELU())), head()
        ),
        dtype=torch.float32,
        tolerance=1e-3,
    ),
    net(
        "large offsets in float32",
        simple(lambda m, x: m.head(torch.tanh(m.inner(x))) + 1000, inner=linear(), head=head),
        dtype=torch.float32,
        tolerance=1e-3,
    ),
    net(
        "saturated units in float32",
        simple(lambda m, x: m.head(torch.sigmoid(20 * m.inner(x))), inner=linear(), head=head),
        dtype=torch.float32,
        tolerance=1e-3,
    ),
    net(
        "ReLU network with silent units",
        lambda: nn.Sequential(
            nn.Linear(WIDTH, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), head(16)
        ),
        dtype=torch.float32,
        tolerance=1e-3,
    ),
    net(
        "parameter list",
        simple(
            lambda m, x: m.head(sum(torch.tanh(x * p) for p in m.scales)),
            head=head,
            scales=lambda: nn.ParameterList(nn.Parameter(torch.randn(WIDTH)) for _ in range(3)),
        ),
    ),
    net(
        "unused layer",
        simple(
            lambda m, x: m.head(torch.tanh(m.inner(x))), inner=linear(), unused=linear(), head=head
        ),
    ),
    net(
        "scalar output",
        simple(
            lambda m, x: m.head(torch.tanh(m.inner(x))).squeeze(1),
            inner=linear(),
            head=linear(WIDTH, 1),
        ),
        options={"classes": 2},
    ),
    net(
        "as many examples as features",
        simple(lambda m, x: m.head(torch.tanh(m.inner(x))), inner=linear(), head=linear()),
        vectors(WIDTH),
        options={"classes": WIDTH},
    ),
    net(
        "as many examples as tokens and channels",
        simple(mixer, tokens=linear(), channels=linear(), head=linear()),
        tokens(WIDTH, WIDTH),
        options={"classes": WIDTH},
    ),
    net(
        "as many images as channels and pixels",
        simple(
            lambda m, x: m.head(torch.tanh(m.conv(x)).flatten(1)),
            conv=lambda: nn.Conv2d(WIDTH, WIDTH, 3, padding=1),
            head=lambda: head(WIDTH**3),
        ),
        images(WIDTH, WIDTH, WIDTH),
    ),
    net(
        "matrix exponential",
        simple(
            lambda m, x: m.head(torch.tanh(x @ torch.matrix_exp(m.skew - m.skew.T))),
            skew=weight(WIDTH, WIDTH),
            head=head,
        ),
    ),
    net(
        "Kronecker product of weights",
        simple(
            lambda m, x: m.head(torch.tanh(functional.linear(x, torch.kron(m.left, m.right)))),
            left=weight(2, 2),
            right=weight(2, 2),
            head=head,
        ),
    ),
    net(
        "mixture of weights",
        simple(
            lambda m, x: m.head(torch.einsum("ni,k,kij->nj", x, m.share.softmax(0), m.kernels)),
            share=weight(3),
            kernels=weight(3, WIDTH, WIDTH),
            head=head,
        ),
    ),
    net(
        "weights by the sign of an input",
        simple(
            lambda m, x: m.head(torch.bmm(m.kernels[(x[:, 0] > 0).long()], x[:, :, None])[..., 0]),
            kernels=weight(2, WIDTH, WIDTH),
            head=head,
        ),
    ),
    net(
        "normalises its weights in place",
        simple(normalises_weights, inner=linear(), head=head),
    ),
    net(
        "NTK scale",
        simple(
            lambda m, x: m.head(torch.relu(x @ m.inner / math.sqrt(WIDTH))),
            inner=weight(WIDTH, WIDTH),
            head=head,
        ),
    ),
]
