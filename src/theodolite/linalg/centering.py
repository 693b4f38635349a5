"""Centring of rows and of Gram matrices, and the angle between centred Grams."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.linalg import matrix_norm

from theodolite.linalg.arrays import ratio_or_nan

__all__ = [
    "center_all",
    "center_columns",
    "centered_square_sum",
    "double_center",
    "gram_cosine",
    "unit_peak",
    "vanishes_when_centered",
]


def center_columns(features: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    """Subtract the mean row: the features of :math:`HF`."""
    return features - features.mean(0, keepdim=True)


def center_all(targets: Float[Tensor, "*batch n c"]) -> Float[Tensor, "*batch n c"]:
    """Subtract the mean of all entries, over examples and outputs alike."""
    return targets - targets.mean((-2, -1), keepdim=True)


def double_center(gram: Float[Tensor, "*batch n n"]) -> Float[Tensor, "*batch n n"]:
    r""":math:`HKH` with :math:`H = I - 11^\top/n`, by row and column means in O(n²).

    Rows are centred first, and columns of the result then: two passes over small numbers lose less
    than one pass over the difference of four large ones.
    """
    rows = gram - gram.mean(-1, keepdim=True)
    return rows - rows.mean(-2, keepdim=True)


def centered_square_sum(square_sum: Tensor, row_sums: Tensor) -> Tensor:
    r"""Squared norm of a symmetric matrix after centring, from sums over the matrix itself.

    .. math:: \|HKH\|_F^2 = \sum_{ab} K_{ab}^2 - \tfrac2m \|K1\|^2
              + \tfrac1{m^2} (1^\top K 1)^2

    The difference loses digits where the matrix is nearly constant. Subtract one number from every
    entry before it is summed: that changes nothing after centring.

    Args:
        square_sum: of all entries.
        row_sums: :math:`K1`, in any shape of m entries.
    """
    size, total = row_sums.numel(), row_sums.sum()
    return square_sum - 2 / size * row_sums.square().sum() + (total / size).square()


def vanishes_when_centered(
    centered: Tensor, raw: Tensor, eps: float | Tensor, dim: tuple[int, ...] | None = None
) -> Tensor:
    """Whether what is left after centring is rounding noise: ``|HKH|_F <= 8 eps |K|_F``.

    Args:
        centered: what is left.
        raw: what it was before.
        eps: rounding; one number for each where there are several.
        dim: axes of one matrix; None for all.
    """
    norm = torch.linalg.vector_norm
    return norm(centered, dim=dim) <= 8 * eps * norm(raw, dim=dim)


def gram_cosine(
    gram_a: Float[Tensor, "n n"], gram_b: Float[Tensor, "n n"], defined: Tensor | bool = True
) -> Float[Tensor, ""]:
    r"""Cosine of the angle between two matrices under the Frobenius inner product.

    Each is divided by its largest entry first: the norms are quartic in the activations and would
    overflow or vanish for entries beyond :math:`10^{\pm 75}`.
    """
    a, b = unit_peak(gram_a), unit_peak(gram_b)
    return ratio_or_nan((a * b).sum((-2, -1)), matrix_norm(a) * matrix_norm(b), defined)


def unit_peak(matrix: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
    """The matrix over its largest absolute entry, held fixed: squares neither overflow nor vanish.

    A matrix of zeros stays as it is.
    """
    peak = matrix.detach().abs().amax((-2, -1), keepdim=True)
    return matrix / torch.where(peak > 0, peak, torch.ones_like(peak))
