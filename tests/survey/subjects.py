"""Small models and data for surveys."""

from itertools import pairwise
from types import SimpleNamespace

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


class Reader(nn.Module):
    """Tokens to logits: each position sees itself and those before it, or all of them."""

    def __init__(self, vocabulary: int = 12, outputs: int = 12, causal: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(vocabulary, 6)
        self.mix = nn.Linear(6, 6)
        self.head = nn.Linear(6, outputs)
        self.causal = causal

    def forward(self, input_ids, attention_mask=None):
        x = self.table(input_ids)
        length = input_ids.shape[1]
        weights = torch.ones(length, length, dtype=x.dtype)
        weights = weights.tril() if self.causal else weights
        weights = weights.expand(len(x), -1, -1)
        if attention_mask is not None:
            weights = weights * attention_mask[:, None].to(x.dtype)
        mixed = weights @ x / weights.sum(2, keepdim=True).clamp(min=1)
        return SimpleNamespace(logits=self.head(torch.tanh(self.mix(mixed)) + x))


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
