"""Survey a ResNet-18: all five families, a row per block, and a report.

Run: ``python docs/examples/survey_resnet.py``. You can use any other ``nn.Module`` in its place,
such as one of torchvision. You need not register, wrap or rename anything.
"""

from pathlib import Path

import torch
from torch import Tensor, nn

import theodolite as th
from theodolite.data import digits, scaled


class Block(nn.Module):
    """Two 3x3 convolutions with batch norm, and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.around = nn.Identity() if stride == 1 else nn.Conv2d(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Convolve, add, rectify."""
        inner = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(inner)) + self.around(x))


class ResNet18(nn.Module):
    """Four stages of two blocks, for small images."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(channels, 64, 3, padding=1, bias=False)
        widths = [(64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)]
        stages = [nn.Sequential(Block(a, b, stride), Block(b, b, 1)) for a, b, stride in widths]
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(512, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Images to logits."""
        return self.head(self.stages(torch.relu(self.stem(x))).mean((2, 3)))


def main(folder: Path = Path("runs/resnet"), examples: int = 256, tangent: int = 64) -> th.Survey:
    """Measure an untrained ResNet-18 on the embedded digits."""
    data = scaled(digits(), "unit_interval")
    torch.manual_seed(0)
    model = ResNet18(channels=1, classes=10).eval()

    report = th.survey(
        model,
        (data.x_test, data.y_test),
        layers=["stem", "stages.*.*", "head"],
        sizes={"representation": examples, "kernel": examples, "gradient": examples}
        | {"pairs": tangent, "tangent": tangent, "covariance": examples},
        name="ResNet-18, untrained",
        options={"split": "test", "label_source": "true"},
        progress=True,
    )
    print(report.summary())
    report.save(folder)
    print(report.to_html(folder / "report.html"))
    return report


if __name__ == "__main__":
    main()
