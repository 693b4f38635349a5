"""Images in four steps from Gaussian patches to originals: which of them change alignment?

Images are cut into a grid of patches that do not overlap. Patches are drawn from one Gaussian, or
from one Gaussian per position, or permuted between images, or not changed.
"""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from theodolite.checks import require_axes, require_choice, require_count, require_finite
from theodolite.errors import ShapeError
from theodolite.linalg import Moments, array_function, double
from theodolite_papers.lab.data import covariance_root

__all__ = [
    "LADDER",
    "Rung",
    "assembled_images",
    "gaussian_patches",
    "grid_patches",
    "image_ladder",
    "shuffled_patches",
]

Rung = Literal["gaussian_global", "gaussian_position", "shuffled", "original"]
LADDER: tuple[Rung, ...] = ("gaussian_global", "gaussian_position", "shuffled", "original")


@array_function
def grid_patches(images: Float[Tensor, "n c h w"], kernel: int = 3) -> Float[Tensor, "n p d"]:
    """Patches of a grid without overlap, row by row, each channel-major like a filter.

    Raises:
        ShapeError: If an image side is no multiple of the kernel.

    Example:
        >>> grid_patches(torch.arange(16.0).reshape(1, 1, 4, 4), 2)[0, 1]
        tensor([2., 3., 6., 7.])
    """
    require_axes(4, images=images)
    require_count(1, kernel=kernel)
    n, c, h, w = images.shape
    if h % kernel or w % kernel:
        raise ShapeError(
            f"images: expected sides that {kernel} divides, got {h} x {w}; "
            f"crop them, e.g. central_crop(images, {min(h, w) // kernel * kernel})"
        )
    tiles = images.reshape(n, c, h // kernel, kernel, w // kernel, kernel)
    return tiles.permute(0, 2, 4, 1, 3, 5).reshape(n, -1, c * kernel * kernel)


@array_function
def assembled_images(
    patches: Float[Tensor, "n p d"], kernel: int, height: int, width: int
) -> Float[Tensor, "n c h w"]:
    """Images from the patches of a grid: the inverse of :func:`grid_patches`.

    Raises:
        ShapeError: If number or length of patches does not match the image.

    Example:
        >>> images = torch.arange(16.0).reshape(1, 1, 4, 4)
        >>> bool((assembled_images(grid_patches(images, 2), 2, 4, 4) == images).all())
        True
    """
    require_axes(3, patches=patches)
    require_count(1, kernel=kernel, height=height, width=width)
    rows, columns = height // kernel, width // kernel
    n, p, d = patches.shape
    if p != rows * columns or d % kernel**2 or height % kernel or width % kernel:
        raise ShapeError(
            f"patches: expected {rows} x {columns} of a multiple of {kernel**2} values for "
            f"{height} x {width} images, got shape {tuple(patches.shape)}"
        )
    tiles = patches.reshape(n, rows, columns, d // kernel**2, kernel, kernel)
    return tiles.permute(0, 3, 1, 4, 2, 5).reshape(n, -1, height, width)


@array_function
def shuffled_patches(
    patches: Float[Tensor, "n p d"], generator: torch.Generator | None = None
) -> Float[Tensor, "n p d"]:
    """At each position of the grid an independent permutation of the patches over images.

    Every position keeps its set of patches, and so their covariance. Patches of one image become
    independent.

    Example:
        >>> patches = torch.arange(6.0).reshape(3, 2, 1)
        >>> shuffled_patches(patches).sort(dim=0).values.equal(patches)
        True

    References:
        [maennel2020], appendix E.2.
    """
    require_axes(3, patches=patches)
    n, p, _ = patches.shape
    orders = [torch.randperm(n, generator=generator) for _ in range(p)]
    order = torch.stack(orders, dim=1).to(patches.device)
    return patches.gather(0, order.unsqueeze(-1).expand_as(patches))


@array_function
def gaussian_patches(
    patches: Float[Tensor, "n p d"],
    covariance: Float[Tensor, "d d"] | None = None,
    generator: torch.Generator | None = None,
) -> Float[Tensor, "n p d"]:
    r"""Independent patches from :math:`N(0, \Sigma)`, as many as were given.

    Args:
        patches: of the images that are imitated.
        covariance: one :math:`\Sigma` for all positions; by default every position has its own,
            centred, of the patches there.
        generator: source of randomness.

    Example:
        >>> patches = torch.tensor([[[1.0, 0.0]], [[-1.0, 0.0]]])
        >>> gaussian_patches(patches)[..., 1].abs().sum()
        tensor(0.)

    References:
        [maennel2020], appendix E.2.
    """
    require_axes(3, patches=patches)
    require_finite(patches=patches)
    n, p, d = patches.shape
    noise = torch.randn(n, p, d, generator=generator, dtype=torch.float64).to(patches.device)
    if covariance is not None:
        return noise @ covariance_root(covariance)
    roots = [covariance_root(Moments.of(double(patches[:, k])).covariance()) for k in range(p)]
    return torch.einsum("npd,pde->npe", noise, torch.stack(roots))


def image_ladder(
    images: Float[Tensor, "n c h w"],
    rung: Rung,
    kernel: int = 3,
    *,
    overlapping: bool = False,
    generator: torch.Generator | None = None,
) -> Float[Tensor, "n c h w"]:
    """Images of one step, of the same shape as the originals.

    The figures have two more steps: the originals with a convolution of stride 2 or 1.

    Args:
        images: the originals; sides are multiples of the kernel (paper: 27, cut from 32).
        rung: ``"gaussian_global"``, ``"gaussian_position"``, ``"shuffled"`` or ``"original"``.
        kernel: side of a patch.
        overlapping: pool the global covariance over all patches, not those of the grid alone.
        generator: source of randomness.

    Raises:
        ShapeError: If an image side is no multiple of the kernel.
        DomainError: If the rung is unknown.

    Example:
        >>> image_ladder(torch.rand(5, 3, 9, 9), "shuffled").shape
        torch.Size([5, 3, 9, 9])

    References:
        [maennel2020], appendix E.2, Figures 21 and 22.

    Differs from paper: the global covariance is pooled over the patches of the grid unless
    ``overlapping``; Gaussian patches have mean 0.
    """
    require_choice(LADDER, rung=rung)
    patches = grid_patches(images, kernel)
    if rung == "original":
        return images
    if rung == "shuffled":
        drawn = shuffled_patches(patches, generator)
    elif rung == "gaussian_position":
        drawn = gaussian_patches(patches, generator=generator)
    else:
        pool = _all_patches(images, kernel) if overlapping else patches
        covariance = Moments.of(pool.flatten(0, 1)).covariance()
        drawn = gaussian_patches(patches, covariance.to(images), generator)
    return assembled_images(drawn, kernel, images.shape[2], images.shape[3])


def _all_patches(images: Tensor, kernel: int) -> Tensor:
    windows = images.unfold(2, kernel, 1).unfold(3, kernel, 1)
    return windows.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)
