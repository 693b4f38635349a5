"""Networks with one answer per example that leave examples in place: all must go in batches."""

import math
from typing import Any

import torch
from torch import nn
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
    tokens,
    vectors,
    words,
)
from tests.engine.networks.parts import head, linear, net, simple, weight
from tests.engine.networks.passes import (
    HuggingConv,
    Square,
    attention,
    bag,
    decodes,
    distances,
    empty_layer,
    fitted,
    fitted_targets,
    fixed_iterations,
    gathers,
    graph,
    hypernetwork,
    loops_over_rows,
    mapped,
    mapped_modules,
    masked_mean,
    mixer,
    normalises_weights,
    normed,
    pairs,
    reads_lists,
    rotates,
    scan,
    sequence_first,
    smooth,
    soft_experts,
    squared,
    squeezes,
    swish_gate,
    two_names,
    unfolds,
)


def _zoo(name: str) -> Network:
    def build() -> nn.Module:
        return zoo.specimen(name).model

    def data() -> Any:
        return zoo.specimen(name).inputs

    readout = zoo.specimen(name).readout
    return Network(name, build, data, BATCHED, options={"readout": readout, "classes": 2})


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
        simple(lambda m, x: m.head(Square.apply(m.inner(x))), inner=linear(), head=head),
    ),
    net(
        "scripted function",
        simple(lambda m, x: m.head(smooth(m.inner(x))), inner=linear(), head=head),
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
    net(
        "writes to its inputs",
        simple(lambda m, x: m.head(torch.tanh(m.inner(x.mul_(0.9)))), inner=linear(), head=head),
    ),
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
