"""Small networks that reorder, drop, pack, route, cast or hide things, each with the reason.

All of them have one answer per example, the same alone and in any batch, unless the class says
otherwise: ``DEPENDENT`` lists those whose examples really see each other, or chance.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.checkpoint import checkpoint

EXAMPLES = 6
WIDTH = 4
CLASSES = 3


class Experts(nn.Module):
    """Mixture of experts: tokens of all examples are dispatched by masks, top-1 or top-2."""

    def __init__(self, top: int = 1, experts: int = 3, capacity: float | None = None) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, experts)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(experts))
        self.head = nn.Linear(WIDTH, CLASSES)
        self.top, self.capacity = top, capacity

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.reshape(-1, WIDTH)
        weights, chosen = self.router(tokens).softmax(-1).topk(self.top, dim=-1)
        out = torch.zeros_like(tokens)
        room = len(tokens)
        if self.capacity is not None:
            room = math.ceil(self.capacity * len(tokens) / len(self.experts))
        for index, expert in enumerate(self.experts):
            rows, slot = torch.where(chosen == index)
            rows, slot = rows[:room], slot[:room]
            if len(rows):
                parts = torch.tanh(expert(tokens[rows])) * weights[rows, slot, None]
                out = out.index_add(0, rows, parts)
        return self.head(out.reshape(x.shape).mean(1))


class MaskedExperts(nn.Module):
    """The same by boolean masks and assignment, as many published models do it."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, 2)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        gates = self.router(x).softmax(-1)
        out = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            mask = gates.argmax(-1) == index
            out[mask] = expert(x[mask]) * gates[mask][:, index, None]
        return self.head(torch.tanh(out).mean(1))


class DispatchedExperts(nn.Module):
    """Experts that read their tokens from slots, filled by a product with one-hot places."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, 2)
        self.weights = nn.Parameter(torch.randn(2, WIDTH, WIDTH))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        chosen = functional.one_hot(self.router(x).argmax(-1), 2)  # (n, 2)
        place = chosen.cumsum(0) * chosen - 1
        slots = functional.one_hot(place.clamp(min=0), len(x)) * chosen[..., None]
        slots = slots.to(x.dtype)  # (n, 2, n)
        taken = torch.einsum("nes,nd->esd", slots, x)
        answers = torch.einsum("esd,edf->esf", taken, self.weights)
        return self.head(torch.tanh(torch.einsum("nes,esf->nf", slots, answers)))


class Sorts(nn.Module):
    """Sorts the examples inside, leaves the first first, and puts them back."""

    def __init__(self, first_stays: bool = True) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)
        self.first_stays = first_stays

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(x))
        keys = x.sum(1)
        if self.first_stays:
            keys = torch.cat([keys.new_full((1,), -torch.inf), keys[1:]])
        order = keys.argsort()
        inner = torch.tanh(self.inner(hidden[order]))
        return self.head(inner[order.argsort()])


class Flips(nn.Module):
    """Turns the batch around for one layer and back: always the same movement."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.inner(x.flip(0))).flip(0))


class DropsPadding(nn.Module):
    """Drops padding by ``x[mask]``, works on what is left, and adds it up per example."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        mask = x.abs().sum(-1) > 0
        hidden = torch.tanh(self.inner(x[mask]))
        owner = mask.nonzero()[:, 0]
        sums = hidden.new_zeros(len(x), WIDTH).index_add(0, owner, hidden)
        return self.head(sums / mask.sum(1, keepdim=True))


class Packs(nn.Module):
    """A packed LSTM: examples are sorted by length and their steps interleaved."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        lengths = (x.abs().sum(-1) > 0).sum(1)
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        steps, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        return self.head(steps.sum(1))


class Cells(nn.Module):
    """Recurrent cells, called once per step."""

    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.cell: Any = kind(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        hidden = x.new_zeros(len(x), WIDTH)
        state: Any = (hidden, hidden) if isinstance(self.cell, nn.LSTMCell) else hidden
        for step in x.unbind(1):
            state = self.cell(step, state)
        return self.head(state[0] if isinstance(state, tuple) else state)


class _Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor) -> Tensor:
        ctx.save_for_backward(x, scale)
        return x * scale

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, scale = ctx.saved_tensors
        return gradient * scale, (gradient * x).sum(0)


class CustomBranch(nn.Module):
    """A custom autograd.Function in a branch that the first example does not take."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.scale = nn.Parameter(torch.randn(WIDTH))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.inner(x)) * self.scale
        large = x[:, 0] > 0
        if large.any():
            hidden = torch.where(large[:, None], _Scale.apply(hidden, self.scale), hidden)
        return self.head(hidden)


class RandomSlopes(nn.Module):
    """RReLU in training mode: negative slopes are drawn anew in every pass."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(WIDTH, 2), nn.RReLU(), nn.Linear(2, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class ShiftedByFirst(nn.Module):
    """All examples are shifted by the features of the first, which autograd does not see."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.inner(x))
        return self.head(hidden - hidden[:1].detach() * (torch.arange(len(x)) > 0)[:, None])


class Centered(nn.Module):
    """Subtracts the mean over the batch: every example sees all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x - x.mean(0))


class Buckets(nn.Module):
    """Gathers examples into two buckets, works on each, and scatters them back."""

    def __init__(self) -> None:
        super().__init__()
        self.low, self.high = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        bucket = torch.bucketize(x[:, 0].detach().contiguous(), torch.zeros(1, dtype=x.dtype))
        out = torch.zeros_like(x)
        for index, layer in enumerate((self.low, self.high)):
            rows = (bucket == index).nonzero()
            if len(rows):
                where = rows.expand(-1, WIDTH)
                out = out.scatter(0, where, torch.tanh(layer(x.gather(0, where))))
        return self.head(out)


class Embeds(nn.Module):
    """A table with sparse gradients, or one that is tied to the output layer."""

    def __init__(self, *, sparse: bool = False, tied: bool = False) -> None:
        super().__init__()
        self.table = nn.Embedding(7, WIDTH, sparse=sparse)
        self.head = nn.Linear(WIDTH, 7 if tied else CLASSES, bias=False)
        if tied:
            self.head.weight = self.table.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(torch.tanh(self.table(tokens).mean(1)))


class Scalars(nn.Module):
    """Parameters of shape (): ReZero, the logit scale of CLIP, a learned temperature."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)
        self.rezero = nn.Parameter(torch.tensor(0.3))
        self.logit_scale = nn.Parameter(torch.tensor(0.2))
        self.temperature = nn.Parameter(torch.tensor(1.5))

    def forward(self, x: Tensor) -> Tensor:
        hidden = x + self.rezero * torch.tanh(self.inner(x))
        return self.logit_scale.exp() * self.head(hidden) / self.temperature


class ComplexWeights(nn.Module):
    """Complex weights: a gradient has a real and an imaginary part for each."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH, dtype=torch.complex128))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head((x.to(self.weight.dtype) @ self.weight).abs())


class Spectral(nn.Module):
    """Real filters on the Fourier coefficients, which are complex."""

    def __init__(self) -> None:
        super().__init__()
        self.filter = nn.Parameter(torch.randn(WIDTH // 2 + 1))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(torch.fft.irfft(torch.fft.rfft(x) * self.filter, n=WIDTH)))


class Forces(nn.Module):
    """Outputs are gradients of an energy with respect to the inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(WIDTH, 5), nn.Tanh(), nn.Linear(5, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        energy = self.layers(x).sum()
        return torch.autograd.grad(energy, x, create_graph=True)[0]


class Autocast(nn.Module):
    """Casts to bfloat16 inside and returns float32, as mixed precision of Accelerate does."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(WIDTH, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, CLASSES)
        )

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.layers(x).float()


class GroupedQueries(nn.Module):
    """Grouped-query attention: fewer keys and values than queries."""

    def __init__(self) -> None:
        super().__init__()
        self.queries, self.keys = nn.Linear(WIDTH, 8), nn.Linear(WIDTH, 4)
        self.values = nn.Linear(WIDTH, 4)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        n, steps, _ = x.shape
        q = self.queries(x).view(n, steps, 4, 2).transpose(1, 2)
        k, v = (part(x).view(n, steps, 2, 2).transpose(1, 2) for part in (self.keys, self.values))
        mixed = functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        return self.head(mixed.transpose(1, 2).reshape(n, steps, 8).mean(1))


class Checkpointed(nn.Module):
    """Activations are thrown away and computed again on the way back."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(checkpoint(lambda x: self.first(x).tanh(), x, use_reentrant=False))


def t5() -> nn.Module:
    """An encoder-decoder that takes a mapping and returns logits (n, T, vocabulary)."""
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=11, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2, dropout_rate=0.0,
        pad_token_id=0, decoder_start_token_id=0, use_cache=False,
    )  # fmt: skip
    return T5ForConditionalGeneration(config)


@dataclass(frozen=True)
class Specimen:
    """A model, a batch of inputs, and labels."""

    model: nn.Module
    inputs: Any
    labels: Tensor
    readout: Any = None


def _vectors() -> Tensor:
    return torch.randn(EXAMPLES, WIDTH)


def _tokens() -> Tensor:
    return torch.randn(EXAMPLES, 3, WIDTH)


def _ragged() -> Tensor:
    """Zeros are padding; the first example has the mean length."""
    x = torch.randn(EXAMPLES, 5, WIDTH)
    for row, length in zip(x, (3, 1, 5, 2, 4, 3), strict=True):
        row[length:] = 0.0
    return x


def _words() -> Tensor:
    return torch.randint(0, 7, (EXAMPLES, 3))


def _negative_first() -> Tensor:
    x = _vectors()
    x[0, 0] = -x[0, 0].abs() - 0.1
    x[1, 0] = x[1, 0].abs() + 0.1
    return x


def _pairs() -> dict[str, Tensor]:
    return {
        "input_ids": torch.randint(1, 11, (EXAMPLES, 4)),
        "decoder_input_ids": torch.randint(1, 11, (EXAMPLES, 2)),
    }


Make = tuple[Callable[[], nn.Module], Callable[[], Any]]

# Measured exactly, in a batch or one by one.
EXACT: dict[str, Make] = {
    "experts, top-1": (Experts, _tokens),
    "experts, top-2": (lambda: Experts(top=2), _tokens),
    "experts, masks": (MaskedExperts, _tokens),
    "experts, slots": (DispatchedExperts, _vectors),
    "sorts, first stays": (Sorts, _vectors),
    "sorts": (lambda: Sorts(first_stays=False), _vectors),
    "flips": (Flips, _vectors),
    "drops padding": (DropsPadding, _ragged),
    "packs": (Packs, _ragged),
    "LSTMCell": (lambda: Cells(nn.LSTMCell), _tokens),
    "GRUCell": (lambda: Cells(nn.GRUCell), _tokens),
    "RNNCell": (lambda: Cells(nn.RNNCell), _tokens),
    "custom function in a branch": (CustomBranch, _negative_first),
    "gather and scatter": (Buckets, _vectors),
    "sparse embedding": (lambda: Embeds(sparse=True), _words),
    "tied embedding": (lambda: Embeds(tied=True), _words),
    "scalar parameters": (Scalars, _vectors),
    "complex weights": (ComplexWeights, _vectors),
    "Fourier filter": (Spectral, _vectors),
    "gradient of an energy": (Forces, _vectors),
    "grouped queries": (GroupedQueries, _tokens),
    "checkpointed": (Checkpointed, _vectors),
    "encoder and decoder": (t5, _pairs),
}

# Refused with the reason.
DEPENDENT: dict[str, Make] = {
    "experts with little capacity": (lambda: Experts(capacity=0.5), _tokens),
    "random slopes": (RandomSlopes, _vectors),
    "shifted by the first": (ShiftedByFirst, _vectors),
    "centred over the batch": (Centered, _vectors),
}


def specimen(name: str, seed: int = 0) -> Specimen:
    """The model in float64 with the given name; weights and inputs follow from the seed."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model, inputs = ({**EXACT, **DEPENDENT}[name][k]() for k in (0, 1))
    for parameter in model.parameters():
        if not parameter.is_complex():
            parameter.data = parameter.data.double()
    for buffer in model.buffers():
        buffer.data = buffer.data.double() if buffer.is_floating_point() else buffer.data
    if isinstance(inputs, Tensor) and inputs.is_floating_point():
        inputs = inputs.double()
    labels = torch.arange(EXAMPLES) % CLASSES
    readout = "last" if name == "encoder and decoder" else None
    if name != "random slopes":
        model.eval()
    return Specimen(model, inputs, labels, readout)
