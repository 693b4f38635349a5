"""Omega of groups of vectors from their inner products, for many groupings at once."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from theodolite.measures.gradient import SetSums

__all__ = ["GroupAlignment", "grouped_alignment"]


@dataclass(frozen=True)
class GroupAlignment:
    """Omega of all pairs, and within the groups of every grouping."""

    omega: Float[Tensor, "*layers"]
    classes: Float[Tensor, "*layers b k"]
    in_class: Float[Tensor, "*layers b"]
    contrast: Float[Tensor, "*layers b"]

    @classmethod
    def nothing(cls) -> "GroupAlignment":
        """No grouping at all."""
        none = torch.empty(0, dtype=torch.float64)
        return cls(torch.tensor(torch.nan, dtype=torch.float64), none.reshape(0, 1), none, none)

    def rows(self) -> list["GroupAlignment"]:
        """Layers side by side one by one, on the CPU."""
        parts = [self.omega, self.classes, self.in_class, self.contrast]
        return [GroupAlignment(*row) for row in zip(*(part.cpu() for part in parts), strict=True)]


def grouped_alignment(
    gram: Float[Tensor, "*layers n n"], groups: Float[Tensor, "b n k"]
) -> GroupAlignment:
    r"""Omega within groups from Gram matrices.

    .. math:: \Omega_c = \frac{n_c\,(1_c^\top K 1_c - \sum_{i \in c} K_{ii})}
              {(n_c - 1)\,(\sum_{i \in c} \sqrt{K_{ii}})^2}

    Args:
        gram: inner products of the vectors, in float64.
        groups: one-hot groups of every example, for every grouping.

    References:
        [mehta2021], Eqs. (4) to (6).
    """
    count, n, k = groups.shape
    squares = gram.diagonal(dim1=-2, dim2=-1).clamp(min=0.0)
    norms = squares.sqrt()
    flat = groups.permute(1, 0, 2).reshape(n, count * k)

    def by_group(values: Tensor) -> Tensor:
        return values.reshape(*values.shape[:-1], count, k)

    sums = by_group((flat * (gram @ flat)).sum(-2))
    counts = groups.sum(1).expand_as(sums)
    classes = SetSums(counts, sums, by_group(norms @ flat), by_group(squares @ flat)).alignment()
    total = torch.full_like(squares[..., 0], float(n))
    every = SetSums(total, gram.sum((-2, -1)), norms.sum(-1), squares.sum(-1))
    overall, in_class = every.alignment(), classes.nanmean(-1)
    return GroupAlignment(overall, classes, in_class, in_class - overall.unsqueeze(-1))
