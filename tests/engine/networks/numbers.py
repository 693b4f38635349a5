"""Networks and inputs whose numbers are not finite, or outside the range of their dtype."""

from typing import Any

import torch
from torch import Tensor, nn

from tests.engine.networks.case import BATCHED, COUNT, ONE_BY_ONE, WIDTH, refused
from tests.engine.networks.parts import head, linear, net, simple

PLAIN = {"inner": lambda: nn.Linear(WIDTH, WIDTH, bias=False), "head": head}
MLP = simple(lambda m, x: m.head(torch.tanh(m.inner(x))), inner=linear(), head=head)


def with_number(value: float, place: int) -> Any:
    def make() -> Tensor:
        x = torch.randn(COUNT, WIDTH)
        x[place, 1] = value
        return x

    return make


def with_zeros(place: int) -> Any:
    def make() -> Tensor:
        x = torch.randn(COUNT, WIDTH)
        x[place] = 0.0
        return x

    return make


def sorted_and_small(m: Any, x: Tensor) -> Tensor:
    """Sorted examples are measured one by one; their kernels are too small for float32."""
    order = x[:, 0].argsort()
    return 1e-22 * m.head(m.inner(x[order])[order.argsort()])


def weights_with(value: float) -> Any:
    def make() -> nn.Module:
        model = MLP()
        with torch.no_grad():
            model.inner.weight[0, 0] = value
        return model

    return make


def scaled(factor: float) -> Any:
    """Two linear layers whose weights are so large, or small."""

    def make() -> nn.Module:
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), head())
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(factor)
        return model

    return make


WIDER = refused(r"float32.*dtype=torch\.float64")

NUMBERS = [
    net("NaN in one example", MLP, with_number(float("nan"), 5), expected=refused(r"example 5\b")),
    net(
        "infinity in one example",
        simple(lambda m, x: m.head(m.inner(x)), inner=linear(), head=head),
        with_number(float("inf"), 7),
        expected=refused(r"example 7\b"),
    ),
    net(
        "NaN in a later batch",
        MLP,
        with_number(float("nan"), 9),
        expected=refused(r"example 9\b"),
        options={"batch_size": 4},
    ),
    net("NaN in a weight", weights_with(float("nan")), expected=refused("'inner.weight'")),
    net(
        "logarithm of a negative number",
        simple(lambda m, x: m.head((m.inner(x)).log()), inner=linear(), head=head),
        expected=refused(r"example \d"),
    ),
    net(
        "slope without bound for one example",
        simple(lambda m, x: m.head(m.inner(x).square().sum(1, keepdim=True).sqrt() * x), **PLAIN),
        with_zeros(5),
        expected=refused(r"gradients.*example 5\b"),
        others={"features": BATCHED},
    ),
    net(
        "kernel above the range of float32",
        scaled(1e12),
        lambda: 1e8 * torch.randn(COUNT, WIDTH),
        expected=WIDER,
        others={"tangent features": BATCHED, "features": BATCHED, "gradients": BATCHED},
        dtype=torch.float32,
        tolerance=1e-3,
    ),
    net(
        "kernel below the range of float32",
        scaled(1e-12),
        lambda: 1e-12 * torch.randn(COUNT, WIDTH),
        expected=WIDER,
        others={"tangent features": BATCHED, "features": BATCHED, "gradients": BATCHED},
        dtype=torch.float32,
        tolerance=1e-3,
    ),
    net(
        "kernel below the range, one by one",
        simple(sorted_and_small, inner=linear(), head=head),
        expected=WIDER,
        others={"tangent features": ONE_BY_ONE, "features": ONE_BY_ONE, "gradients": ONE_BY_ONE},
        dtype=torch.float32,
        tolerance=1e-3,
    ),
]
