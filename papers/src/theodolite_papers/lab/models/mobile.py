"""MobileNetV2 and EfficientNet-Lite0: inverted residual blocks, for 224x224 images.

Packages of the Python Package Index have weights of both that were trained on ImageNet. Parameters
have our names; :func:`pretrained_keys` translates those of the published files.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from theodolite.errors import DomainError
from theodolite.interventions.initializers import initialize_

__all__ = ["MobileNet", "efficientnet_lite0", "mobilenet_v2", "pretrained_keys"]


@dataclass(frozen=True)
class Stage:
    """Equal blocks; the first of them has the stride."""

    expansion: int
    width: int
    blocks: int
    stride: int
    kernel: int = 3


_MOBILENET_V2 = (
    Stage(1, 16, 1, 1),
    Stage(6, 24, 2, 2),
    Stage(6, 32, 3, 2),
    Stage(6, 64, 4, 2),
    Stage(6, 96, 3, 1),
    Stage(6, 160, 3, 2),
    Stage(6, 320, 1, 1),
)
_EFFICIENTNET_LITE0 = (
    Stage(1, 16, 1, 1),
    Stage(6, 24, 2, 2),
    Stage(6, 40, 2, 2, 5),
    Stage(6, 80, 3, 2),
    Stage(6, 112, 3, 1, 5),
    Stage(6, 192, 4, 2, 5),
    Stage(6, 320, 1, 1),
)


@dataclass(frozen=True)
class Conventions:
    """What the two frameworks do differently.

    Args:
        pads_end: whether an odd number of padded pixels has the larger part at the end, as in
            TensorFlow; otherwise both sides get half of the kernel.
        epsilon: of the norms.
    """

    pads_end: bool = False
    epsilon: float = 1e-5


class ConvNorm(nn.Module):
    """Convolution with a window of (kernel, stride), batch norm, and ReLU6 if ``activate``."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        window: tuple[int, int],
        conventions: Conventions,
        *,
        groups: int = 1,
        activate: bool = True,
    ) -> None:
        super().__init__()
        kernel, stride = window
        padding = 0 if conventions.pads_end else kernel // 2
        self.conv = nn.Conv2d(
            inputs, outputs, kernel, stride=stride, padding=padding, groups=groups, bias=False
        )
        self.norm = nn.BatchNorm2d(outputs, eps=conventions.epsilon)
        self.act = nn.ReLU6() if activate else nn.Identity()
        self._pads_end = conventions.pads_end

    def forward(self, x: Tensor) -> Tensor:
        """As many pixels as the stride leaves, rounded up."""
        if self._pads_end:
            x = functional.pad(x, self._margins(x))
        out: Tensor = self.act(self.norm(self.conv(x)))
        return out

    def _margins(self, x: Tensor) -> list[int]:
        """Left, right, top, bottom."""
        kernel, stride = int(self.conv.kernel_size[0]), int(self.conv.stride[0])
        margins = []
        for size in (x.shape[3], x.shape[2]):
            total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
            margins += [total // 2, total - total // 2]
        return margins


class InvertedResidual(nn.Module):
    """1x1 to more channels, a convolution per channel, 1x1 back to few; a shortcut if it fits."""

    def __init__(self, inputs: int, stage: Stage, stride: int, conventions: Conventions) -> None:
        super().__init__()
        inner = inputs * stage.expansion
        wide = stage.expansion != 1
        self.expand = ConvNorm(inputs, inner, (1, 1), conventions) if wide else nn.Identity()
        self.depthwise = ConvNorm(inner, inner, (stage.kernel, stride), conventions, groups=inner)
        self.project = ConvNorm(inner, stage.width, (1, 1), conventions, activate=False)
        self._has_shortcut = stride == 1 and inputs == stage.width

    def forward(self, x: Tensor) -> Tensor:
        """No activation after the projection."""
        out: Tensor = self.project(self.depthwise(self.expand(x)))
        return x + out if self._has_shortcut else out


class MobileNet(nn.Module):
    """Stem, inverted residual blocks, 1280 channels, global average pooling, a linear head.

    ``flatten`` gives the 1280 features that feed the head.
    """

    def __init__(self, stages: Iterable[Stage], num_classes: int, conventions: Conventions) -> None:
        super().__init__()
        self.stem = ConvNorm(3, 32, (3, 2), conventions)
        channels, blocks = 32, []
        for stage in stages:
            for index in range(stage.blocks):
                stride = stage.stride if index == 0 else 1
                blocks.append(InvertedResidual(channels, stage, stride, conventions))
                channels = stage.width
        self.blocks = nn.Sequential(*blocks)
        self.last = ConvNorm(channels, 1280, (1, 1), conventions)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.head = nn.Linear(1280, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        logits: Tensor = self.head(self.flatten(self.pool(self.last(self.blocks(self.stem(x))))))
        return logits


def mobilenet_v2(num_classes: int = 1000, *, generator: torch.Generator | None = None) -> MobileNet:
    """MobileNetV2; 3,504,872 parameters for 1000 classes.

    Example:
        >>> sum(p.numel() for p in mobilenet_v2().parameters())
        3504872

    References:
        [sandler2018], Table 2; [imani2022], Figures 13, 19 and 20, in place of a ResNet-101.
    """
    model = MobileNet(_MOBILENET_V2, num_classes, Conventions())
    initialize_(model, "he", generator=generator)
    return model


def efficientnet_lite0(
    num_classes: int = 1000, *, generator: torch.Generator | None = None
) -> MobileNet:
    """EfficientNet-Lite0: no squeeze and excitation, ReLU6, padding as in TensorFlow.

    Example:
        >>> sum(p.numel() for p in efficientnet_lite0().parameters())
        4652008

    References:
        [tan2019]; the Lite variant drops what small devices do slowly.
    """
    model = MobileNet(_EFFICIENTNET_LITE0, num_classes, Conventions(pads_end=True, epsilon=1e-3))
    initialize_(model, "he", generator=generator)
    return model


def pretrained_keys(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """A published state of either network under the names that it has here.

    Args:
        state: of torchvision's MobileNetV2, or of the PyTorch port of EfficientNet-Lite0.

    Raises:
        DomainError: If a name belongs to neither of them.

    Example:
        >>> list(pretrained_keys({"features.0.0.weight": torch.zeros(1)}))
        ['stem.conv.weight']
        >>> list(pretrained_keys({"_blocks.3._depthwise_conv.weight": torch.zeros(1)}))
        ['blocks.3.depthwise.conv.weight']
    """
    return {_translated(name): value for name, value in state.items()}


_PORT = {
    "_conv_stem": "stem.conv",
    "_bn0": "stem.norm",
    "_conv_head": "last.conv",
    "_bn1": "last.norm",
    "_fc": "head",
}
_PORT_BLOCK = {
    "_expand_conv": "expand.conv",
    "_bn0": "expand.norm",
    "_depthwise_conv": "depthwise.conv",
    "_bn1": "depthwise.norm",
    "_project_conv": "project.conv",
    "_bn2": "project.norm",
}
_VISION = {"features.0.0": "stem.conv", "features.0.1": "stem.norm", "classifier.1": "head"}
_VISION_LAST = {"features.18.0": "last.conv", "features.18.1": "last.norm"}
_VISION_BLOCK = {
    "0.0": "expand.conv",
    "0.1": "expand.norm",
    "1.0": "depthwise.conv",
    "1.1": "depthwise.norm",
    "2": "project.conv",
    "3": "project.norm",
}
_VISION_FIRST_BLOCK = {
    "0.0": "depthwise.conv",
    "0.1": "depthwise.norm",
    "1": "project.conv",
    "2": "project.norm",
}


def _translated(name: str) -> str:
    layer, _, value = name.rpartition(".")
    whole = _PORT | _VISION | _VISION_LAST
    if layer in whole:
        return f"{whole[layer]}.{value}"
    port = re.fullmatch(r"_blocks\.(\d+)\.(\w+)", layer)
    if port and port[2] in _PORT_BLOCK:
        return f"blocks.{port[1]}.{_PORT_BLOCK[port[2]]}.{value}"
    vision = re.fullmatch(r"features\.(\d+)\.conv\.([\d.]+)", layer)
    if vision:
        inside = _VISION_FIRST_BLOCK if vision[1] == "1" else _VISION_BLOCK
        if vision[2] in inside:
            return f"blocks.{int(vision[1]) - 1}.{inside[vision[2]]}.{value}"
    raise DomainError(
        f"state: expected names of MobileNetV2 (torchvision) or EfficientNet-Lite0, got {name!r}"
    )
