"""Images for the studies of this paper: pixels in [-1, 1], cut or shrunk where a size asks."""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from theodolite.data import Dataset, digits, disjoint_rows, load_image_folder, symmetric_range
from theodolite_papers.lab.data import (
    IMAGE_SETS,
    average_pooled,
    central_crop,
    data_folder,
    load_image_set,
)

__all__ = ["Images", "Labeled", "draw_images", "halves"]

Labeled = tuple[Tensor, Tensor]  # images in [-1, 1], labels


@dataclass(frozen=True)
class Images:
    """Which images, and what is done to them.

    Args:
        name: ``"cifar10"``, another named set, ``"digits"``, or a folder of images beside them
            (``"imagenet"``), from which the central square is cut.
        crop: side of the central square that is kept; 0 keeps all.
        pool: images are averaged over squares of so many pixels.
        side: to which images of a folder are resized.
    """

    name: str = "cifar10"
    crop: int = 0
    pool: int = 1
    side: int = 224

    def prepared(self, pixels: Tensor, peak: int) -> Tensor:
        """Raw pixels as networks see them."""
        images = symmetric_range(pixels, peak)
        images = central_crop(images, self.crop) if self.crop else images
        return average_pooled(images, self.pool) if self.pool > 1 else images


def draw_images(
    images: Images, generator: torch.Generator, *sizes: int, test: int = 0
) -> list[Labeled]:
    """Disjoint random samples of the training split, then the first ``test`` test images."""
    raw = _raw(images.name, images.side)
    peak = raw.peak or 255
    rows = disjoint_rows(len(raw.x_train), *sizes, generator=generator)
    samples = [(images.prepared(raw.x_train[r], peak), raw.y_train[r]) for r in rows]
    if test:
        samples.append((images.prepared(raw.x_test[:test], peak), raw.y_test[:test]))
    return samples


@lru_cache(maxsize=1)
def _raw(name: str, side: int) -> Dataset:
    """Bytes, read once per process: seeds follow one another."""
    if name == "digits":
        return digits()
    if name in IMAGE_SETS:
        return load_image_set(name)
    return load_image_folder(data_folder() / name, size=side)


def halves(images: Images, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """First and second half of all images in their order; ``count`` random ones of each, or all."""
    raw = _raw(images.name, images.side)
    pixels = torch.cat([raw.x_train, raw.x_test])
    middle = len(pixels) // 2
    parts = []
    for half in (pixels[:middle], pixels[middle : 2 * middle]):
        chosen = half[torch.randperm(middle, generator=generator)[:count]] if count else half
        parts.append(images.prepared(chosen, raw.peak or 255))
    return parts[0], parts[1]
