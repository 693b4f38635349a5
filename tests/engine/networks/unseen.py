"""Networks and losses that a third person wrote to break the check, without having seen it."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.engine.networks.case import (
    BATCHED,
    CLASSES,
    COUNT,
    ONE_BY_ONE,
    WIDTH,
    images,
    ragged,
    refused,
    tokens,
    vectors,
    words,
)
from tests.engine.networks.parts import Wrapped, head, linear, net, simple, weight

COMPANY = refused("depend")
FEATURES_BATCHED = {"features": BATCHED}
MLP: dict[str, Any] = {"inner": linear(), "head": head}


def mlp(m: Any, x: Tensor) -> Tensor:
    return m.head(torch.tanh(m.inner(x)))


def scaled_gradient(x: Tensor, factor: Any) -> Tensor:
    """The same numbers; their gradient is multiplied by a factor."""
    return x.detach() + (x - x.detach()) * factor


def doubled_by_mean(m: Any, x: Tensor) -> Tensor:
    """The gradient doubles if the mean of the batch is positive; outputs are the same."""
    return m.head(torch.tanh(scaled_gradient(m.inner(x), 1 + (x.mean() > 0))))


def cut_by_mean(m: Any, x: Tensor) -> Tensor:
    hidden = m.inner(x)
    return m.head(torch.tanh(torch.where(x.mean() > 0, hidden, hidden.detach())))


def doubled_by_largest(m: Any, x: Tensor) -> Tensor:
    return m.head(torch.tanh(scaled_gradient(m.inner(x), 1 + (x.max() > 1))))


def frozen_in_batches(m: Any, x: Tensor) -> Tensor:
    """The weight has a gradient for a single example only."""
    inner = m.inner.weight.detach() if len(x) > 1 else m.inner.weight
    return m.head(torch.tanh(functional.linear(x, inner, m.inner.bias)))


def noise_aside(m: Any, x: Tensor) -> Tensor:
    """A layer that sees random numbers does not reach the outputs."""
    m.side(torch.randn_like(x))
    return mlp(m, x)


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, targets, reduction="none")


def zero_loss(outputs: Tensor, _targets: Tensor) -> Tensor:
    return 0 * outputs.sum(1)


def hinge(outputs: Tensor, _targets: Tensor) -> Tensor:
    """No example is on the wrong side."""
    return functional.relu(outputs[:, 0] - 50)


def random_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(outputs, targets) * torch.rand(len(outputs))


def dropout_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(functional.dropout(outputs, 0.5), targets)


def loss_scaled_by_batch(outputs: Tensor, targets: Tensor) -> Tensor:
    """Equal losses; their gradients double if the first class is ahead of the second."""
    first, second = outputs.detach().mean(0)[:2]
    return cross_entropy(scaled_gradient(outputs, 1 + (first > second)), targets)


def statistics_of_each_channel(m: Any, x: Tensor) -> Tensor:
    """Instance norm by ``batch_norm``: all channels of all examples are channels of one image."""
    maps = m.conv(x)
    n, c, height, width = maps.shape
    scale, shift = m.scale.repeat(n), m.shift.repeat(n)
    one = maps.reshape(1, n * c, height, width)
    normal = functional.batch_norm(one, None, None, scale, shift, training=True)
    return m.head(normal.reshape(n, -1).relu())


def written_parameters(m: Any, x: Tensor) -> Tensor:
    """Every example begins with the same parameters and writes into its own copy."""
    state = m.start.repeat(len(x), 1)
    state[:, :2] += m.inner(x)[:, :2]
    state[:, 2:].mul_(x[:, :2])
    return m.head(torch.tanh(state))


def segments(m: Any, x: Tensor) -> Tensor:
    """Only real tokens, with the example of each."""
    mask = x.abs().sum(-1) > 0
    owner = torch.arange(len(x)).repeat_interleave(mask.sum(1))
    hidden = torch.tanh(m.inner(x[mask]))
    return m.head(x.new_zeros(len(x), WIDTH).index_add(0, owner, hidden))


def scattered(m: Any, x: Tensor) -> Tensor:
    mask = x.abs().sum(-1) > 0
    hidden = torch.zeros_like(x)
    hidden[mask] = torch.tanh(m.inner(x[mask]))
    return m.head(hidden.sum(1))


def packed(m: Any, x: Tensor) -> Tensor:
    lengths = (x.abs().sum(-1) > 0).sum(1)
    rows = nn.utils.rnn.pack_padded_sequence(x, lengths, True, enforce_sorted=False)
    return m.head(m.layer(rows)[1][-1])


def kernels_of_each(m: Any, x: Tensor) -> Tensor:
    """Every example makes its own convolution; one grouped call applies all."""
    n, _, size, _ = x.shape
    kernels = m.maker(x.mean((2, 3))).reshape(n * 3, 2, 3, 3)
    maps = functional.conv2d(x.reshape(1, 2 * n, size, size), kernels, groups=n)
    return m.head(maps.reshape(n, -1).relu())


def transformed(m: Any, x: Tensor) -> Tensor:
    """A spatial transformer."""
    grid = functional.affine_grid(
        m.angles(x.mean((2, 3))).view(-1, 2, 3), [*x.shape], align_corners=False
    )
    return m.head(functional.grid_sample(x, grid, align_corners=False).flatten(1))


def unpooled(m: Any, x: Tensor) -> Tensor:
    maps, places = functional.max_pool2d(m.conv(x), 2, return_indices=True)
    return m.head(functional.max_unpool2d(maps, places, 2).flatten(1))


def equal_rows_once(m: Any, x: Tensor) -> Tensor:
    rows, where = torch.unique(x, dim=0, return_inverse=True)
    return mlp(m, rows)[where]


def equal_rows() -> Tensor:
    return torch.randn(4, WIDTH)[torch.arange(COUNT) % 4]


def experts_gathered(m: Any, x: Tensor) -> Tensor:
    """The weights of each example's expert are picked from a stack."""
    chosen = m.experts[m.router(x).argmax(1)]
    return m.head(torch.tanh(torch.einsum("nd,ndk->nk", x, chosen)))


def offsets(m: Any, x: Tensor) -> Tensor:
    starts = torch.arange(0, x.numel(), x.shape[1])
    return m.head(m.table(x.flatten(), starts))


def columns_in_place(m: Any, x: Tensor) -> Tensor:
    """Outputs are written column by column."""
    outputs, hidden = x.new_zeros(len(x), CLASSES), torch.tanh(m.inner(x))
    for column, row in enumerate(m.head.weight):
        outputs[:, column] = hidden @ row
    return outputs


def directional(m: Any, x: Tensor) -> Tensor:
    return torch.func.jvp(lambda z: mlp(m, z), (x,), (torch.ones_like(x),))[1]


def noise_of_each_row(m: Any, x: Tensor) -> Tensor:
    """Noise from a seed that each example makes."""
    seeds = (x[:, 0].abs() * 1e6).long().tolist()
    rows = [torch.randn(WIDTH, generator=torch.Generator().manual_seed(seed)) for seed in seeds]
    return m.head(torch.tanh(m.inner(x) + torch.stack(rows).to(x)))


def augmented(m: Any, x: Tensor) -> Tensor:
    """Three versions of each example, one block after the other."""
    return mlp(m, torch.cat([x, -x, 2 * x])).view(3, len(x), CLASSES).mean(0)


def sparse_weight(m: Any, x: Tensor) -> Tensor:
    return m.head(torch.sparse.mm(m.inner.weight.to_sparse(), x.T).T)


def hooked(change: Callable[[Tensor], Tensor]) -> Callable[[], nn.Module]:
    """A network whose first layer has a hook that changes its outputs."""

    def make() -> nn.Module:
        model = simple(mlp, **MLP)()
        assert isinstance(model, Wrapped)
        model.inner.register_forward_hook(lambda _module, _args, out: change(out))
        return model

    return make


def table(**options: Any) -> Callable[[], nn.Module]:
    return simple(
        lambda m, x: m.head(m.table(x).mean(1)),
        table=lambda: nn.Embedding(7, WIDTH, **options),
        head=head,
    )


def mixes_small_examples(m: Any, x: Tensor) -> Tensor:
    """Small examples see the mean of the others; a large one is as it was."""
    small = (x.abs().amax(1, keepdim=True) < 10).to(x)
    mean = (small * x).sum(0) / small.sum().clamp(min=1)
    return m.head(m.inner(x - 0.2 * small * mean))


def one_example_far_out() -> Tensor:
    x = torch.randn(COUNT, WIDTH)
    x[7] *= 1e5
    return x


def users_in_pairs(m: Any, x: Tensor) -> Tensor:
    """Examples of one user see each other; there are two of each user."""
    user = x[:, :1].argsort(0).argsort(0) // 2
    company = (user == user.T).to(x)
    return mlp(m, company @ x / company.sum(1, keepdim=True))


def moved_and_back(m: Any, x: Tensor) -> Tensor:
    """In the small last batch the rows are moved before a layer and moved back after it."""
    hidden = torch.tanh(m.inner(x))
    if len(x) == 5:
        return m.head(hidden[[1, 2, 3, 4, 0]])[[4, 0, 1, 2, 3]]
    return m.head(hidden)


LOSS_DRAWS = refused("loss: expected equal numbers")

UNSEEN = [
    net("gradient doubles by the mean", simple(doubled_by_mean, **MLP), expected=ONE_BY_ONE,
        others=FEATURES_BATCHED),
    net("gradient stops by the mean", simple(cut_by_mean, **MLP), expected=ONE_BY_ONE,
        others=FEATURES_BATCHED),
    net("gradient doubles by the largest", simple(doubled_by_largest, **MLP), expected=ONE_BY_ONE,
        others=FEATURES_BATCHED),
    net("weight frozen in batches", simple(frozen_in_batches, **MLP), expected=ONE_BY_ONE,
        others=FEATURES_BATCHED),
    net("layer aside that sees noise", simple(noise_aside, side=linear(), **MLP),
        expected=ONE_BY_ONE, others={"features": refused("random numbers")}),
    net("loss of zero", simple(mlp, **MLP), options={"loss": zero_loss}),
    net("hinge loss of zero", simple(mlp, **MLP), options={"loss": hinge}, dtype=torch.float32,
        tolerance=1e-4),
    net("random loss", simple(mlp, **MLP), options={"loss": random_loss},
        others={"gradients": LOSS_DRAWS}),
    net("loss with dropout", simple(mlp, **MLP), options={"loss": dropout_loss},
        others={"gradients": LOSS_DRAWS}),
    net("loss whose gradient doubles by the batch", simple(mlp, **MLP),
        options={"loss": loss_scaled_by_batch}, others={"gradients": ONE_BY_ONE}),
    net(
        "logits too sure for float32",
        simple(lambda m, x: 1e5 * m.head(m.inner(x)).softmax(1), **MLP),
        dtype=torch.float32,
        tolerance=1e-3,
        options={"loss": lambda outputs, _: cross_entropy(outputs, outputs.argmax(1))},
    ),
    net(
        "statistics of each channel of each example",
        simple(
            statistics_of_each_channel,
            conv=lambda: nn.Conv2d(2, 3, 3),
            scale=weight(3),
            shift=weight(3),
            head=lambda: head(48),
        ),
        images(),
        expected=ONE_BY_ONE,
        others=FEATURES_BATCHED,
    ),
    net("gradient by the frequency of tokens", table(scale_grad_by_freq=True), words(),
        expected=ONE_BY_ONE, others=FEATURES_BATCHED),
    net("rows of limited norm", table(max_norm=1.0), words(), expected=ONE_BY_ONE,
        others=FEATURES_BATCHED),
    net("writes into repeated parameters", simple(written_parameters, start=weight(WIDTH), **MLP),
        expected=ONE_BY_ONE, others=FEATURES_BATCHED),
    net("segments of tokens", simple(segments, **MLP), ragged, expected=ONE_BY_ONE,
        others=FEATURES_BATCHED),
    net("scattered tokens", simple(scattered, **MLP), ragged, expected=ONE_BY_ONE,
        others=FEATURES_BATCHED),
    net(
        "packed GRU in any order",
        simple(packed, layer=lambda: nn.GRU(WIDTH, WIDTH, batch_first=True), head=head),
        ragged,
        expected=ONE_BY_ONE,
        others=FEATURES_BATCHED,
    ),
    net(
        "one grouped call for the kernels of all",
        simple(kernels_of_each, maker=linear(2, 54), head=lambda: head(48)),
        images(),
    ),
    net("spatial transformer", simple(transformed, angles=linear(2, 6), head=lambda: head(72)),
        images()),
    net(
        "unpooled maps",
        simple(unpooled, conv=lambda: nn.Conv2d(2, 2, 3, padding=1), head=lambda: head(72)),
        images(),
    ),
    net("equal rows once", simple(equal_rows_once, **MLP), equal_rows, expected=ONE_BY_ONE,
        others={"features": refused("one row per example")}),
    net("experts picked from a stack",
        simple(experts_gathered, router=linear(WIDTH, 3), experts=weight(3, WIDTH, WIDTH),
               head=head)),
    net("bags by offsets",
        simple(offsets, table=lambda: nn.EmbeddingBag(7, WIDTH), head=head), words(),
        expected=ONE_BY_ONE, others=FEATURES_BATCHED),
    net("columns in place", simple(columns_in_place, **MLP)),
    net("directional derivative", simple(directional, **MLP), expected=ONE_BY_ONE,
        others={"features": refused("transform of torch.func")}),
    net("noise from a seed of each example", simple(noise_of_each_row, **MLP)),
    net("three versions of each example", simple(augmented, **MLP),
        others={"features": refused("one row per example")}),
    net("sparse product of a weight", simple(sparse_weight, **MLP), expected=ONE_BY_ONE,
        others=FEATURES_BATCHED),
    net("hook that doubles outputs", hooked(lambda out: 2 * out)),
    net("hook that centres outputs", hooked(lambda out: out - out.mean(0)), expected=COMPANY),
    net("mixes all but one example, which is far out", simple(mixes_small_examples, **MLP),
        one_example_far_out, expected=ONE_BY_ONE, dtype=torch.float32, tolerance=1e-6),
    net("moves the rows of the small last batch, and back", simple(moved_and_back, **MLP),
        vectors(17), expected=ONE_BY_ONE, options={"batch_size": 6}),
    net("users in pairs", simple(users_in_pairs, **MLP), expected=COMPANY),
    net("traced", lambda: torch.jit.trace(simple(mlp, **MLP)(), torch.randn(2, WIDTH)),
        expected=ONE_BY_ONE, others={"features": refused("do not; choose the layer around")}),
    net("scan over the wrong axis",
        simple(lambda m, x: m.head(m.inner(x).cumsum(0)[:, -1]), **MLP), tokens(),
        expected=COMPANY),
]  # fmt: skip
