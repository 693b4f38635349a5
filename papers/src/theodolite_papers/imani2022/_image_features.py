"""Image features without a network: oriented gradients, and bags of visual words."""

from math import pi

import torch
from jaxtyping import Float, Num
from torch import Tensor

from theodolite.checks import require_axes, require_count, require_finite, require_nonempty
from theodolite.errors import DomainError, ShapeError
from theodolite.linalg import array_function, double

__all__ = [
    "dense_sift",
    "hog_features",
    "sift_descriptors",
    "visual_vocabulary",
    "word_histograms",
]

_LUMA = (0.299, 0.587, 0.114)
_CLIP = 0.2  # of a block's or descriptor's entries, before it is scaled to unit length again
_BLOCK_EPSILON = 1e-5
_PATCH, _CELLS, _BINS = 16, 4, 8
_WINDOW = 8.0  # standard deviation of the Gaussian window, in pixels


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
    blocks = _unit_block(_unit_block(blocks).clamp(max=_CLIP))
    return blocks.flatten(1)


def _cell_histograms(images: Tensor, orientations: int, cell: int) -> Tensor:
    down, right = _central_differences(images)
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


def _unit_block(blocks: Tensor) -> Tensor:
    return blocks / (blocks.square().sum(-1, keepdim=True) + _BLOCK_EPSILON**2).sqrt()


@array_function
def sift_descriptors(patches: Float[Tensor, "n 16 16"]) -> Float[Tensor, "n 128"]:
    """Descriptors of grey patches: gradient orientations in 4 x 4 cells and 8 signed bins.

    Magnitudes are weighted by a Gaussian window of 8 pixels and spread over the two nearest cells
    along each axis and the two nearest orientations. The result is scaled to unit length, clipped
    at 0.2 and scaled again; a flat patch gives zeros.

    Invariant to: adding a constant to a patch; multiplying it by a positive number.

    Example:
        >>> sift_descriptors(torch.rand(3, 16, 16)).norm(dim=1).round(decimals=4)
        tensor([1., 1., 1.])

    References:
        [lowe2004], section 6; [imani2022], Figure 13.
    """
    require_axes(3, patches=patches)
    require_finite(patches=patches)
    if patches.shape[1:] != (_PATCH, _PATCH):
        raise ShapeError(
            f"patches: expected {_PATCH} x {_PATCH} pixels, got shape {tuple(patches.shape)}"
        )
    down, right = _central_differences(double(patches))
    turns = torch.atan2(down, right).remainder(2 * pi) * (_BINS / (2 * pi))
    cells = _axis_weights(patches.device)
    window = _window(patches.device)
    votes = _oriented(torch.hypot(down, right) * window, turns)
    histograms = torch.einsum("nyxo,yi,xj->nijo", votes, cells, cells).flatten(1)
    return _unit(_unit(histograms).clamp(max=_CLIP))


def _oriented(magnitudes: Tensor, turns: Tensor) -> Tensor:
    """Magnitudes shared between the two nearest of the orientation bins, which wrap around."""
    low = turns.floor()
    share = (turns - low).unsqueeze(-1)
    first = torch.nn.functional.one_hot(low.long() % _BINS, _BINS)
    second = first.roll(1, dims=-1)
    return magnitudes.unsqueeze(-1) * ((1 - share) * first + share * second)


def _axis_weights(device: torch.device) -> Tensor:
    """Share of each pixel along one axis that goes to each cell: linear interpolation."""
    pixels = torch.arange(_PATCH, dtype=torch.float64, device=device)
    centers = (torch.arange(_CELLS, dtype=torch.float64, device=device) + 0.5) * _PATCH / _CELLS
    distance = (pixels.unsqueeze(1) + 0.5 - centers).abs() * _CELLS / _PATCH
    return (1 - distance).clamp(min=0)


def _window(device: torch.device) -> Tensor:
    offsets = torch.arange(_PATCH, dtype=torch.float64, device=device) - (_PATCH - 1) / 2
    profile = torch.exp(-offsets.square() / (2 * _WINDOW**2))
    return torch.outer(profile, profile)


def _unit(rows: Tensor) -> Tensor:
    norms = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
    return rows / torch.where(norms > 0, norms, 1)


@array_function
def dense_sift(images: Num[Tensor, "n c h w"], stride: int = 4) -> Float[Tensor, "n p 128"]:
    """Descriptors of all 16 x 16 patches at a stride, row by row; 25 for a 32 x 32 image.

    Args:
        images: one or three channels; colour is turned grey.
        stride: distance of neighbouring patches in pixels.

    Raises:
        ShapeError: If the image is smaller than a patch.

    Example:
        >>> dense_sift(torch.rand(2, 3, 32, 32)).shape
        torch.Size([2, 25, 128])

    References:
        [lowe2004]; [imani2022], Figure 13; grid and stride are ours.
    """
    require_axes(4, images=images)
    require_count(1, stride=stride)
    if min(images.shape[2:]) < _PATCH:
        raise ShapeError(
            f"images: expected sides of at least {_PATCH} pixels, got {tuple(images.shape[2:])}"
        )
    gray = _grayscale(double(images))
    patches = gray.unfold(1, _PATCH, stride).unfold(2, _PATCH, stride)
    flat = patches.reshape(-1, _PATCH, _PATCH)
    descriptors = torch.cat([sift_descriptors(chunk) for chunk in torch.split(flat, 4096)])
    return descriptors.reshape(len(images), -1, descriptors.shape[1])


def visual_vocabulary(
    descriptors: Float[Tensor, "*n d"], words: int = 2048, generator: torch.Generator | None = None
) -> Float[Tensor, "words d"]:
    """Words: centres of k-means over the descriptors of all training images.

    Args:
        descriptors: one per row, of all images together.
        words: size of the vocabulary.
        generator: source of randomness of the starting centres (k-means++).

    Raises:
        DomainError: If there are fewer descriptors than words.

    Example:
        >>> visual_vocabulary(torch.eye(4), words=4).shape
        torch.Size([4, 4])

    References:
        [imani2022], Figure 13.

    Differs from paper: nothing is said there of empty clusters; scikit-learn moves their centre
    to the descriptor farthest from its own.
    """
    from sklearn.cluster import KMeans

    require_count(1, words=words)
    rows = descriptors.reshape(-1, descriptors.shape[-1])
    require_finite(descriptors=rows)
    if len(rows) < words:
        raise DomainError(
            f"words: expected at most one word per descriptor ({len(rows)}), got {words}"
        )
    seed = int(torch.randint(2**31 - 1, (), generator=generator))
    solver = KMeans(words, n_init=1, random_state=seed).fit(double(rows).cpu().numpy())
    return torch.from_numpy(solver.cluster_centers_).to(rows)


@array_function
def word_histograms(
    descriptors: Float[Tensor, "n p d"], vocabulary: Float[Tensor, "words d"]
) -> Float[Tensor, "n words"]:
    """How often each word is the nearest of a descriptor, divided by the image's descriptors.

    If several words are equally near, the first counts.

    Returns:
        Rows that sum to 1; zeros for an image without descriptors.

    Example:
        >>> word_histograms(torch.tensor([[[0.9], [0.1]]]), torch.tensor([[0.0], [1.0]]))
        tensor([[0.5000, 0.5000]])

    References:
        [imani2022], Figure 13.
    """
    words = double(vocabulary)
    lengths = words.square().sum(1) / 2
    nearest = [
        (lengths - double(chunk) @ words.mT).argmin(1)
        for chunk in torch.split(descriptors.flatten(0, 1), 8192)
    ]
    indices = torch.cat(nearest).reshape(descriptors.shape[:2])
    counts = double(descriptors).new_zeros(len(descriptors), len(vocabulary))
    counts.scatter_add_(1, indices, torch.ones_like(indices, dtype=counts.dtype))
    return counts / max(1, descriptors.shape[1])


def _central_differences(images: Float[Tensor, "*n h w"]) -> tuple[Tensor, Tensor]:
    """Downward and rightward differences of the two neighbours, not halved; 0 at the border."""
    down, right = torch.zeros_like(images), torch.zeros_like(images)
    down[..., 1:-1, :] = images[..., 2:, :] - images[..., :-2, :]
    right[..., :, 1:-1] = images[..., :, 2:] - images[..., :, :-2]
    return down, right


def _grayscale(images: Tensor) -> Tensor:
    """Luminance 0.299 R + 0.587 G + 0.114 B; a single channel as it is."""
    if images.shape[1] == 1:
        return images[:, 0]
    if images.shape[1] != 3:
        raise ShapeError(f"images: expected 1 or 3 channels on axis 1, got {images.shape[1]}")
    return (images * images.new_tensor(_LUMA).view(1, 3, 1, 1)).sum(1)
