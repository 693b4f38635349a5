"""Residual networks with the activation after the sum: ResNet-18 and -50, for 32x32 or 224x224."""

from typing import Literal

import torch
from torch import Tensor, nn

from theodolite.checks import require_choice
from theodolite.interventions.initializers import initialize_

__all__ = ["ResNet", "resnet18", "resnet50"]

Stem = Literal["cifar", "imagenet"]


def make_stem(stem: Stem, in_channels: int, width: int, norm: type[nn.BatchNorm2d]) -> nn.Module:
    """3x3 of stride 1 for small images; 7x7 of stride 2 and a max-pool for large ones."""
    require_choice(("cifar", "imagenet"), stem=stem)
    if stem == "cifar":
        conv = nn.Conv2d(in_channels, width, 3, padding=1, bias=False)
        return nn.Sequential(conv, norm(width), nn.ReLU())
    conv = nn.Conv2d(in_channels, width, 7, stride=2, padding=3, bias=False)
    return nn.Sequential(conv, norm(width), nn.ReLU(), nn.MaxPool2d(3, stride=2, padding=1))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.shortcut = _shortcut(inputs, width, stride)
        self.relu2 = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """Residual branch plus shortcut, then ReLU."""
        branch = self.bn2(self.conv2(self.relu1(self.bn1(self.conv1(x)))))
        return self.relu2(branch + self.shortcut(x))


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions and a shortcut; the stride sits in the 3x3."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * self.expansion
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.relu2 = nn.ReLU()
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.shortcut = _shortcut(inputs, outputs, stride)
        self.relu3 = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """Residual branch plus shortcut, then ReLU."""
        branch = self.relu1(self.bn1(self.conv1(x)))
        branch = self.relu2(self.bn2(self.conv2(branch)))
        return self.relu3(self.bn3(self.conv3(branch)) + self.shortcut(x))


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Module:
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    conv = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs))


class ResNet(nn.Module):
    """Stem, four stages of residual blocks, global average pooling, a linear head."""

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        depths: tuple[int, ...],
        num_classes: int,
        *,
        stem: Stem = "cifar",
        in_channels: int = 3,
    ) -> None:
        super().__init__()
        self.stem = make_stem(stem, in_channels, 64, nn.BatchNorm2d)
        channels, stages = 64, []
        for stage, depth in enumerate(depths):
            width, blocks = 64 * 2**stage, []
            for index in range(depth):
                stride = 2 if stage > 0 and index == 0 else 1
                blocks.append(block(channels, width, stride))
                channels = width * block.expansion
            stages.append(nn.Sequential(*blocks))
        self.stages = nn.ModuleList(stages)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.head = nn.Linear(channels, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        x = self.stem(x)
        for stage in self.stages:
            x = stage(x)
        logits: Tensor = self.head(self.flatten(self.pool(x)))
        return logits


def resnet18(
    num_classes: int = 10,
    *,
    stem: Stem = "cifar",
    in_channels: int = 3,
    generator: torch.Generator | None = None,
) -> ResNet:
    """ResNet-18; 11,173,962 parameters for 10 classes of 32x32 images.

    Example:
        >>> sum(p.numel() for p in resnet18().parameters())
        11173962
    """
    network = ResNet(BasicBlock, (2, 2, 2, 2), num_classes, stem=stem, in_channels=in_channels)
    initialize_(network, "he", 1.0, generator)
    return network


def resnet50(
    num_classes: int = 10,
    *,
    stem: Stem = "imagenet",
    in_channels: int = 3,
    generator: torch.Generator | None = None,
) -> ResNet:
    """ResNet-50; the ImageNet stem by default, also for 32x32 images.

    References:
        [mehta2021], section 5. Differs from paper: it gives no details; the standard definition.
    """
    network = ResNet(Bottleneck, (3, 4, 6, 3), num_classes, stem=stem, in_channels=in_channels)
    initialize_(network, "he", 1.0, generator)
    return network
