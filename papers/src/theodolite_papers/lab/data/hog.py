"""Histograms of oriented gradients, of a whole batch of images at once."""

from math import pi

import torch
from jaxtyping import Float, Num
from torch import Tensor

from theodolite.checks import require_axes, require_count, require_finite, require_nonempty
from theodolite.errors import ShapeError
from theodolite.linalg import array_function, double

__all__ = ["central_differences", "hog_features"]

_EPSILON = 1e-5
_CLIP = 0.2


def central_differences(images: Float[Tensor, "*n h w"]) -> tuple[Tensor, Tensor]:
    """Differences of the two neighbours along rows and columns, not halved; zero at the border.

    Returns:
        Downward and rightward differences.
    """
    down, right = torch.zeros_like(images), torch.zeros_like(images)
    down[..., 1:-1, :] = images[..., 2:, :] - images[..., :-2, :]
    right[..., :, 1:-1] = images[..., :, 2:] - images[..., :, :-2]
    return down, right


@array_function
def hog_features(
    images: Num[Tensor, "n c h w"], orientations: int = 9, cell: int = 8, block: int = 2
) -> Float[Tensor, "n d"]:
    """Histograms of gradient orientation in cells, normalised over overlapping blocks of cells.

    Central differences, zero at the border; at every pixel the channel with the largest gradient;
    angles modulo 180 degrees in hard bins; a cell's histogram is the mean magnitude per bin; blocks
    are scaled to unit length (with epsilon 1e-5), clipped at 0.2 and scaled again.

    Args:
        images: channels first; pixels beyond the last whole cell are left out.
        orientations: number of bins over 180 degrees.
        cell: side of a cell in pixels.
        block: side of a block in cells.

    Returns:
        Blocks row by row, in each the cells row by row, in each the bins: 324 values for the
        defaults and 32 x 32 images.

    Raises:
        ShapeError: If the image is smaller than one block.

    Example:
        >>> hog_features(torch.rand(2, 3, 32, 32)).shape
        torch.Size([2, 324])

    References:
        [dalal2005]; [imani2022], Figure 13, reading "64 pixels per cell" as 8 x 8.
    """
    require_axes(4, images=images)
    require_nonempty(images=images)
    require_finite(images=images)
    require_count(1, orientations=orientations, cell=cell, block=block)
    rows, columns = images.shape[2] // cell, images.shape[3] // cell
    if min(rows, columns) < block:
        raise ShapeError(
            f"images: expected at least {block * cell} x {block * cell} pixels (one block), "
            f"got {images.shape[2]} x {images.shape[3]}"
        )
    histograms = _cell_histograms(double(images), orientations, cell)
    blocks = histograms.unfold(1, block, 1).unfold(2, block, 1)  # n, r, c, bins, block, block
    blocks = blocks.permute(0, 1, 2, 4, 5, 3).flatten(3)
    blocks = _unit(_unit(blocks).clamp(max=_CLIP))
    return blocks.flatten(1)


def _cell_histograms(images: Tensor, orientations: int, cell: int) -> Tensor:
    down, right = central_differences(images)
    magnitudes, channel = torch.hypot(down, right).max(1)
    down = down.gather(1, channel.unsqueeze(1)).squeeze(1)
    right = right.gather(1, channel.unsqueeze(1)).squeeze(1)
    turns = torch.atan2(down, right).remainder(pi) / pi * orientations
    # Rounding may give the full half turn, which is the same direction as none.
    bins = turns.floor().long() % orientations
    h, w = (side // cell * cell for side in magnitudes.shape[1:])
    votes = torch.nn.functional.one_hot(bins[:, :h, :w], orientations) * magnitudes[:, :h, :w, None]
    tiles = votes.reshape(len(votes), h // cell, cell, w // cell, cell, orientations)
    return tiles.mean(dim=(2, 4))


def _unit(blocks: Tensor) -> Tensor:
    return blocks / (blocks.square().sum(-1, keepdim=True) + _EPSILON**2).sqrt()
