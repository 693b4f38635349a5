"""Eigenvectors of patches and filters as small color images with fixed signs."""

import numpy as np
import torch
from torch import Tensor

from theodolite.linalg import symmetric_eigen

__all__ = ["as_images", "eigenvectors", "same_sign"]


def eigenvectors(covariance: Tensor, count: int) -> Tensor:
    """Leading eigenvectors as rows; the sum of entries is positive, else the largest entry.

    Eigenvectors have no sign of their own: a picture needs one that does not depend on the solver.
    """
    vectors = symmetric_eigen(covariance.double()).vectors[:, :count].mT
    sums = vectors.sum(1)
    places = vectors.abs().argmax(1, keepdim=True)
    largest = vectors.gather(1, places).squeeze(1)
    clear = sums.abs() > 0.1 * vectors.abs().sum(1)
    signs = torch.where(clear, sums, largest).sign()
    return vectors * signs[:, None]


def same_sign(rows: Tensor, reference: Tensor) -> Tensor:
    """Each row turned to the side of the reference's row."""
    products = (rows * reference).sum(1, keepdim=True)
    return torch.where(products < 0, -rows, rows)


def as_images(rows: Tensor, side: int) -> np.ndarray:
    """Channel-major rows as images (count, side, side, channels); one channel stays gray."""
    images = rows.reshape(len(rows), -1, side, side).permute(0, 2, 3, 1).float().numpy()
    return images[..., 0] if images.shape[-1] == 1 else images
