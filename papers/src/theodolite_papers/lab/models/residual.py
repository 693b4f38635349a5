"""Networks with shortcuts: ResNet-18 and -50, pre-activation and wide ones, DenseNet-121.

The last is the residual network of eleven convolutions whose layer kernels [canatar2022] studies.
Stems are for images of 32x32 (``"cifar"``) or 224x224 (``"imagenet"``).
"""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from theodolite.checks import require_choice, require_count
from theodolite.errors import DomainError
from theodolite.interventions.initializers import Initializer, initialize_

__all__ = [
    "DenseNet",
    "KernelResNet",
    "PreActivationNet",
    "ResNet",
    "densenet121",
    "kernel_resnet",
    "resnet18",
    "resnet18_v2",
    "resnet50",
    "wide_resnet",
]

Norm = Callable[[int], nn.Module]
Stem = Literal["cifar", "imagenet"]


def _stem(stem: Stem, in_channels: int, width: int) -> nn.Module:
    """3x3 of stride 1 for small images; 7x7 of stride 2 and a max-pool for large ones."""
    require_choice(("cifar", "imagenet"), stem=stem)
    if stem == "cifar":
        conv = nn.Conv2d(in_channels, width, 3, padding=1, bias=False)
        return nn.Sequential(conv, nn.BatchNorm2d(width), nn.ReLU())
    conv = nn.Conv2d(in_channels, width, 7, stride=2, padding=3, bias=False)
    return nn.Sequential(
        conv, nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, stride=2, padding=1)
    )


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
        self.stem = _stem(stem, in_channels, 64)
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
    stem: Stem = "imagenet",
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
        stem: Stem = "imagenet",
        in_channels: int = 3,
    ) -> None:
        super().__init__()
        channels = 2 * growth
        self.stem = _stem(stem, in_channels, channels)
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
    stem: Stem = "imagenet",
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


class Unit(nn.Sequential):
    """Convolution without bias, batch norm, ReLU."""

    def __init__(self, inputs: int, outputs: int, kernel: int = 3, stride: int = 1) -> None:
        conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
        super().__init__(conv, nn.BatchNorm2d(outputs), nn.ReLU())


class KernelBlock(nn.Module):
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
    """Eleven convolutions, three residual blocks, global max-pool, linear output without bias.

    ``studied_layers`` names the ten layers whose features are studied, in order; the ninth has 512
    channels, the tenth is the penultimate layer with 256.
    """

    studied_layers = (
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
        self.block1 = KernelBlock(128, skip)
        self.pool1 = nn.MaxPool2d(2)
        self.unit5 = Unit(128, 256)
        self.block2 = KernelBlock(256, skip)
        self.pool2 = nn.MaxPool2d(2)
        self.unit8 = Unit(256, 512)
        self.block3 = KernelBlock(512, skip)
        self.pool3 = nn.MaxPool2d(2)
        self.unit11 = Unit(512, 256)
        self.pool = nn.AdaptiveMaxPool2d(1)
        self.flatten = nn.Flatten()
        self.head = nn.Linear(256, num_classes, bias=False)
        self.output_scale = output_scale

    def forward(self, x: Tensor) -> Tensor:
        """Outputs: the last layer on the penultimate features, times the output scale."""
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
        [canatar2022], section IV. Differs from paper: it gives the counts, not the layers; this is
        the one natural extension of the network it derives from that has them.
    """
    network = KernelResNet(
        num_classes, skip=skip, output_scale=output_scale, in_channels=in_channels
    )
    initialize_(network, "default", 1.0, generator)
    return network
