"""Fully connected networks of any depth, width, activation and initialisation."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import pairwise
from math import sqrt

import torch
from torch import Tensor, nn

from theodolite.checks import require_count, require_positive
from theodolite.errors import ShapeError, UnknownNameError
from theodolite.interventions.initializers import Initializer, initialize_

__all__ = ["NTKLinear", "Sin", "mlp", "ntk_mlp"]


class Sin(nn.Module):
    """The sine of each entry."""

    def forward(self, x: Tensor) -> Tensor:
        """Sine, entry by entry."""
        return torch.sin(x)


_ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,  # slope 0.01
    "prelu": nn.PReLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "sin": Sin,
    "linear": nn.Identity,
}


def mlp(
    sizes: Sequence[int],
    activation: str = "relu",
    *,
    bias: bool = True,
    initializer: Initializer = "he",
    scale: float | list[float] = 1.0,
    generator: torch.Generator | None = None,
) -> nn.Sequential:
    """A fully connected network: ``fc1, act1, fc2, ..., fcL``; inputs are flattened first.

    Args:
        sizes: input width, hidden widths, output width: L + 1 numbers for L layers.
        activation: after every layer but the last; ``"relu"``, ``"leaky_relu"``, ``"prelu"``,
            ``"tanh"``, ``"sigmoid"``, ``"sin"`` or ``"linear"``.
        bias: whether the layers have biases (they start at zero).
        initializer: distribution of the weights.
        scale: factor of the weights' standard deviation, one for all layers or one per layer.
        generator: source of randomness.

    Raises:
        ShapeError: If fewer than two sizes are given.
        UnknownNameError: If there is no such activation.

    Example:
        >>> net = mlp([64, 32, 10], "sin", bias=False)
        >>> sum(p.numel() for p in net.parameters())
        2368
        >>> [name for name, _ in net.named_children()]
        ['flatten', 'fc1', 'act1', 'fc2']
    """
    network = _stack(activation, [nn.Linear(a, b, bias=bias) for a, b in _pairs(sizes)])
    initialize_(network, initializer, scale, generator)
    return network


class NTKLinear(nn.Module):
    r"""A linear layer in NTK parametrisation: :math:`z = s\,W x + b` with :math:`W \sim N(0, 1)`.

    The factor :math:`s` is part of the forward map, so that the gradient with respect to the
    trainable weight carries it.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        factor: float,
        bias: bool = True,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        require_positive(factor=factor)
        self.factor = factor
        self.weight = nn.Parameter(torch.empty(out_features, in_features))
        self.bias = nn.Parameter(torch.zeros(out_features)) if bias else None
        with torch.no_grad():
            self.weight.normal_(generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the scaled map."""
        return nn.functional.linear(x, self.factor * self.weight, self.bias)

    def extra_repr(self) -> str:
        """Sizes and factor, as PyTorch prints its own layers."""
        rows, columns = self.weight.shape
        return f"in_features={columns}, out_features={rows}, factor={self.factor:.4g}"


def ntk_mlp(
    sizes: Sequence[int],
    activation: str = "relu",
    *,
    bias: bool = True,
    variance: float | None = None,
    gain: float = 2.0,
    generator: torch.Generator | None = None,
) -> nn.Sequential:
    r"""A fully connected network in NTK parametrisation.

    Layer l multiplies by :math:`\sqrt{\text{gain}/N_{l-1}}`, or by :math:`\sqrt{\text{variance}}`
    in every layer where a variance is given ([canatar2022] has 1/200 everywhere).

    Args:
        sizes: input width, hidden widths, output width.
        activation: after every layer but the last.
        bias: whether the layers have biases (they start at zero and are not scaled).
        variance: effective variance of every weight, instead of ``gain / fan_in``.
        gain: 2 keeps the scale of ReLU networks.
        generator: source of randomness.

    Example:
        >>> sum(p.numel() for p in ntk_mlp([784, 200, 200, 200, 200, 10]).parameters())
        279610
    """
    require_positive(gain=gain, **({} if variance is None else {"variance": variance}))
    layers = [
        NTKLinear(
            a,
            b,
            factor=sqrt(gain / a if variance is None else variance),
            bias=bias,
            generator=generator,
        )
        for a, b in _pairs(sizes)
    ]
    return _stack(activation, layers)


def _pairs(sizes: Sequence[int]) -> list[tuple[int, int]]:
    if len(sizes) < 2:
        raise ShapeError(f"sizes: expected input and output width at least, got {list(sizes)}")
    for size in sizes:
        require_count(1, sizes=size)
    return list(pairwise(sizes))


def _stack(activation: str, layers: Sequence[nn.Module]) -> nn.Sequential:
    if activation not in _ACTIVATIONS:
        raise UnknownNameError("activation", activation, _ACTIVATIONS)
    stack: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    for index, layer in enumerate(layers, start=1):
        stack[f"fc{index}"] = layer
        if index < len(layers):
            stack[f"act{index}"] = _ACTIVATIONS[activation]()
    return nn.Sequential(stack)
