"""How a layer's output becomes one vector per example; padded tokens never count."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from theodolite.checks import require_choice
from theodolite.errors import ShapeError

__all__ = ["POOLS", "Pool", "pooled", "require_pool"]

Pool = str | Callable[[Tensor], Tensor]
POOLS = ("flatten", "mean", "max", "cls", "last")

# With three axes these give (n, channels, positions); everything else gives (n, tokens, channels).
_CHANNELS_FIRST = (
    nn.Conv1d,
    nn.ConvTranspose1d,
    nn.BatchNorm1d,
    nn.InstanceNorm1d,
    nn.GroupNorm,
    nn.MaxPool1d,
    nn.AvgPool1d,
    nn.AdaptiveAvgPool1d,
    nn.AdaptiveMaxPool1d,
)


def require_pool(pool: Pool) -> None:
    """A pooling is one of the names or a function of the output."""
    if not callable(pool):
        require_choice(POOLS, pool=pool)


def pooled(
    output: Tensor, pool: Pool, module: nn.Module, mask: Tensor | None = None
) -> Float[Tensor, "n d"]:
    """One vector per example from a layer's output; half precision becomes float32.

    Args:
        output: ``(n, d)``, tokens ``(n, t, d)``, or maps ``(n, channels, *sizes)``.
        pool: ``"flatten"`` keeps everything (padded tokens as zeros), ``"mean"`` and ``"max"``
            run over tokens or positions, ``"cls"`` and ``"last"`` take the first and the last
            token that is not padding; a function gets the output and gives ``(n, ...)``.
        module: the layer, which tells tokens from one-dimensional maps.
        mask: ``(n, t)``, true or 1 for tokens that count.

    Raises:
        ShapeError: If the pooling needs tokens and there are none.
    """
    values = output.detach()
    if values.is_nested:
        values, mask = _padded(values)
    if values.dtype in (torch.float16, torch.bfloat16) or not values.is_floating_point():
        values = values.float()
    if callable(pool):
        return pool(values).flatten(1)
    if values.ndim <= 2:
        return values.reshape(len(values), -1)
    if values.ndim == 3 and not isinstance(module, _CHANNELS_FIRST):
        return _pool_tokens(values, pool, _fitting(mask, values))
    return _pool_maps(values, pool, module)


def _padded(values: Tensor) -> tuple[Tensor, Tensor]:
    rows = values.unbind()
    lengths = torch.tensor([len(row) for row in rows], device=values.device)
    padded = torch.nested.to_padded_tensor(values, 0.0)
    steps = torch.arange(padded.shape[1], device=values.device)
    return padded, steps < lengths.unsqueeze(1)


def _fitting(mask: Tensor | None, values: Tensor) -> Tensor | None:
    """The mask where it describes these tokens; layers after a merge of tokens have others."""
    if mask is None or mask.shape != values.shape[:2]:
        return None
    return mask.to(values.device, torch.bool)


def _pool_tokens(values: Tensor, pool: str, mask: Tensor | None) -> Tensor:
    counts = torch.ones_like(values[..., 0], dtype=torch.bool) if mask is None else mask
    weights = counts.unsqueeze(-1)
    if pool == "flatten":
        return (values if mask is None else values.where(weights, 0.0)).flatten(1)
    if pool == "mean":
        return values.where(weights, 0.0).sum(1) / weights.sum(1).clamp(min=1)
    if pool == "max":
        return values.where(weights, -torch.inf).amax(1)
    steps = torch.arange(values.shape[1], device=values.device)
    if pool == "cls":
        index = steps.expand_as(counts).where(counts, values.shape[1] - 1).amin(1)
    else:
        index = steps.expand_as(counts).where(counts, 0).amax(1)
    return values[torch.arange(len(values), device=values.device), index]


def _pool_maps(values: Tensor, pool: str, module: nn.Module) -> Tensor:
    if pool == "flatten":
        return values.flatten(1)
    positions = tuple(range(2, values.ndim))
    if pool == "mean":
        return values.mean(positions)
    if pool == "max":
        return values.amax(positions)
    raise ShapeError(
        f"pool={pool!r}: expected tokens (n, t, d), got shape {tuple(values.shape)} from "
        f'{type(module).__name__}; use "mean", "max", "flatten" or a function'
    )
