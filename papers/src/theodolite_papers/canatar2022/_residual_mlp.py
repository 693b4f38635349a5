"""The residual network of the small grid: ten hidden layers, fully connected."""

import torch
from torch import Tensor, nn

from theodolite.interventions import initialize_

__all__ = ["ResidualMLP", "residual_mlp"]


class Unit(nn.Sequential):
    """Linear map without bias, batch norm, ReLU."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(nn.Linear(inputs, outputs, bias=False), nn.BatchNorm1d(outputs), nn.ReLU())


class Block(nn.Module):
    """Two units, with or without the input added to their output."""

    def __init__(self, width: int, skip: bool) -> None:
        super().__init__()
        self.first = Unit(width, width)
        self.second = Unit(width, width)
        self.skip = skip

    def forward(self, x: Tensor) -> Tensor:
        """``x + u2(u1(x))``, or ``u2(u1(x))`` without the skip."""
        branch: Tensor = self.second(self.first(x))
        return x + branch if self.skip else branch


class ResidualMLP(nn.Module):
    """A unit, four residual blocks of two units, a unit, a linear read-out without bias.

    ``probes`` names the ten hidden layers in order; the second layer of a block is taken after the
    addition.
    """

    probes = (
        "unit1",
        *(f"block{k}{part}" for k in range(1, 5) for part in (".first", "")),
        "unit10",
    )

    def __init__(self, inputs: int, width: int, num_classes: int, skip: bool) -> None:
        super().__init__()
        self.flatten = nn.Flatten()
        self.unit1 = Unit(inputs, width)
        self.block1 = Block(width, skip)
        self.block2 = Block(width, skip)
        self.block3 = Block(width, skip)
        self.block4 = Block(width, skip)
        self.unit10 = Unit(width, width)
        self.head = nn.Linear(width, num_classes, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Outputs: the read-out of the penultimate features."""
        x = self.block2(self.block1(self.unit1(self.flatten(x))))
        outputs: Tensor = self.head(self.unit10(self.block4(self.block3(x))))
        return outputs


def residual_mlp(
    inputs: int, width: int, num_classes: int, skip: bool, generator: torch.Generator
) -> ResidualMLP:
    """The network with PyTorch's default distributions."""
    network = ResidualMLP(inputs, width, num_classes, skip)
    initialize_(network, "default", 1.0, generator)
    return network
