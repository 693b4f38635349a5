"""The activations of the papers, by name."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from theodolite.errors import UnknownNameError

__all__ = ["ACTIVATIONS", "Sin", "activation"]


class Sin(nn.Module):
    """The sine of each entry."""

    def forward(self, x: Tensor) -> Tensor:
        """Sine, entry by entry."""
        return torch.sin(x)


ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,  # slope 0.01
    "prelu": nn.PReLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "sin": Sin,
    "linear": nn.Identity,
}


def activation(name: str) -> nn.Module:
    """A new activation module.

    Raises:
        UnknownNameError: If there is none of this name.
    """
    if name not in ACTIVATIONS:
        raise UnknownNameError("activation", name, ACTIVATIONS)
    return ACTIVATIONS[name]()
