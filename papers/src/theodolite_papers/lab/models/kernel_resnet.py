"""The residual network of eleven convolutions whose layer kernels are studied, with ten probes."""

import torch
from torch import Tensor, nn

from theodolite.interventions.initializers import initialize_

__all__ = ["KernelResNet", "kernel_resnet"]


class Unit(nn.Sequential):
    """Convolution without bias, batch norm, ReLU."""

    def __init__(self, inputs: int, outputs: int, kernel: int = 3, stride: int = 1) -> None:
        conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
        super().__init__(conv, nn.BatchNorm2d(outputs), nn.ReLU())


class Block(nn.Module):
    """Two units, with or without the input added to their output; no activation after the sum."""

    def __init__(self, channels: int, skip: bool) -> None:
        super().__init__()
        self.first = Unit(channels, channels)
        self.second = Unit(channels, channels)
        self.skip = skip

    def forward(self, x: Tensor) -> Tensor:
        """``x + u2(u1(x))``, or ``u2(u1(x))`` without the skip."""
        branch: Tensor = self.second(self.first(x))
        return x + branch if self.skip else branch


class KernelResNet(nn.Module):
    """Eleven convolutions, three residual blocks, global max-pool, linear read-out without bias.

    ``probes`` names the ten layers whose features are studied, in order; the ninth has 512
    channels, the tenth is the penultimate layer with 256.
    """

    probes = (
        "unit2",
        "block1.first",
        "block1",
        "unit5",
        "block2.first",
        "block2",
        "unit8",
        "block3.first",
        "block3",
        "flatten",
    )

    def __init__(
        self,
        num_classes: int = 10,
        *,
        skip: bool = True,
        output_scale: float = 1.0,
        in_channels: int = 3,
    ) -> None:
        super().__init__()
        self.unit1 = Unit(in_channels, 64)
        self.unit2 = Unit(64, 128, kernel=5, stride=2)
        self.block1 = Block(128, skip)
        self.pool1 = nn.MaxPool2d(2)
        self.unit5 = Unit(128, 256)
        self.block2 = Block(256, skip)
        self.pool2 = nn.MaxPool2d(2)
        self.unit8 = Unit(256, 512)
        self.block3 = Block(512, skip)
        self.pool3 = nn.MaxPool2d(2)
        self.unit11 = Unit(512, 256)
        self.pool = nn.AdaptiveMaxPool2d(1)
        self.flatten = nn.Flatten()
        self.head = nn.Linear(256, num_classes, bias=False)
        self.output_scale = output_scale

    def forward(self, x: Tensor) -> Tensor:
        """Outputs: the read-out of the penultimate features, times the output scale."""
        x = self.block1(self.unit2(self.unit1(x)))
        x = self.block2(self.unit5(self.pool1(x)))
        x = self.block3(self.unit8(self.pool2(x)))
        features = self.flatten(self.pool(self.unit11(self.pool3(x))))
        outputs: Tensor = self.head(features)
        return outputs if self.output_scale == 1.0 else self.output_scale * outputs


def kernel_resnet(
    num_classes: int = 10,
    *,
    skip: bool = True,
    output_scale: float = 1.0,
    in_channels: int = 3,
    generator: torch.Generator | None = None,
) -> KernelResNet:
    """The network of the layer-kernel study; 9,062,464 parameters for 10 classes.

    Args:
        num_classes: number of outputs.
        skip: whether the three blocks add their input; the parameters are the same.
        output_scale: factor of the outputs (0.2 in the network it derives from).
        in_channels: channels of the images.
        generator: source of randomness; PyTorch's default distributions.

    References:
        [canatar2022], section V. Differs from paper: it gives the counts, not the layers; this is
        the one natural extension of the network it derives from that has them.
    """
    network = KernelResNet(
        num_classes, skip=skip, output_scale=output_scale, in_channels=in_channels
    )
    initialize_(network, "default", 1.0, generator)
    return network
