"""Sums behind CKA of one batch: both sides and their product in one pass over the rows."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Integer
from torch import Tensor

from theodolite.checks import require_same_shape
from theodolite.linalg import HsicSums, double, eps_of, row_chunks
from theodolite.measures.kernel import cka_from_products

__all__ = ["CkaSums", "label_sums", "pair_sums", "target_sums"]


@dataclass(frozen=True)
class CkaSums:
    """Sums of one pair of feature sets, of each with itself, and the rounding of their dtype."""

    cross: HsicSums
    own: tuple[HsicSums, ...]  # of the first, and of the second where it is no set of labels
    eps: Float[Tensor, ""]

    def __add__(self, other: "CkaSums") -> "CkaSums":
        """Sums of both groups of examples together."""
        require_same_shape(left=self.cross.cross, right=other.cross.cross)
        own = tuple(mine + yours for mine, yours in zip(self.own, other.own, strict=True))
        return CkaSums(self.cross + other.cross, own, torch.maximum(self.eps, other.eps))

    def cka(self, second: HsicSums, defined: Tensor, debiased: bool) -> Tensor:
        """The ratio, where both sides are defined."""
        eps = float(self.eps)
        products = HsicSums.products(self.cross, self.own[0], second)
        return cka_from_products(products, debiased=debiased, eps=eps, defined=defined)[0, 1]


def target_sums(
    features: Float[Tensor, "n d"],
    labels: Integer[Tensor, " n"],
    zero: Float[Tensor, " k"],
    shift: Float[Tensor, " d"] | None,
) -> CkaSums:
    """Sums of features with one-hot labels and with themselves; without a shift, about the mean.

    ``zero`` is the shift of the labels: always the same tensor, so that batches add as they are.
    """
    center = double(features.double().mean(0) if shift is None else shift)
    parts = []
    for chunk, classes in row_chunks(features, labels.long()):
        side = _Side.of(chunk, center)
        per_class = center.new_zeros(len(zero), len(center)).index_add(0, classes, side.rows)
        columns = torch.stack([side.squares, torch.ones_like(side.squares)], dim=1)
        squares, counts = columns.new_zeros(len(zero), 2).index_add(0, classes, columns).mT
        own = side.with_itself()
        n, total, energy = own.count, own.total_a, own.square_a  # every label has norm one
        cross = HsicSums(
            n, center, zero, total, counts, per_class.mT, total, squares,
            energy, energy, n,
        )  # fmt: skip
        parts.append(CkaSums(cross, (own,), _rounding(features)))
    return sum(parts[1:], start=parts[0])


def pair_sums(
    features_a: Float[Tensor, "n d"],
    features_b: Float[Tensor, "n e"],
    shifts: tuple[Tensor | None, Tensor | None],
) -> CkaSums:
    """Sums of two sets of features with each other and with themselves."""
    centers = [
        double(features.double().mean(0) if shift is None else shift)
        for features, shift in zip((features_a, features_b), shifts, strict=True)
    ]
    parts = []
    for chunks in row_chunks(features_a, features_b):
        a, b = (_Side.of(rows, center) for rows, center in zip(chunks, centers, strict=True))
        own = a.with_itself(), b.with_itself()
        cross = HsicSums(
            own[0].count, a.shift, b.shift, own[0].total_a, own[1].total_a, a.rows.mT @ b.rows,
            a.rows.mT @ b.squares, b.rows.mT @ a.squares, a.squares @ b.squares,
            own[0].square_a, own[1].square_a,
        )  # fmt: skip
        parts.append(CkaSums(cross, own, _rounding(features_a, features_b)))
    return sum(parts[1:], start=parts[0])


class _Side(NamedTuple):
    """Rows about their shift, and the square of each row's norm."""

    rows: Tensor
    squares: Tensor
    shift: Tensor

    @classmethod
    def of(cls, rows: Tensor, shift: Tensor) -> "_Side":
        offset = double(rows) - shift
        return cls(offset, torch.linalg.vector_norm(offset, dim=1).square(), shift)

    def with_itself(self) -> HsicSums:
        d = self.squares
        # One thin product reads the rows once for both sums.
        weighted, total = (self.rows.mT @ torch.stack([d, torch.ones_like(d)], dim=1)).mT
        count = d.new_full((), float(len(d)))
        return HsicSums(
            count, self.shift, self.shift, total, total, self.rows.mT @ self.rows, weighted,
            weighted, d @ d, d.sum(), d.sum(),
        )  # fmt: skip


def label_sums(counts: Tensor) -> HsicSums:
    """Sums of one-hot labels, whose rows all have norm one, from the class counts alone."""
    n, zero = counts.sum(), torch.zeros_like(counts)
    return HsicSums(n, zero, zero, counts, counts, counts.diag(), counts, counts, n, n, n)


def _rounding(*features: Tensor) -> Tensor:
    """Unit round-off of the coarsest input; half types count as float32, as in the measures."""
    single = torch.finfo(torch.float32).eps
    like = double(features[0][:0])
    return like.new_tensor(min(single, eps_of(*features)))
