"""ResNets for 32x32 images (3x3 stem, no pooling), with in-place operations as in torchvision."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

WIDTHS = (64, 128, 256, 512)


def group_norm(channels: int) -> nn.Module:
    return nn.GroupNorm(min(32, channels), channels)


class BasicBlock(nn.Module):
    """Two convolutions and a shortcut, added in place."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        stride: int,
        norm: Callable[[int], nn.Module],
        inplace: bool,
    ):
        super().__init__()
        self.inplace = inplace
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = norm(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = norm(outputs)
        self.relu = nn.ReLU(inplace=inplace)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            projection = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.shortcut = nn.Sequential(projection, norm(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """One block."""
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        shortcut = self.shortcut(x)
        if self.inplace:
            out += shortcut
            return self.relu(out)
        return self.relu(out + shortcut)


class ResNet18(nn.Module):
    """Stem, four stages of two blocks, classifier; the stock stem reduces images fourfold."""

    def __init__(
        self,
        norm: Callable[[int], nn.Module] = nn.BatchNorm2d,
        classes: int = 10,
        inplace: bool = True,
        stock: bool = False,
        widths: tuple[int, ...] = WIDTHS,
    ):
        super().__init__()
        self.conv1 = nn.Conv2d(3, widths[0], 3, 1, 1, bias=False)
        if stock:
            self.conv1 = nn.Conv2d(3, widths[0], 7, 2, 3, bias=False)
        self.bn1 = norm(widths[0])
        self.relu = nn.ReLU(inplace=inplace)
        self.pool = nn.MaxPool2d(3, 2, 1) if stock else nn.Identity()
        pairs = zip((widths[0], *widths), widths, strict=False)
        stages = [
            nn.Sequential(
                BasicBlock(inputs, outputs, 1 if stage == 0 else 2, norm, inplace),
                BasicBlock(outputs, outputs, 1, norm, inplace),
            )
            for stage, (inputs, outputs) in enumerate(pairs)
        ]
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.fc = nn.Linear(widths[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of images (n, 3, 32, 32)."""
        x = self.pool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean((2, 3)))


class ResNet20(nn.Module):
    """Stem, three stages of three blocks, classifier: 0.27 million parameters."""

    def __init__(self, classes: int = 10):
        super().__init__()
        widths = (16, 16, 32, 64)
        self.conv1 = nn.Conv2d(3, widths[0], 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(widths[0])
        blocks = [
            BasicBlock(
                widths[stage + (block > 0)],
                widths[stage + 1],
                2 if stage and not block else 1,
                nn.BatchNorm2d,
                True,
            )
            for stage in range(3)
            for block in range(3)
        ]
        self.blocks = nn.Sequential(*blocks)
        self.fc = nn.Linear(widths[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of images (n, 3, 32, 32)."""
        x = self.blocks(self.bn1(self.conv1(x)).relu_())
        return self.fc(x.mean((2, 3)))


def images(count: int, device: str, classes: int = 10) -> tuple[Tensor, Tensor]:
    """Random images and labels, the same on every device."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(count, 3, 32, 32, generator=generator)
    labels = torch.arange(count) % classes
    return inputs.to(device), labels.to(device)
