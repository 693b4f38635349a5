"""Pre-activation residual networks: ResNet18-v2 with group norm, WRN-28-4 with a 5x5 stem."""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from theodolite.checks import require_choice, require_count
from theodolite.errors import DomainError
from theodolite.interventions.initializers import Initializer, initialize_

__all__ = ["PreActivationNet", "resnet18_v2", "wide_resnet"]

Norm = Callable[[int], nn.Module]


class PreActivationBlock(nn.Module):
    """Norm, ReLU, convolution, twice; the shortcut branches off after the first ReLU."""

    def __init__(self, inputs: int, width: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.norm1 = norm(inputs)
        self.relu1 = nn.ReLU()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride=stride, padding=1, bias=False)
        self.norm2 = norm(width)
        self.relu2 = nn.ReLU()
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        changes = stride != 1 or inputs != width
        self.shortcut = nn.Conv2d(inputs, width, 1, stride=stride, bias=False) if changes else None

    def forward(self, x: Tensor) -> Tensor:
        """Shortcut plus residual branch, without an activation after the sum."""
        ready = self.relu1(self.norm1(x))
        carried = x if self.shortcut is None else self.shortcut(ready)
        total: Tensor = carried + self.conv2(self.relu2(self.norm2(self.conv1(ready))))
        return total


class PreActivationNet(nn.Module):
    """Stem, stages of pre-activation blocks, norm, ReLU, global average pooling, a linear head."""

    def __init__(
        self,
        stem: nn.Module,
        widths: tuple[int, ...],
        depth: int,
        num_classes: int,
        norm: Norm,
        stem_width: int,
    ) -> None:
        super().__init__()
        self.stem = stem
        channels, stages = stem_width, []
        for stage, width in enumerate(widths):
            blocks = []
            for index in range(depth):
                stride = 2 if stage > 0 and index == 0 else 1
                blocks.append(PreActivationBlock(channels, width, stride, norm))
                channels = width
            stages.append(nn.Sequential(*blocks))
        self.stages = nn.ModuleList(stages)
        self.norm = norm(channels)
        self.relu = nn.ReLU()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.head = nn.Linear(channels, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        x = self.stem(x)
        for stage in self.stages:
            x = stage(x)
        logits: Tensor = self.head(self.flatten(self.pool(self.relu(self.norm(x)))))
        return logits


def resnet18_v2(
    num_classes: int = 10,
    *,
    stem: Literal["imagenet", "cifar"] = "imagenet",
    in_channels: int = 3,
    groups: int = 32,
    initializer: Initializer = "he",
    scale: float = 1.0,
    generator: torch.Generator | None = None,
) -> PreActivationNet:
    """ResNet-18 v2 with group norm in the place of batch norm.

    Args:
        num_classes: outputs of the head.
        stem: 7x7 of stride 2 and a max-pool (the paper uses one architecture for both data sets),
            or 3x3 of stride 1.
        in_channels: channels of the images.
        groups: of each group norm.
        initializer: distribution of the weights; biases are zero.
        scale: factor of their standard deviation.
        generator: source of randomness.

    References:
        [maennel2020], appendix A.2. Differs from paper: the number of groups is ours.
    """
    require_choice(("imagenet", "cifar"), stem=stem)
    first: nn.Module = nn.Conv2d(in_channels, 64, 3, padding=1, bias=False)
    if stem == "imagenet":
        conv = nn.Conv2d(in_channels, 64, 7, stride=2, padding=3, bias=False)
        first = nn.Sequential(conv, nn.MaxPool2d(3, stride=2, padding=1))
    network = PreActivationNet(
        first, (64, 128, 256, 512), 2, num_classes, lambda width: nn.GroupNorm(groups, width), 64
    )
    initialize_(network, initializer, scale, generator)
    return network


def wide_resnet(
    num_classes: int = 10,
    *,
    depth: int = 28,
    factor: int = 4,
    in_channels: int = 3,
    stem_width: int = 64,
    generator: torch.Generator | None = None,
) -> PreActivationNet:
    """WRN-28-4 with batch norm and a first convolution of 5x5 with 64 filters.

    Args:
        num_classes: outputs of the head.
        depth: 6 N + 4 for N blocks per stage.
        factor: widths are 16, 32 and 64 times this.
        in_channels: channels of the images.
        stem_width: filters of the first convolution (the standard network has 16).
        generator: source of randomness.

    References:
        [maennel2020], Figure 3.
    """
    require_count(1, factor=factor, stem_width=stem_width)
    blocks, rest = divmod(depth - 4, 6)
    if rest or blocks < 1:
        raise DomainError(f"depth: expected 6 N + 4 for N blocks per stage, got {depth}")
    stem = nn.Conv2d(in_channels, stem_width, 5, padding=2, bias=False)
    widths = (16 * factor, 32 * factor, 64 * factor)
    network = PreActivationNet(stem, widths, blocks, num_classes, nn.BatchNorm2d, stem_width)
    initialize_(network, "he", 1.0, generator)
    return network
