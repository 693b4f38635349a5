"""DenseNet-121: every layer sees the outputs of all layers of its block before it."""

from typing import Literal

import torch
from torch import Tensor, nn

from theodolite.interventions.initializers import initialize_
from theodolite_papers.lab.models.resnets import make_stem

__all__ = ["DenseNet", "densenet121"]


class DenseLayer(nn.Module):
    """Norm, ReLU, 1x1, norm, ReLU, 3x3: adds ``growth`` channels to what it was given."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inputs)
        self.relu1 = nn.ReLU()
        self.conv1 = nn.Conv2d(inputs, 4 * growth, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(4 * growth)
        self.relu2 = nn.ReLU()
        self.conv2 = nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """The input with the new channels appended."""
        narrow = self.conv1(self.relu1(self.norm1(x)))
        return torch.cat([x, self.conv2(self.relu2(self.norm2(narrow)))], dim=1)


class Transition(nn.Module):
    """Norm, ReLU, 1x1 to half the channels, average pool to half the size."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(inputs)
        self.relu = nn.ReLU()
        self.conv = nn.Conv2d(inputs, inputs // 2, 1, bias=False)
        self.pool = nn.AvgPool2d(2)

    def forward(self, x: Tensor) -> Tensor:
        """Half the channels, half the size."""
        halved: Tensor = self.pool(self.conv(self.relu(self.norm(x))))
        return halved


class DenseNet(nn.Module):
    """Stem, dense blocks with transitions between them, norm, ReLU, pooling, a linear head."""

    def __init__(
        self,
        depths: tuple[int, ...],
        num_classes: int,
        *,
        growth: int = 32,
        stem: Literal["cifar", "imagenet"] = "imagenet",
        in_channels: int = 3,
    ) -> None:
        super().__init__()
        channels = 2 * growth
        self.stem = make_stem(stem, in_channels, channels, nn.BatchNorm2d)
        blocks: list[nn.Module] = []
        for index, depth in enumerate(depths):
            layers = [DenseLayer(channels + growth * layer, growth) for layer in range(depth)]
            blocks.append(nn.Sequential(*layers))
            channels += growth * depth
            if index < len(depths) - 1:
                blocks.append(Transition(channels))
                channels //= 2
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.head = nn.Linear(channels, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.flatten(self.pool(self.relu(self.norm(x)))))
        return logits


def densenet121(
    num_classes: int = 10,
    *,
    stem: Literal["cifar", "imagenet"] = "imagenet",
    in_channels: int = 3,
    generator: torch.Generator | None = None,
) -> DenseNet:
    """DenseNet-121; 7,978,856 parameters for 1000 classes with the ImageNet stem.

    A 32x32 image passes the ImageNet stem as an 8x8 map; three transitions leave one position.

    References:
        [mehta2021], section 5. Differs from paper: it gives no details; the standard definition.
    """
    network = DenseNet((6, 12, 24, 16), num_classes, stem=stem, in_channels=in_channels)
    initialize_(network, "he", 1.0, generator)
    return network
