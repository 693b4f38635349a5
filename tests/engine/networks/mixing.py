"""Networks whose answer depends on other examples, on chance or on earlier passes: refused."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.engine import hostile
from tests.engine.networks.case import (
    BATCHED,
    CLASSES,
    COUNT,
    ONE_BY_ONE,
    WIDTH,
    one_large,
    ragged,
    refused,
    scripted,
    vectors,
)
from tests.engine.networks.parts import head, linear, net, simple, weight

COMPANY = refused("depend")
CHANCE = refused("random")
STATE = refused("pass to pass|buffer")
LATER = {"batch_size": 4}
FEATURES_BATCHED = {"features": BATCHED}  # what comes after the layers does not count


def trims(m: Any, x: Tensor) -> Tensor:
    """Cuts the batch to its longest row, and forgets the mask."""
    longest = int((x.abs().sum(-1) > 0).sum(1).max())
    return m.head(torch.tanh(m.inner(x[:, :longest])).mean(1))


def trims_in_one_go(m: Any, x: Tensor) -> Tensor:
    """The same without a Python number."""
    kept = (x.abs().sum(-1) > 0).any(0)
    return m.head(torch.tanh(m.inner(x[:, kept])).mean(1))


def fixed_point(m: Any, x: Tensor) -> Tensor:
    """Iterates until the slowest example of the batch has converged."""
    z = torch.zeros_like(x)
    for _ in range(50):
        old, z = z, torch.tanh(0.8 * m.inner(z) + x)
        if (z - old).abs().max() < 1e-2:
            break
    return m.head(z)


def halts(m: Any, x: Tensor) -> Tensor:
    """Adaptive computation: goes on until every example wants to stop."""
    z, total = torch.zeros_like(x), x.new_zeros(len(x))
    while bool((total < 1).any()):
        z = torch.tanh(m.inner(z) + x)
        total = total + torch.sigmoid(m.halt(z)).squeeze(1)
    return m.head(z)


def centred_if(condition: Any) -> Any:
    """Subtracts the mean of the batch under a condition."""

    def forward(m: Any, x: Tensor) -> Tensor:
        hidden = torch.tanh(m.inner(x))
        if condition(m, x):
            hidden = hidden - hidden.mean(0)
        return m.head(hidden)

    return forward


def counted(m: Any, x: Tensor) -> bool:
    m.calls += 1
    return m.calls > 2


def grows(m: Any, x: Tensor) -> Tensor:
    """Another model for good after its first passes."""
    m.calls += 1
    return m.head(torch.tanh(m.inner(x)) * (1.1 if m.calls > 3 else 1.0))


@scripted
def _sometimes(x: Tensor) -> Tensor:
    if bool(x.max() > 10):
        return x - x.mean(0)
    return x


class _Buffer(nn.Module):
    """Counts its passes in a buffer, and adds the count to its outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = head()
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.passes = self.passes + 1
        return self.inner(x) * (1 + 0.1 * self.passes)


class _Running(nn.Module):
    """Updates a running mean in place in every mode."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = head()
        self.register_buffer("mean", torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.mean.mul_(0.5).add_(0.5 * x.mean(0))
        return self.inner(x - self.mean)


class _Memory(nn.Module):
    """Remembers what it has seen in a Python list."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.seen = head(), [torch.zeros(1, WIDTH)]

    def forward(self, x: Tensor) -> Tensor:
        past = torch.cat(self.seen).to(x).mean(0)
        self.seen.append(x.detach().mean(0, keepdim=True))
        return self.inner(x + past)


def noisy(m: Any, x: Tensor) -> Tensor:
    return m.head(torch.tanh(m.inner(x)) + 0.1 * torch.randn(len(x), WIDTH).to(x))


class _NoisyBackward(torch.autograd.Function):
    """The identity; random numbers are added to its gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient + 0.3 * torch.randn_like(gradient)


def noisy_backward(m: Any, x: Tensor) -> Tensor:
    return m.head(torch.tanh(_NoisyBackward.apply(m.inner(x))))


def mixes_and_draws(m: Any, x: Tensor) -> Tensor:
    """The mean of the batch, and random numbers without effect."""
    hidden = torch.tanh(m.inner(x))
    return m.head(hidden - hidden.mean(0)) + 0 * torch.rand(len(x), 1).to(x)


def doubles(m: Any, x: Tensor) -> Tensor:
    """Twice as large for good after its first pass."""
    m.calls += 1
    return m.head(torch.tanh(m.inner(x))) * (2.0 if m.calls > 1 else 1.0)


def seeded_noise(m: Any, x: Tensor) -> Tensor:
    draws = torch.Generator().manual_seed(0)
    noise = torch.randn(len(x), WIDTH, generator=draws).to(x)
    return m.head(torch.tanh(m.inner(x)) + 0.3 * noise)


def numpy_noise(m: Any, x: Tensor) -> Tensor:
    import numpy as np

    noise = np.random.normal(size=(len(x), WIDTH))  # noqa: NPY002
    return m.head(torch.tanh(m.inner(x)) + 0.1 * torch.from_numpy(noise).to(x))


def capacity(m: Any, x: Tensor) -> Tensor:
    """Only the strongest half of the batch passes."""
    strength = m.score(x).squeeze(1)
    kept = strength.topk(max(1, len(x) // 2)).indices
    mask = torch.zeros_like(strength).index_fill(0, kept, 1.0)
    return m.head(torch.tanh(m.inner(x)) * mask[:, None])


MIX = {"inner": linear(), "head": head}
BATCH_NORM = refused(r"normalis.*model\.eval\(\)|track_running_stats")

MIXING = [
    *(
        net(name, *hostile.DEPENDENT[name], expected=COMPANY)
        for name in (
            "experts with little capacity",
            "shifted by the first",
            "centred over the batch",
        )
    ),
    net(
        "random slopes",
        *hostile.DEPENDENT["random slopes"],
        expected=refused("random"),
        options={"training": True},
    ),
    net("trims to the longest row", simple(trims, **MIX), ragged, expected=COMPANY),
    net(
        "trims to the longest row, later batches",
        simple(trims, **MIX),
        ragged,
        expected=COMPANY,
        options=LATER,
    ),
    net("trims by a mask of positions", simple(trims_in_one_go, **MIX), ragged, expected=COMPANY),
    net("fixed point of the whole batch", simple(fixed_point, **MIX), expected=COMPANY),
    net(
        "halts when all examples do", simple(halts, halt=linear(WIDTH, 1), **MIX), expected=COMPANY
    ),
    net(
        "mixes large batches", simple(centred_if(lambda m, x: len(x) > 8), **MIX), expected=COMPANY
    ),
    net(
        "mixes the small last batch",
        simple(centred_if(lambda m, x: len(x) == 2), **MIX),
        vectors(14),
        expected=COMPANY,
        options={"batch_size": 6},
        others={"gradients": ONE_BY_ONE, "features": ONE_BY_ONE},
    ),
    net(
        "mixes a later batch",
        simple(centred_if(lambda m, x: bool(x.max() > 10)), **MIX),
        one_large(),
        expected=COMPANY,
        options=LATER,
    ),
    net(
        "mixes after two passes",
        simple(centred_if(counted), calls=lambda: 0, **MIX),
        expected=refused("depend|pass to pass"),
        options=LATER,
    ),
    net(
        "mixes in a scripted function",
        simple(lambda m, x: m.head(torch.tanh(m.inner(_sometimes(x)))), **MIX),
        one_large(),
        expected=COMPANY,
        options=LATER,
    ),
    net(
        "30 % of the mean in bfloat16",
        simple(lambda m, x: m.head(torch.tanh(m.inner(x + 0.3 * x.mean(0)))), **MIX),
        expected=COMPANY,
        dtype=torch.bfloat16,
    ),
    net(
        "30 % of the mean in float16",
        simple(lambda m, x: m.head(torch.tanh(m.inner(x + 0.3 * x.mean(0)))), **MIX),
        expected=COMPANY,
        dtype=torch.float16,
    ),
    net(
        "one part in a thousand in float32",
        simple(lambda m, x: m.head(torch.tanh(m.inner(x + 0.003 * x.mean(0)))), **MIX),
        expected=COMPANY,
        dtype=torch.float32,
    ),
    net(
        "batch norm in training mode",
        lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), head()),
        expected=BATCH_NORM,
        options={"training": True},
    ),
    net(
        "batch norm without statistics",
        lambda: nn.Sequential(
            nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH, track_running_stats=False), head()
        ),
        expected=BATCH_NORM,
    ),
    net(
        "functional batch norm",
        simple(
            lambda m, x: m.head(
                functional.batch_norm(m.inner(x), None, None, training=True)
                if len(x) > 1
                else m.inner(x)
            ),
            **MIX,
        ),
        expected=COMPANY,
    ),
    net(
        "contrastive head",
        simple(lambda m, x: m.head(torch.softmax(m.inner(x) @ m.inner(x).T, 1) @ x), **MIX),
        expected=COMPANY,
    ),
    net(
        "softmax over the batch",
        simple(lambda m, x: m.head(m.inner(x).softmax(0)), **MIX),
        expected=COMPANY,
    ),
    net(
        "divides by the batch size",
        simple(lambda m, x: m.head(m.inner(x) / len(x)), **MIX),
        expected=COMPANY,
    ),
    net(
        "running sum over the batch",
        simple(lambda m, x: m.head(m.inner(x).cumsum(0)), **MIX),
        expected=COMPANY,
    ),
    net(
        "adds the neighbour",
        simple(lambda m, x: m.head(m.inner(x) + x.roll(1, 0)), **MIX),
        expected=COMPANY,
    ),
    net(
        "scales by the largest number",
        simple(lambda m, x: m.head(m.inner(x) / x.abs().max()), **MIX),
        expected=COMPANY,
    ),
    net(
        "keeps the strongest half",
        simple(capacity, score=linear(WIDTH, 1), **MIX),
        expected=COMPANY,
    ),
    net(
        "attention over the batch",
        simple(
            lambda m, x: m.head(m.attend(x[None], x[None], x[None], need_weights=False)[0][0]),
            attend=lambda: nn.MultiheadAttention(WIDTH, 2, batch_first=True),
            head=head,
        ),
        expected=COMPANY,
    ),
    net(
        "LSTM over the batch",
        simple(
            lambda m, x: m.head(m.lstm(x[None])[0][0]),
            head=head,
            lstm=lambda: nn.LSTM(WIDTH, WIDTH, batch_first=True),
        ),
        expected=COMPANY,
    ),
    net(
        "whitens the batch",
        simple(
            lambda m, x: m.head(
                m.inner(x - x.mean(0)) / (x.std() + 1) if len(x) > 1 else m.inner(x)
            ),
            **MIX,
        ),
        expected=COMPANY,
    ),
    net(
        "mean of the batch, detached",
        simple(lambda m, x: m.head(torch.tanh(m.inner(x)) - x.mean(0).detach()), **MIX),
        expected=COMPANY,
    ),
    net(
        "functional dropout",
        simple(lambda m, x: m.head(functional.dropout(m.inner(x), 0.5, training=True)), **MIX),
        expected=CHANCE,
    ),
    net("noise", simple(noisy, **MIX), expected=CHANCE),
    net("noise of NumPy", simple(numpy_noise, **MIX), expected=refused("random|pass to pass")),
    net("noise for one example", simple(noisy, **MIX), vectors(1), expected=CHANCE),
    net("a buffer that counts passes", _Buffer, expected=STATE, others=FEATURES_BATCHED),
    net("a running mean in every mode", _Running, expected=STATE),
    net(
        "another scale after three passes",
        simple(grows, calls=lambda: 0, **MIX),
        expected=refused("pass to pass"),
        options=LATER,
    ),
    net(
        "noise in the backward pass",
        simple(noisy_backward, **MIX),
        expected=refused("same gradients in every pass.*random"),
        others=FEATURES_BATCHED,
    ),
    net(
        "noise in the backward pass of one example",
        simple(noisy_backward, **MIX),
        vectors(1),
        expected=refused("same gradients in every pass.*random"),
        others=FEATURES_BATCHED,
    ),
    net(
        "mean of the batch beside unused random numbers",
        simple(mixes_and_draws, **MIX),
        expected=refused("depend on each other.*random numbers that it draws"),
    ),
    net(
        "doubles after the first pass, one example",
        simple(doubles, calls=lambda: 0, **MIX),
        vectors(1),
        expected=refused("pass to pass"),
        others=FEATURES_BATCHED,
    ),
    net("noise by the place in the batch", simple(seeded_noise, **MIX), expected=COMPANY),
    net(
        "first token of the next example",
        simple(
            lambda m, x: m.head(
                m.inner(torch.cat([x.flatten(0, 1)[1:], x.new_zeros(1, WIDTH)]).view_as(x)).mean(1)
            ),
            **MIX,
        ),
        ragged,
        expected=COMPANY,
    ),
    net("a memory of earlier batches", _Memory, expected=refused("pass to pass")),
    net(
        "bank of other examples",
        simple(lambda m, x: m.head(torch.cat([x, x.flip(0)], 1)), head=lambda: head(2 * WIDTH)),
        expected=COMPANY,
    ),
    net(
        "sign of the batch",
        simple(lambda m, x: m.head(m.inner(x) * x.sum().sign()), **MIX),
        expected=COMPANY,
    ),
    net(
        "majority vote",
        simple(
            lambda m, x: (
                m.head(m.inner(x)) + functional.one_hot(m.head(x).argmax(1).mode().values, CLASSES)
            ),
            **MIX,
        ),
        expected=COMPANY,
        others=FEATURES_BATCHED,
    ),
    net(
        "one row of weights per place",
        simple(
            lambda m, x: m.head(m.inner(x) * m.rows[: len(x)]), rows=weight(COUNT, WIDTH), **MIX
        ),
        expected=COMPANY,
    ),
]
