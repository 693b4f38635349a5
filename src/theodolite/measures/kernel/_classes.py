"""The kernel of class labels in closed form, and its inner product with a linear kernel."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Integer
from torch import Tensor

from theodolite.linalg import KernelProducts, row_chunks
from theodolite.measures.kernel._factors import Factor, Pairs, inner_products

__all__ = ["LabelKernel", "with_labels"]


class LabelKernel(NamedTuple):
    """Centred Gram matrix of one-hot labels, in O(n): its norm, diagonal, and the class counts."""

    labels: Integer[Tensor, " n"]
    counts: Float[Tensor, " k"]
    norm_squared: Float[Tensor, ""]  # |Y_c^T Y_c|_F^2
    diagonal: Float[Tensor, " n"]

    @classmethod
    def of(cls, labels: Integer[Tensor, " n"], num_classes: int) -> "LabelKernel":
        """Closed forms from the class counts alone."""
        counts = torch.bincount(labels.long(), minlength=num_classes).double()
        n, squares = counts.sum(), counts.square().sum()
        # Sum over all pairs of classes of (n_c [c = c'] - n_c n_c' / n)^2.
        norm = squares - 2 * counts.pow(3).sum() / n + (squares / n).square()
        own = 1 - 2 * counts / n + squares / n.square()
        return cls(labels.long(), counts, norm, own[labels.long()])

    def product(self, factor: Factor) -> Float[Tensor, ""]:
        r""":math:`|F_c^\top Y_c|_F^2 = \sum_c n_c^2 |m_c - m|^2`, one pass of O(n d)."""
        sums = factor.mean.new_zeros(len(self.counts), len(factor.mean))
        for rows, classes in row_chunks(factor.rows, self.labels):
            sums = sums.index_add(0, classes, factor.prepare(rows))
        return sums.square().sum()

    @property
    def defined(self) -> Tensor:
        """Whether at least two classes are present."""
        return (self.counts > 0).sum() > 1


def with_labels(
    factors: Sequence[Factor], labels: LabelKernel, pairs: Pairs | None = None
) -> KernelProducts:
    """Products of linear kernels, with the kernel of the labels as one more, last."""
    own, diagonals = inner_products(factors, pairs)
    cross = torch.stack([labels.product(factor) for factor in factors])
    last = torch.cat([cross, labels.norm_squared.unsqueeze(0)])
    products = torch.cat([torch.cat([own, cross.unsqueeze(1)], 1), last.unsqueeze(0)])
    return KernelProducts.of(products, torch.cat([diagonals, labels.diagonal.unsqueeze(0)]))
