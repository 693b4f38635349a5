"""Small models and data for surveys."""

from itertools import pairwise

import torch
from torch import Tensor, nn


def blobs(count: int = 60, classes: int = 3, size: int = 6, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Classes around random centres; labels in order of the examples."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % classes
    centers = torch.randn(classes, size, generator=generator)
    return centers[labels] + 0.7 * torch.randn(count, size, generator=generator), labels


def images(count: int = 40, classes: int = 3, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Noise with a bright row for each class, (n, 1, 6, 6)."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % classes
    pictures = 0.5 * torch.randn(count, 1, 6, 6, generator=generator)
    pictures[torch.arange(count), 0, labels] += 1.0
    return pictures, labels


def mlp(sizes: tuple[int, ...] = (6, 16, 8, 3), seed: int = 0) -> nn.Sequential:
    """Linear layers with a ReLU between any two."""
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for left, right in pairwise(sizes):
        layers += [nn.Linear(left, right), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def cnn(seed: int = 0, classes: int = 3) -> nn.Sequential:
    """Two convolutions, batch norm and dropout in between, a head."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1),
        nn.BatchNorm2d(12),
        nn.ReLU(inplace=True),
        nn.Conv2d(12, 8, 3),
        nn.ReLU(inplace=True),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(128, classes),
    )


class Block(nn.Module):
    """Two linear layers and a shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Linear(width, width)
        self.outer = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.outer(self.inner(x).relu())


class Residual(nn.Module):
    """Registered in another order than executed."""

    def __init__(self, blocks: int = 2, width: int = 8, classes: int = 3) -> None:
        super().__init__()
        self.head = nn.Linear(width, classes)
        self.norm = nn.LayerNorm(width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(blocks)))
        self.stem = nn.Linear(6, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.stem(x).relu())))


def rows(found, measure: str, layer: str | None = None) -> dict:
    """The one row of a measure in a layer."""
    matching = [
        row
        for row in found.record.contents["rows"]
        if row["measure"] == measure and row["layer"] == layer
    ]
    assert len(matching) == 1, (measure, layer, len(matching))
    return matching[0]


def value(found, measure: str, layer: str | None = None) -> float:
    """The number of a measure in a layer."""
    return rows(found, measure, layer)["value"]


class Last(nn.Module):
    """A norm over the channels of a map, which come second."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.movedim(1, -1)).movedim(-1, 1)
