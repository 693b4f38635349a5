"""Random changes of images during training: flip, translation, cutout; one draw per image."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from theodolite.checks import require_axes, require_count
from theodolite.errors import ShapeError

__all__ = ["Augmentation"]


@dataclass(frozen=True)
class Augmentation:
    """Horizontal flip (every second image), translation within a padding, a square cut out.

    What is uncovered or cut out takes the value ``fill``: 0, the mean of standardised images.

    Args:
        flip: whether images are mirrored with probability 1/2.
        padding: largest translation, in pixels, along each axis.
        cutout: side of the square that is replaced; 0 replaces nothing.
        fill: the value put in.

    Example:
        >>> images = torch.ones(2, 3, 8, 8)
        >>> cut = Augmentation(flip=False, padding=0, cutout=4)(images, torch.Generator())
        >>> (cut == 0).sum().item() == 2 * 3 * 16
        True

    References:
        [canatar2022], section IV. Differs from paper: it does not say which augmentation; this is
        the recipe of the training library that it names.
    """

    flip: bool = True
    padding: int = 2
    cutout: int = 4
    fill: float = 0.0

    def __post_init__(self) -> None:
        require_count(0, padding=self.padding, cutout=self.cutout)

    def __call__(
        self, images: Float[Tensor, "n c h w"], generator: torch.Generator | None = None
    ) -> Float[Tensor, "n c h w"]:
        """Changed copies of the images; the generator lives on their device."""
        require_axes(4, images=images)
        height, width = images.shape[2:]
        if self.cutout > min(height, width):
            raise ShapeError(
                f"cutout: expected at most the images' side {min(height, width)}, got {self.cutout}"
            )
        draws = _Draws(len(images), images.device, generator)
        # Drawn in a fixed order, whatever is switched on: each choice keeps its own numbers.
        mirrored, down, right = draws(2), draws(2 * self.padding + 1), draws(2 * self.padding + 1)
        top, left = draws(height - self.cutout + 1), draws(width - self.cutout + 1)
        if self.flip:
            images = torch.where(mirrored.view(-1, 1, 1, 1) == 1, images.flip(3), images)
        if self.padding:
            images = self._translated(images, down, right)
        if self.cutout:
            rows = _inside(top, self.cutout, height)[:, None, :, None]
            columns = _inside(left, self.cutout, width)[:, None, None, :]
            images = images.masked_fill(rows & columns, self.fill)
        return images

    def _translated(self, images: Tensor, down: Tensor, right: Tensor) -> Tensor:
        height, width = images.shape[2:]
        padded = functional.pad(images, [self.padding] * 4, value=self.fill)
        device = images.device
        rows = down[:, None] + torch.arange(height, device=device)
        columns = right[:, None] + torch.arange(width, device=device)
        which = torch.arange(len(images), device=device)[:, None, None]
        channels_last = padded.permute(0, 2, 3, 1)
        return channels_last[which, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


@dataclass(frozen=True)
class _Draws:
    count: int
    device: torch.device
    generator: torch.Generator | None

    def __call__(self, options: int) -> Int[Tensor, " n"]:
        """One uniform integer below ``options`` per image."""
        return torch.randint(options, (self.count,), generator=self.generator, device=self.device)


def _inside(start: Tensor, length: int, size: int) -> Tensor:
    positions = torch.arange(size, device=start.device)
    return (positions >= start[:, None]) & (positions < start[:, None] + length)
