"""Tokens-to-token transformers: overlapping patches become few tokens, then a slim, deep stack."""

from math import sqrt

import torch
from torch import Tensor, nn
from torch.nn import functional

from theodolite.checks import require_count
from theodolite.errors import DomainError

__all__ = ["T2TViT", "t2t_vit_14"]

_SPLITS = ((7, 4, 2), (3, 2, 1), (3, 2, 1))  # kernel, stride and padding of the three soft splits
_TOKEN_WIDTH, _RANDOM_FEATURES = 64, 32  # inside the tokens-to-token module
_DROPOUT = 0.1  # there only
_SCALE = 0.02  # standard deviation of initial weights


class LinearAttention(nn.Module):
    r"""Attention in time linear in the tokens, by positive random features of the softmax kernel.

    .. math:: \phi(x) = e^{W x - |x|^2/2} / \sqrt m, \qquad
              y_t = v_t + P \frac{\sum_s \phi(q_t)^\top \phi(k_s)\, v_s}
                                 {\sum_s \phi(q_t)^\top \phi(k_s)}

    and an MLP of one hidden layer with a shortcut. The shortcut of the attention starts at the
    values, since tokens come in wider than they leave.

    Args:
        inputs: width of a token that comes in.
        width: of one that leaves.
    """

    directions: Tensor

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(inputs)
        self.projections = nn.Linear(inputs, 3 * width)  # keys, queries, values
        self.mix = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, width), nn.GELU(), nn.Linear(width, width), nn.Dropout(_DROPOUT)
        )
        self.dropout = nn.Dropout(_DROPOUT)
        self.register_buffer("directions", torch.empty(_RANDOM_FEATURES, width))
        self.draw_directions()

    def draw_directions(self, generator: torch.Generator | None = None) -> None:
        """Draw the random features' directions anew: orthogonal, as long as the root of m."""
        nn.init.orthogonal_(self.directions, sqrt(len(self.directions)), generator)

    def forward(self, x: Tensor) -> Tensor:
        """Tokens ``(n, t, inputs)`` to ``(n, t, width)``."""
        keys, queries, values = self.projections(self.norm1(x)).chunk(3, dim=-1)
        k, q = self._features(keys), self._features(queries)
        weighted = q @ (k.transpose(1, 2) @ values)
        total = q @ k.sum(1).unsqueeze(-1)
        y = values + self.dropout(self.mix(weighted / (total + 1e-8)))
        out: Tensor = y + self.mlp(self.norm2(y))
        return out

    def _features(self, x: Tensor) -> Tensor:
        exponent = x @ self.directions.T - x.square().sum(-1, keepdim=True) / 2
        return exponent.exp() / sqrt(len(self.directions))


class TokensToToken(nn.Module):
    """Three soft splits with attention between them: neighbouring tokens become one."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.splits = nn.ModuleList(nn.Unfold(k, stride=s, padding=p) for k, s, p in _SPLITS)
        self.attentions = nn.ModuleList(
            [
                LinearAttention(channels * _SPLITS[0][0] ** 2, _TOKEN_WIDTH),
                LinearAttention(_TOKEN_WIDTH * _SPLITS[1][0] ** 2, _TOKEN_WIDTH),
            ]
        )
        self.project = nn.Linear(_TOKEN_WIDTH * _SPLITS[2][0] ** 2, width)

    def forward(self, x: Tensor) -> Tensor:
        """Square images ``(n, channels, side, side)`` to tokens ``(n, t, width)``."""
        sides = token_sides(x.shape[-1])[:-1]
        tokens = self.splits[0](x).transpose(1, 2)
        for split, attention, side in zip(self.splits[1:], self.attentions, sides, strict=True):
            picture = attention(tokens).transpose(1, 2).unflatten(2, (side, side))
            tokens = split(picture).transpose(1, 2)
        out: Tensor = self.project(tokens)
        return out


def token_sides(side: int) -> list[int]:
    """Tokens along an edge after each soft split.

    Example:
        >>> token_sides(224)
        [56, 28, 14]
    """
    sides = []
    for kernel, stride, padding in _SPLITS:
        side = (side + 2 * padding - kernel) // stride + 1
        sides.append(side)
    return sides


class Block(nn.Module):
    """Self-attention and an MLP, each after a layer norm and with a shortcut."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.mix = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))

    def forward(self, x: Tensor) -> Tensor:
        """Tokens ``(n, t, width)`` to as many."""
        x = x + self.mix(self._attended(self.norm1(x)))
        out: Tensor = x + self.mlp(self.norm2(x))
        return out

    def _attended(self, x: Tensor) -> Tensor:
        parts = self.qkv(x).unflatten(-1, (3, self.heads, -1))  # (n, t, 3, heads, width / heads)
        queries, keys, values = parts.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(queries, keys, values)
        return mixed.transpose(1, 2).flatten(2)


class T2TViT(nn.Module):
    """Tokens-to-token module, a class token, fixed positions, a stack of blocks, a linear head.

    Args:
        num_classes: outputs.
        width: of a token.
        depth: number of blocks.
        heads: of each attention.
        hidden: width inside the blocks' MLPs.
        image_size: side of the images.
    """

    positions: Tensor

    def __init__(
        self,
        num_classes: int,
        *,
        width: int,
        depth: int,
        heads: int,
        hidden: int,
        image_size: int = 224,
    ) -> None:
        super().__init__()
        require_count(1, image_size=image_size)
        self.image_size = image_size
        self.tokens = TokensToToken(3, width)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        count = token_sides(image_size)[-1] ** 2 + 1
        self.register_buffer("positions", sinusoids(count, width), persistent=False)
        self.blocks = nn.ModuleList(Block(width, heads, hidden) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits from the class token."""
        if x.shape[-2:] != (self.image_size, self.image_size):
            raise DomainError(
                f"x: expected images of {self.image_size}x{self.image_size}, got "
                f"{tuple(x.shape[-2:])}; resize them, or build the network with their image_size"
            )
        tokens = self.tokens(x)
        tokens = torch.cat([self.class_token.expand(len(x), -1, -1), tokens], dim=1)
        tokens = tokens + self.positions
        for block in self.blocks:
            tokens = block(tokens)
        logits: Tensor = self.head(self.norm(tokens[:, 0]))
        return logits


def sinusoids(count: int, width: int) -> Tensor:
    """Sines (even entries) and cosines (odd ones) of positions, ``(1, count, width)``.

    Example:
        >>> sinusoids(2, 4)[0, 0].tolist()
        [0.0, 1.0, 0.0, 1.0]
    """
    entries = torch.arange(width, dtype=torch.float64)
    rates = 10_000 ** (-2 * (entries // 2) / width)
    angles = torch.arange(count, dtype=torch.float64)[:, None] * rates
    return torch.where(entries % 2 == 0, angles.sin(), angles.cos()).float()[None]


def t2t_vit_14(
    num_classes: int = 1000, *, image_size: int = 224, generator: torch.Generator | None = None
) -> T2TViT:
    """T2T-ViT-14; 21,465,806 trained parameters for 1000 classes.

    The tokens-to-token module has linear attention, whose random directions are not trained. On
    images of 224x224 it makes 3136, 784 and 196 tokens, and the stack sees one more.

    Args:
        num_classes: outputs.
        image_size: side of the images.
        generator: source of randomness.

    Example:
        >>> sum(p.numel() for p in t2t_vit_14().parameters())
        21465806

    References:
        [yuan2021], Table 1; [imani2022], Figure 14. Differs from paper: it does not say which
        variant; this is the one with about as many parameters as a ResNet-50.
    """
    model = T2TViT(num_classes, width=384, depth=14, heads=6, hidden=1152, image_size=image_size)
    _initialize(model, generator)
    return model


def _initialize(model: T2TViT, generator: torch.Generator | None) -> None:
    """Normal weights, biases zero, orthogonal directions of the random features."""
    nn.init.trunc_normal_(model.class_token, std=_SCALE, generator=generator)
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.trunc_normal_(module.weight, std=_SCALE, generator=generator)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, LinearAttention):
            module.draw_directions(generator)
