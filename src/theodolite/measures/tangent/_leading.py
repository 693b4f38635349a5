"""Largest singular value, by Lanczos where the matrix is large, differentiable at ties."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.linalg import vector_norm

from theodolite.linalg import symmetric_eigen, top_eigen_operator

__all__ = ["leading_vector", "spectral_norm"]

_DENSE_BELOW = 512  # a full eigh is faster than ARPACK's start-up below this size


def spectral_norm(matrix: Float[Tensor, "n d"]) -> Float[Tensor, ""]:
    """Largest singular value of a float64 matrix with entries of order one.

    The singular vector is held fixed and the value is its length under the matrix: errors of the
    vector enter squared, and the gradient is finite at ties, where any of the vectors serves.
    """
    tall = matrix if matrix.shape[0] >= matrix.shape[1] else matrix.mT
    return vector_norm(tall @ leading_vector(tall.detach()))


def leading_vector(matrix: Float[Tensor, "n d"]) -> Float[Tensor, " d"]:
    """Unit right singular vector of the largest singular value."""
    size = matrix.shape[1]
    if size <= _DENSE_BELOW or not matrix.any():
        return symmetric_eigen(matrix.mT @ matrix).vectors[:, 0]
    pairs = top_eigen_operator(
        lambda vector: matrix.mT @ (matrix @ vector), size, 1, device=matrix.device
    )
    return torch.nn.functional.normalize(pairs.vectors[:, 0], dim=0)
