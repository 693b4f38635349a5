"""The kernel of class labels in closed form, and its inner product with a linear kernel."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Integer
from torch import Tensor

from theodolite.linalg import KernelProducts, row_chunks
from theodolite.measures.kernel._factors import Factor, Pairs, inner_products

__all__ = ["LabelKernel", "with_labels"]

_FEW_CLASSES = 128  # up to here a product beats sums by index, which contend for the same rows


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
        n = counts.sum()
        # |1_c - p|^2 = (1 - p_c)^2 + sum of the others' p^2, without the difference of near-equals
        # that a dominant class would make of it.
        squares = (counts / n).square()
        before = squares.cumsum(0).roll(1)
        after = squares.flip(0).cumsum(0).roll(1).flip(0)
        before[0] = after[-1] = 0
        own = ((n - counts) / n).square() + before + after
        return cls(labels.long(), counts, (counts.square() * own).sum(), own[labels.long()])

    def product(self, factor: Factor) -> Float[Tensor, ""]:
        r""":math:`|F_c^\top Y_c|_F^2 = \sum_c n_c^2 |m_c - m|^2`, one pass over the features."""
        sums = factor.mean.new_zeros(len(self.counts), len(factor.mean))
        for rows, classes in row_chunks(factor.rows, self.labels):
            ready = factor.prepare(rows)
            if len(self.counts) <= _FEW_CLASSES:
                one_hot = torch.nn.functional.one_hot(classes, len(self.counts)).to(ready)
                sums = torch.addmm(sums, one_hot.mT, ready)
            else:
                sums = sums.index_add(0, classes, ready)
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
