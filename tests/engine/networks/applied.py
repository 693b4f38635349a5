"""Networks as papers and libraries build them, written by someone who had not seen the check."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.engine.networks.case import (
    BATCHED,
    CLASSES,
    COUNT,
    EXACT,
    ONE_BY_ONE,
    WIDTH,
    images,
    refused,
    tokens,
    words,
)
from tests.engine.networks.parts import head, linear, net, simple, weight

COMPANY = refused("depend")
FEATURES_BATCHED = {"features": BATCHED}
MLP = {"inner": linear(), "head": head}


def complex_weight(*shape: int) -> Any:
    return lambda: nn.Parameter(torch.randn(*shape, dtype=torch.complex128))


def complex_layer(m: Any, x: Tensor) -> Tensor:
    z = m.inner(torch.complex(x, x.flip(1)))
    return m.head(torch.cat([z.real, z.imag], 1).tanh())


def long_convolution(m: Any, x: Tensor) -> Tensor:
    """A diagonal state space model: its kernel is made of complex numbers, applied by FFT."""
    steps = x.shape[1]
    rates = torch.complex(-m.decay.exp(), m.speed)
    kernel = (m.mix[..., None] * (rates[..., None] * torch.arange(steps)).exp()).sum(1).real
    spectrum = torch.fft.rfft(x.mT, 2 * steps) * torch.fft.rfft(kernel.to(x), 2 * steps)
    return m.head(torch.fft.irfft(spectrum, 2 * steps)[..., :steps].mean(2))


def selective_scan(m: Any, x: Tensor) -> Tensor:
    """The rates of a recurrence depend on its inputs."""
    state, seen = x.new_zeros(len(x), WIDTH, 2), []
    step = functional.softplus(m.step(x))
    for t in range(x.shape[1]):
        decay = (-step[:, t, :, None] * m.rates.exp()).exp()
        state = decay * state + (step * x)[:, t, :, None] * m.write(x)[:, t, None]
        seen.append((state * m.read(x)[:, t, None]).sum(2))
    return m.head(torch.stack(seen, 1).mean(1))


def global_filter(m: Any, x: Tensor) -> Tensor:
    spectrum = torch.fft.rfft(x, dim=1) * torch.view_as_complex(m.filters)
    return m.head(torch.fft.irfft(spectrum, n=x.shape[1], dim=1).tanh().mean(1))


def edges(x: Tensor) -> tuple[Tensor, Tensor]:
    """A ring in every example, in a graph that joins all examples."""
    places = torch.arange(len(x) * x.shape[1]).view(len(x), -1)
    return places.flatten(), places.roll(1, 1).flatten()


def joined_graphs(m: Any, x: Tensor) -> Tensor:
    nodes, (source, target) = x.flatten(0, 1), edges(x)
    messages = m.inner(torch.cat([nodes[source], nodes[target]], 1)).relu()
    sums = torch.zeros_like(nodes).index_add(0, target, messages)
    return m.head((nodes + sums).view_as(x).sum(1))


def sparse_graphs(m: Any, x: Tensor) -> Tensor:
    places = torch.stack(edges(x))
    size = len(x) * x.shape[1]
    links = torch.sparse_coo_tensor(places, torch.ones(size).to(x), (size, size))
    return m.head(torch.sparse.mm(links, m.inner(x.flatten(0, 1))).relu().view_as(x).mean(1))


def windows(m: Any, x: Tensor) -> Tensor:
    """Attention inside windows of a map that is rolled."""
    maps = m.inner(torch.roll(x, (-1, -1), (2, 3)).movedim(1, -1))
    cells = maps.view(len(x), 2, 3, 2, 3, -1).transpose(2, 3).reshape(-1, 9, maps.shape[-1])
    mixed = (cells @ cells.mT + m.bias).softmax(2) @ cells
    return m.head(mixed.view(len(x), 36, -1).mean(1))


def slots(m: Any, x: Tensor) -> Tensor:
    """Slots compete for tokens; a cell sees the slots of all examples in one batch."""
    found = m.start.expand(len(x), -1, -1)
    for _ in range(2):
        share = (x @ m.inner(found).mT).softmax(2)
        read = (share / share.sum(1, keepdim=True)).mT @ x
        found = m.cell(read.flatten(0, 1), found.flatten(0, 1)).view_as(found)
    return m.head(found.amax(1))


def decodes_with_cache(m: Any, ids: Tensor) -> Tensor:
    """The next word is the most probable one; keys and values are kept."""
    word, kept, total = ids[:, 0], [], 0.0
    for _ in range(4):
        kept.append(m.inner(m.table(word)))
        keys = torch.stack(kept, 1)
        read = ((keys @ keys[:, -1:].mT).softmax(1) * keys).sum(1)
        total, word = total + read, m.words(read).argmax(1)
    return m.head(total)


def beams(m: Any, x: Tensor) -> Tensor:
    """Two beams for each example take the states of their parents, in one batch."""
    state, scores = m.inner(x).repeat_interleave(2, 0), x.new_zeros(len(x), 2)
    scores[:, 1] = -1e3
    for _ in range(3):
        words = (m.words(state).log_softmax(1).view(len(x), 2, -1) + scores[..., None]).flatten(1)
        scores, best = words.topk(2, 1)
        parents = (best // CLASSES + 2 * torch.arange(len(x))[:, None]).flatten()
        state = (state[parents] + m.table.weight[best.flatten() % CLASSES]).tanh()
    return m.head((state.view(len(x), 2, -1) * scores.softmax(1)[..., None]).sum(1))


def inner_step(m: Any, x: Tensor) -> Tensor:
    """One step of gradient descent for each example."""

    def adapted(row: Tensor) -> Tensor:
        gradient = torch.func.grad(lambda weight: (row @ weight).square().sum())(m.weight)
        return row @ (m.weight - m.rate * gradient)

    return m.head(torch.func.vmap(adapted)(x))


def fast_weights(m: Any, x: Tensor) -> Tensor:
    matrix = m.start.expand(len(x), -1, -1)
    for t in range(x.shape[1]):
        key, value = m.key(x[:, t]).tanh(), m.value(x[:, t])
        error = value - (matrix @ key[..., None])[..., 0]
        matrix = matrix + 0.1 * error[..., None] * key[:, None]
    return m.head((matrix @ x[:, -1, :, None])[..., 0])


def equilibrium(m: Any, x: Tensor) -> Tensor:
    """A fixed point, whose gradient is a fixed point too (a hook)."""

    def step(z: Tensor) -> Tensor:
        return (0.2 * m.inner(z) + x).tanh()

    with torch.no_grad():
        z = torch.zeros_like(x)
        for _ in range(40):
            z = step(z)
    found = step(z)
    if found.requires_grad:
        again = z.detach().requires_grad_()
        value = step(again)

        def solve(gradient: Tensor) -> Tensor:
            total = gradient
            for _ in range(40):
                back = torch.autograd.grad(value, again, total, retain_graph=True)[0]
                total = back + gradient
            return total

        found.register_hook(solve)
    return m.head(found)


def adaptive_steps(m: Any, x: Tensor) -> Tensor:
    """A step of the solver is repeated with half the size if any example has a large error."""
    time, size = 0.0, 0.5
    while time < 1:
        first = m.inner(x).tanh()
        second = m.inner(x + size * first).tanh()
        if float((second - first).detach().abs().max()) * size > 0.1 and size > 0.01:
            size /= 2
            continue
        x, time = x + size * (first + second) / 2, time + size
    return m.head(x)


def dynamic_int8(m: Any, x: Tensor) -> Tensor:
    """Activations are rounded with one scale for all."""
    hidden = m.inner(x)
    scale = hidden.detach().abs().amax() / 127
    return m.head(hidden + ((hidden / scale).round() * scale - hidden).detach())


def tiny_branch(m: Any, x: Tensor) -> Tensor:
    hidden, branch = m.inner(x).tanh(), m.branch(x)
    return m.head(hidden + 1e-6 * (branch - branch.mean(0)))


def cancelled_mean(m: Any, x: Tensor) -> Tensor:
    """Outputs do not depend on other examples, gradients do."""
    hidden = m.inner(x).tanh()
    mean = hidden.mean(0)
    return m.head(hidden - mean + mean.detach())


def silent_branch(m: Any, x: Tensor) -> Tensor:
    """A branch that mixes examples ends in a layer of zeros: its gradient depends on others."""
    branch = m.branch(x).relu()
    return m.head(m.inner(x).tanh()) + m.last(branch - branch.mean(0))


def zeros() -> nn.Module:
    layer = nn.Linear(WIDTH, CLASSES)
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)
    return layer


def sampled_map(m: Any, x: Tensor) -> Tensor:
    """All examples read one map; they are the rows of its grid."""
    places = x.tanh().view(1, len(x), -1, 2)
    return m.head(
        functional.grid_sample(m.map, places, align_corners=True)[0].movedim(1, 0).flatten(1)
    )


def offsets(m: Any, x: Tensor) -> Tensor:
    """A convolution that learns where to look (deformable)."""
    steps = torch.linspace(-1, 1, x.shape[-1]).to(x)
    grid = torch.stack(torch.meshgrid(steps, steps, indexing="xy"), -1)
    moves = 0.2 * m.moves(x).view(len(x), 3, 2, *x.shape[2:]).movedim(2, -1)
    looks = [functional.grid_sample(x, grid + moves[:, k], align_corners=True) for k in range(3)]
    return m.head((m.weight @ torch.cat(looks, 1).flatten(2)).relu().mean(2))


def in_threads(m: Any, x: Tensor) -> Tensor:
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda layer: layer(x), (m.first, m.second))
    return m.head(first.tanh() * second)


def replaces_largest(m: Any, x: Tensor) -> Tensor:
    """NumPy decides which example gets the mean of all."""
    hidden = m.inner(x)
    values = hidden.detach().numpy().copy()
    values[values[:, 0].argmax()] = values.mean(0)
    return m.head(hidden + torch.from_numpy(values))


def mixes_small(m: Any, x: Tensor) -> Tensor:
    """Half of the examples are small, and only these are mixed."""
    hidden = m.inner(x)
    small = (x.norm(dim=1, keepdim=True) < 0.1).to(x)
    mean = (hidden * small).sum(0) / small.sum().clamp(min=1)
    return m.head(hidden * (1 - small) + mean * small)


def every_second_small() -> Tensor:
    x = torch.randn(COUNT, WIDTH)
    x[::2] *= 1e-3
    return x


APPLIED = [
    net(
        "complex layer",
        simple(
            complex_layer,
            inner=lambda: nn.Linear(WIDTH, WIDTH, dtype=torch.complex128),
            head=lambda: head(2 * WIDTH),
        ),
        expected=ONE_BY_ONE,
        others=FEATURES_BATCHED,
    ),
    net(
        "state space model, by FFT",
        simple(
            long_convolution,
            decay=weight(WIDTH, 2),
            speed=weight(WIDTH, 2),
            mix=complex_weight(WIDTH, 2),
            head=head,
        ),
        tokens(steps=5),
        expected=ONE_BY_ONE,
        others=FEATURES_BATCHED,
    ),
    net(
        "selective scan",
        simple(
            selective_scan,
            step=linear(),
            write=linear(WIDTH, 2),
            read=linear(WIDTH, 2),
            rates=weight(2),
            head=head,
        ),
        tokens(),
    ),
    net(
        "global filter",
        simple(global_filter, filters=weight(3, WIDTH, 2), head=head),
        tokens(steps=4),
    ),
    net(
        "joined graphs",
        simple(joined_graphs, inner=linear(2 * WIDTH, WIDTH), head=head),
        tokens(),
    ),
    net(
        "joined graphs, sparse",
        simple(sparse_graphs, **MLP),
        tokens(),
    ),
    net(
        "shifted windows",
        simple(windows, inner=linear(2, WIDTH), bias=weight(9, 9), head=head),
        images(),
    ),
    net(
        "slots",
        simple(
            slots,
            start=weight(1, 2, WIDTH),
            cell=lambda: nn.GRUCell(WIDTH, WIDTH),
            **MLP,
        ),
        tokens(),
    ),
    net(
        "greedy decoding with a cache",
        simple(
            decodes_with_cache,
            table=lambda: nn.Embedding(7, WIDTH),
            words=linear(WIDTH, 7),
            **MLP,
        ),
        words(),
    ),
    net(
        "beam search",
        simple(beams, table=lambda: nn.Embedding(CLASSES, WIDTH), words=head, **MLP),
    ),
    net(
        "a step of learning for each example",
        simple(inner_step, weight=weight(WIDTH, WIDTH), rate=weight(1), head=head),
        expected=ONE_BY_ONE,
        others=FEATURES_BATCHED,
    ),
    net(
        "fast weights",
        simple(
            fast_weights, start=weight(1, WIDTH, WIDTH), key=linear(), value=linear(), head=head
        ),
        tokens(),
    ),
    net("equilibrium with a hook", simple(equilibrium, **MLP)),
    net("step size by the largest error", simple(adaptive_steps, **MLP), expected=COMPANY),
    net("dynamic quantisation", simple(dynamic_int8, **MLP), expected=COMPANY),
    net(
        "small branch that mixes",
        simple(tiny_branch, branch=linear(), **MLP),
        expected=COMPANY,
    ),
    net(
        "mean that cancels in the values",
        simple(cancelled_mean, **MLP),
        expected=ONE_BY_ONE,
        others=FEATURES_BATCHED,
    ),
    net(
        "branch that mixes before zeros",
        simple(silent_branch, branch=linear(), last=zeros, **MLP),
        expected=ONE_BY_ONE,
        others=FEATURES_BATCHED,
    ),
    net("one map for all examples", simple(sampled_map, map=weight(1, 2, 4, 4), head=head)),
    net(
        "weight from one diagonal",
        simple(
            lambda m, x: m.head((x @ m.numbers.as_strided((WIDTH, WIDTH), (1, 1))).tanh()),
            numbers=weight(2 * WIDTH - 1),
            head=head,
        ),
    ),
    net(
        "examples as columns",
        simple(
            lambda m, x: (m.last @ torch.addmm(m.bias, m.weight, x.T).relu()).T,
            weight=weight(WIDTH, WIDTH),
            bias=weight(WIDTH, 1),
            last=weight(CLASSES, WIDTH),
        ),
    ),
    net(
        "learned offsets",
        simple(
            offsets,
            moves=lambda: nn.Conv2d(2, 6, 3, padding=1),
            weight=weight(WIDTH, 6),
            head=head,
        ),
        images(),
    ),
    net(
        "layers in threads",
        simple(in_threads, first=linear(), second=linear(), head=head),
        expected=ONE_BY_ONE,
        others={"features": EXACT},
    ),
    net("NumPy replaces one example", simple(replaces_largest, **MLP), expected=COMPANY),
    net(
        "mixes its small examples in float32",
        simple(mixes_small, **MLP),
        every_second_small,
        expected=COMPANY,
        dtype=torch.float32,
        tolerance=1e-4,
    ),
]
