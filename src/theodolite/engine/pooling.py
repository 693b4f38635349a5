"""How the output of a layer becomes one vector per example."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from theodolite.checks import require_choice, require_function
from theodolite.engine.state import HALF
from theodolite.errors import ShapeError


@dataclass(frozen=True)
class AtPositions:
    """A pooling that keeps some positions of every example, side by side: (n, k d).

    ``Batch.positions``, (n, k), has the positions, counted along the grid of the labels; -1 is none
    and gives arbitrary numbers. If a layer has fewer positions, as inside a U-Net, the position
    that covers it is read.

    Args:
        grid: Sizes of the counted positions.
    """

    grid: tuple[int, ...]

    def width(self, shape: tuple[int, ...], *, channels_first: bool) -> int | None:
        """Number of features at one position of a layer's output; None without such positions.

        Args:
            shape: Shape of its output for one example.
            channels_first: Whether its module gives (channels, positions).
        """
        found = self._layout(shape, channels_first)
        return None if found is None else math.prod(shape) // math.prod(found[1])

    def read(
        self, values: Tensor, positions: Int[Tensor, "n k"], *, channels_first: bool
    ) -> Float[Tensor, "n kd"]:
        """The features of the positions, at least in float32."""
        found = self._layout(tuple(values.shape[1:]), channels_first)
        assert found is not None  # otherwise the layer has no features
        last, sizes = found
        flat = values.reshape(len(values), math.prod(sizes), -1) if last else values.flatten(2)
        rows = flat if last else flat.transpose(1, 2)
        places = self._places(positions.to(values.device).clamp(min=0), sizes)
        picked = rows.gather(1, places.unsqueeze(2).expand(-1, -1, rows.shape[2]))
        return picked.to(torch.promote_types(picked.dtype, torch.float32)).flatten(1)

    def _places(self, positions: Tensor, sizes: tuple[int, ...]) -> Tensor:
        """The same positions along the sizes of a layer."""
        if sizes == self.grid:
            return positions
        own = torch.unravel_index(positions, self.grid)
        flat = torch.zeros_like(positions)
        for index, size, whole in zip(own, sizes, self.grid, strict=True):
            flat = flat * size + index * size // whole
        return flat

    def _layout(
        self, shape: tuple[int, ...], channels_first: bool
    ) -> tuple[bool, tuple[int, ...]] | None:
        """Whether positions come before features, and the sizes of the positions."""
        axes = len(self.grid)
        if shape[:axes] == self.grid and len(shape) > axes and not channels_first:
            first = len(shape) == axes + 1 and axes > 1 and shape[1:] == self.grid
            return not first, self.grid
        if len(shape) == axes + 1 and (axes > 1 or channels_first):
            return False, shape[1:]
        if axes == 2 and len(shape) == 2:  # patches as rows
            side = math.isqrt(math.prod(self.grid) // max(1, shape[0]))
            if side and all(size % side == 0 for size in self.grid):
                sizes = tuple(size // side for size in self.grid)
                return (True, sizes) if math.prod(sizes) == shape[0] else None
        return None


Pool = str | Callable[[Tensor], Tensor] | AtPositions  # a name, a function of the output, positions
POOLS = ("flatten", "grid", "mean", "max", "cls", "last")
GRID = 4  # cells along each axis of a map, chosen by measurement (benchmarks/one_shape.py)

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
_CHANNELS_LAST = (nn.Linear, nn.LayerNorm)  # of these layers also maps have their channels last


def gives_channels_first(module: nn.Module) -> bool:
    """Whether outputs of three axes are (n, channels, positions) rather than tokens."""
    return isinstance(module, _CHANNELS_FIRST)


def require_pool(pool: Pool) -> None:
    """Check that a pooling is a known name, positions, or a function of the output."""
    if callable(pool):
        require_function(pool=pool)
    elif not isinstance(pool, AtPositions):
        require_choice(POOLS, pool=pool)


def pooled(
    output: Tensor,
    pool: Pool,
    module: nn.Module,
    mask: Tensor | None = None,
    positions: Tensor | None = None,
) -> Float[Tensor, "n d"]:
    """One vector per example from a layer's output; half precision becomes float32.

    A complex number becomes two: there are twice as many channels.

    Args:
        output: ``(n, d)``, tokens ``(n, t, d)``, or maps ``(n, channels, *sizes)``.
        pool: ``"flatten"`` keeps everything (padded tokens as zeros). ``"grid"`` averages maps over
            the cells of a 4 x 4 grid, and tokens without padding. ``"mean"`` and ``"max"`` run over
            tokens or positions. ``"cls"`` and ``"last"`` take the first and the last token that is
            not padding. :class:`AtPositions` puts some positions side by side. A function gets the
            output and returns ``(n, ...)``.
        module: The layer, which decides between tokens and one-dimensional maps.
        mask: ``(n, t)``, true or 1 for tokens that count.
        positions: ``(n, k)``, the positions that :class:`AtPositions` keeps.

    Raises:
        ShapeError: If the pooling needs tokens and there are none.
    """
    values = output.detach()
    if values.is_complex() and not values.is_nested:
        values = _real_channels(values, module)
    if isinstance(pool, AtPositions):
        assert positions is not None  # the batch does not name positions
        return pool.read(values, positions, channels_first=gives_channels_first(module))
    if values.is_nested:
        values, mask = _padded_rows(values)
    if values.dtype in HALF or not values.is_floating_point():
        values = values.float()
    if callable(pool):
        rows = pool(values)
        if not isinstance(rows, Tensor) or rows.ndim == 0:
            got = "a single number" if isinstance(rows, Tensor) else type(rows).__name__
            raise ShapeError(
                f"pool: expected a tensor with one row per example from the function, got {got}; "
                "keep the first axis"
            )
        return rows.unsqueeze(1) if rows.ndim == 1 else rows.flatten(1)
    if values.ndim <= 2:
        return values if values.ndim == 2 else values.reshape(len(values), 1)
    if values.ndim == 3 and not gives_channels_first(module):
        return _pool_tokens(values, pool, _fitting(mask, values))
    return _pool_maps(values, pool, module)


def _real_channels(values: Tensor, module: nn.Module) -> Tensor:
    """Real and imaginary parts of complex outputs, as channels."""
    pairs = torch.view_as_real(values.resolve_conj())
    maps = values.ndim > 3 and not isinstance(module, _CHANNELS_LAST)
    if maps or (values.ndim == 3 and gives_channels_first(module)):
        return pairs.movedim(-1, 2).flatten(1, 2)
    return pairs.flatten(-2) if values.ndim > 1 else pairs


def _padded_rows(values: Tensor) -> tuple[Tensor, Tensor]:
    rows = values.unbind()
    lengths = torch.tensor([len(row) for row in rows], device=values.device)
    padded = torch.nested.to_padded_tensor(values, 0.0)
    steps = torch.arange(padded.shape[1], device=values.device)
    return padded, steps < lengths.unsqueeze(1)


def _fitting(mask: Tensor | None, values: Tensor) -> Tensor | None:
    """The mask if it has the shape of these tokens; layers that merge tokens have other shapes."""
    if mask is None or mask.shape != values.shape[:2]:
        return None
    return mask.to(values.device, torch.bool)


def _pool_tokens(values: Tensor, pool: str, mask: Tensor | None) -> Tensor:
    counts = torch.ones_like(values[..., 0], dtype=torch.bool) if mask is None else mask
    weights = counts.unsqueeze(-1)
    if pool == "flatten":
        return (values if mask is None else values.where(weights, 0.0)).flatten(1)
    if pool in ("mean", "grid"):
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
    if isinstance(module, _CHANNELS_LAST):
        values = values.movedim(-1, 1)
    positions = tuple(range(2, values.ndim))
    if pool == "grid":
        return _grid_means(values).flatten(1)
    if pool == "mean":
        return values.mean(positions)
    if pool == "max":
        return values.amax(positions)
    raise ShapeError(
        f"pool={pool!r}: expected tokens (n, t, d), got shape {tuple(values.shape)} from "
        f'{type(module).__name__}; use "mean", "max", "flatten" or a function'
    )


def _grid_means(maps: Tensor) -> Tensor:
    """Averages over the cells of a grid along every axis of a map; short axes are not pooled."""
    for axis in range(2, maps.ndim):
        size = maps.shape[axis]
        if size > GRID:
            ends = [size * cell // GRID for cell in range(GRID + 1)]
            cells = [maps.narrow(axis, low, high - low) for low, high in pairwise(ends)]
            maps = torch.stack([cell.mean(axis) for cell in cells], axis)
    return maps
