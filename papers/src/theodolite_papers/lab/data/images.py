"""Images cut, shrunk, turned grey: what small versions of experiments do to them."""

from jaxtyping import Float, Num
from torch import Tensor
from torch.nn import functional

from theodolite.checks import require_axes, require_count
from theodolite.errors import ShapeError

__all__ = ["average_pooled", "central_crop", "grayscale"]

_LUMA = (0.299, 0.587, 0.114)


def central_crop(images: Num[Tensor, "n c h w"], size: int) -> Num[Tensor, "n c size size"]:
    """The central square of every image; an odd margin leaves the larger part at the end.

    Raises:
        ShapeError: If an image is smaller than the crop.

    Example:
        >>> central_crop(torch.arange(16).reshape(1, 1, 4, 4), 2).flatten()
        tensor([ 5,  6,  9, 10])
    """
    require_axes(4, images=images)
    require_count(1, size=size)
    height, width = images.shape[2:]
    if min(height, width) < size:
        raise ShapeError(f"images: expected sides of at least {size}, got {height} x {width}")
    top, left = (height - size) // 2, (width - size) // 2
    return images[:, :, top : top + size, left : left + size]


def average_pooled(images: Num[Tensor, "n c h w"], factor: int) -> Float[Tensor, "n c k l"]:
    """Images shrunk by the mean over squares of ``factor`` pixels.

    Raises:
        ShapeError: If a side is no multiple of the factor.

    Example:
        >>> average_pooled(torch.ones(1, 3, 8, 8), 4).shape
        torch.Size([1, 3, 2, 2])
    """
    require_axes(4, images=images)
    require_count(1, factor=factor)
    if images.shape[2] % factor or images.shape[3] % factor:
        raise ShapeError(
            f"images: expected sides that {factor} divides, got {tuple(images.shape[2:])}; "
            "crop them first with central_crop"
        )
    values = images if images.is_floating_point() else images.float()
    return functional.avg_pool2d(values, factor)


def grayscale(images: Num[Tensor, "n c h w"]) -> Num[Tensor, "n h w"]:
    """Luminance 0.299 R + 0.587 G + 0.114 B; a single channel as it is.

    Raises:
        ShapeError: If images have neither one nor three channels.

    Example:
        >>> grayscale(torch.ones(1, 3, 1, 1)).round(decimals=4)
        tensor([[[1.]]])
    """
    require_axes(4, images=images)
    if images.shape[1] == 1:
        return images[:, 0]
    if images.shape[1] != 3:
        raise ShapeError(f"images: expected 1 or 3 channels on axis 1, got {images.shape[1]}")
    values = images if images.is_floating_point() else images.float()
    return (values * values.new_tensor(_LUMA).view(1, 3, 1, 1)).sum(1)
