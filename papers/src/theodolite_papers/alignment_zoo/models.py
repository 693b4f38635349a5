"""The networks: MLPs, CNNs, ResNets and transformers of any depth and width."""

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor, nn

from theodolite_papers.alignment_zoo.design import Network

__all__ = ["blocks_of", "build", "fresh_head"]

_ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "gelu": nn.GELU,
    "none": nn.Identity,
}


def build(network: Network, shape: Sequence[int], classes: int, tokens: int) -> nn.Module:
    """The network at initialisation, from its seed; the last layer is called ``head``.

    Args:
        network: its factors.
        shape: of one input.
        classes: outputs.
        tokens: into how many a transformer cuts an input.
    """
    torch.manual_seed(network.seed)
    builders = {"mlp": _mlp, "cnn": _cnn, "resnet": _resnet}
    if network.family == "transformer":
        model = _transformer(network, tokens, prod(shape) // tokens, classes)
    else:
        model = builders[network.family](network, shape, classes)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Linear | nn.Conv2d):
                module.weight.mul_(network.scale)
    return model


def blocks_of(model: nn.Module) -> list[str]:
    """Names of the layers that are measured: the blocks, then the head."""
    return [f"blocks.{index}" for index in range(len(model.blocks))] + ["head"]  # type: ignore[arg-type]


def fresh_head(model: nn.Module, classes: int) -> None:
    """Replace the head of the model by one for other classes."""
    model.head = nn.Linear(model.head.in_features, classes)  # type: ignore[union-attr, arg-type]


class _Chain(nn.Module):
    """Blocks one after another, then the head."""

    def __init__(self, blocks: Sequence[nn.Module], end: nn.Module, head: nn.Linear) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*blocks)
        self.end = end
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.end(self.blocks(x)))
        return out


def _norm(network: Network, width: int, maps: bool) -> list[nn.Module]:
    if network.normalisation == "none":
        return []
    if network.normalisation == "batch":
        return [nn.BatchNorm2d(width) if maps else nn.BatchNorm1d(width)]
    return [nn.GroupNorm(1, width) if maps else nn.LayerNorm(width)]


def _mlp(network: Network, shape: Sequence[int], classes: int) -> nn.Module:
    blocks: list[nn.Module] = []
    inputs, width = prod(shape), network.width
    for index in range(network.depth):
        start = [nn.Flatten()] if index == 0 else []
        linear, norm = nn.Linear(inputs, width), _norm(network, width, maps=False)
        blocks.append(nn.Sequential(*start, linear, *norm, _ACTIVATIONS[network.activation]()))
        inputs = width
    return _Chain(blocks, nn.Identity(), nn.Linear(inputs, classes))


def _cnn(network: Network, shape: Sequence[int], classes: int) -> nn.Module:
    """3 x 3 convolutions, the first and the third of stride 2."""
    blocks: list[nn.Module] = []
    channels, width, side = shape[0], network.width, shape[1]
    for index in range(network.depth):
        stride = 2 if index in (0, 2) else 1
        conv = nn.Conv2d(channels, width, 3, stride, padding=1)
        norm = _norm(network, width, maps=True)
        blocks.append(nn.Sequential(conv, *norm, _ACTIVATIONS[network.activation]()))
        channels, side = width, -(-side // stride)
    return _Chain(blocks, nn.Flatten(), nn.Linear(width * side * side, classes))


class _Residual(nn.Module):
    def __init__(self, branch: Sequence[nn.Module]) -> None:
        super().__init__()
        self.branch = nn.Sequential(*branch)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.branch(x)
        return out


def _resnet(network: Network, shape: Sequence[int], classes: int) -> nn.Module:
    """A stem of stride 2, then blocks of two convolutions, norm and activation before each."""
    width, activation = network.width, _ACTIVATIONS[network.activation]
    blocks: list[nn.Module] = [nn.Conv2d(shape[0], width, 3, 2, padding=1)]
    for _ in range(network.depth):
        branch: list[nn.Module] = []
        for _ in range(2):
            branch += [*_norm(network, width, maps=True), activation()]
            branch += [nn.Conv2d(width, width, 3, padding=1)]
        blocks.append(_Residual(branch))
    end = nn.Sequential(activation(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
    return _Chain(blocks, end, nn.Linear(4 * width, classes))


class _Attention(nn.Module):
    def __init__(self, width: int, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.into, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.into(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind(0)
        weights = (query @ key.mT / query.shape[-1] ** 0.5).softmax(-1)
        out: Tensor = self.out((weights @ value).transpose(1, 2).flatten(2))
        return out


class _Block(nn.Module):
    def __init__(self, network: Network) -> None:
        super().__init__()
        width = network.width
        self.attention = nn.Sequential(*_norm(network, width, maps=False), _Attention(width))
        self.mlp = nn.Sequential(
            *_norm(network, width, maps=False),
            nn.Linear(width, 2 * width),
            _ACTIVATIONS[network.activation](),
            nn.Linear(2 * width, width),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x)
        out: Tensor = x + self.mlp(x)
        return out


class _Stem(nn.Module):
    """Cut inputs into tokens, embed them and add their places."""

    def __init__(self, tokens: int, size: int, width: int) -> None:
        super().__init__()
        self.tokens = tokens
        self.embedding = nn.Linear(size, width)
        self.places = nn.Parameter(0.1 * torch.randn(tokens, width))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.embedding(x.reshape(len(x), self.tokens, -1)) + self.places
        return out


class _Mean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)


def _transformer(network: Network, tokens: int, size: int, classes: int) -> nn.Module:
    """Attention over all tokens; the head reads their mean."""
    width = network.width
    blocks = [_Stem(tokens, size, width), *(_Block(network) for _ in range(network.depth))]
    return _Chain(blocks, _Mean(), nn.Linear(width, classes))
