"""Omega of groups of vectors from their inner products, for many groupings at once."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from theodolite.linalg import ratio_or_nan
from theodolite.measures.gradient import SetSums

__all__ = ["GroupAlignment", "grouped_alignment"]


@dataclass(frozen=True)
class GroupAlignment:
    """Omega of all pairs, and within the groups of every grouping."""

    omega: Float[Tensor, ""]
    classes: Float[Tensor, "b k"]
    in_class: Float[Tensor, " b"]
    contrast: Float[Tensor, " b"]

    @classmethod
    def nothing(cls) -> "GroupAlignment":
        """No grouping at all."""
        none = torch.empty(0, dtype=torch.float64)
        return cls(torch.tensor(torch.nan, dtype=torch.float64), none.reshape(0, 1), none, none)


def grouped_alignment(gram: Float[Tensor, "n n"], groups: Float[Tensor, "b n k"]) -> GroupAlignment:
    r"""Omega within groups from a Gram matrix.

    .. math:: \Omega_c = \frac{n_c\,(1_c^\top K 1_c - \sum_{i \in c} K_{ii})}
              {(n_c - 1)\,(\sum_{i \in c} \sqrt{K_{ii}})^2}

    Args:
        gram: inner products of the vectors, in float64.
        groups: one-hot groups of every example, for every grouping.

    References:
        [mehta2021], Eqs. (4) to (6).
    """
    count, n, k = groups.shape
    squares = gram.diagonal().clamp(min=0.0)
    flat = groups.permute(1, 0, 2).reshape(n, count * k)
    sums = (flat * (gram @ flat)).sum(0).reshape(count, k)
    classes = SetSums(groups.sum(1), sums, squares.sqrt() @ groups, squares @ groups).alignment()
    total = torch.ones_like(squares)
    overall = SetSums(total.sum(), gram.sum(), squares.sqrt().sum(), squares.sum()).alignment()
    defined = ~classes.isnan()
    in_class = ratio_or_nan(
        torch.where(defined, classes, torch.zeros_like(classes)).sum(1),
        defined.sum(1).to(classes.dtype),
    )
    return GroupAlignment(overall, classes, in_class, in_class - overall)
