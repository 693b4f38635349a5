"""The four sums of a set of vectors from which alignment, diversity and stiffness follow."""

from dataclasses import dataclass, fields

import torch
from jaxtyping import Float
from torch import Tensor

from theodolite.linalg.ratios import ratio_or_nan

__all__ = ["SetSums"]


@dataclass(frozen=True)
class SetSums:
    r"""Sufficient statistics of one or several sets of vectors, one entry per set.

    .. math:: n,\qquad Q = \Big\|\sum_i v_i\Big\|^2,\qquad S_1 = \sum_i \|v_i\|,
              \qquad S_2 = \sum_i \|v_i\|^2

    :math:`n, S_1, S_2` add over disjoint sets; :math:`Q` does not, the vector sums behind it do.

    Example:
        >>> sums = SetSums(*(torch.tensor([value]) for value in (3.0, 100.0, 12.0, 50.0)))
        >>> round(sums.alignment().item(), 4)
        0.5208
    """

    count: Float[Tensor, "*sets"]
    sum_square: Float[Tensor, "*sets"]
    norm_sum: Float[Tensor, "*sets"]
    square_sum: Float[Tensor, "*sets"]

    def __getitem__(self, index: int) -> "SetSums":
        """One of the sets, or the sets of one layer where layers come first."""
        return SetSums(*(getattr(self, part.name)[index] for part in fields(self)))

    def alignment(self, zero: str = "nan") -> Float[Tensor, "*sets"]:
        r"""Omega of each set, :math:`n (Q - S_2) / ((n - 1) S_1^2)`; nan for single vectors.

        Args:
            zero: value of a set of two or more vectors that are all zero, ``"nan"`` or ``"zero"``.
        """
        n, q, s1, s2 = self.count, self.sum_square, self.norm_sum, self.square_sum
        enough = n >= 2
        pairs = torch.where(enough, n / (n - 1).clamp(min=1), n)
        omega = ratio_or_nan(pairs * (q - s2), s1.square(), enough)
        if zero == "zero":
            omega = torch.where(enough & (s1 == 0), torch.zeros_like(omega), omega)
        return omega

    def weighted_alignment(self) -> Float[Tensor, "*sets"]:
        r"""Cosine weighted by the product of the norms: :math:`(Q - S_2) / (S_1^2 - S_2)`.

        Undefined (nan) when fewer than two vectors are not zero.
        """
        pairs = self.norm_sum.square() - self.square_sum
        # One vector that is not zero leaves only the rounding of its norm in the denominator.
        noise = 4 * torch.finfo(pairs.dtype).eps * self.norm_sum.square()
        return ratio_or_nan(self.sum_square - self.square_sum, pairs, pairs > noise)

    def diversity(self) -> Float[Tensor, "*sets"]:
        """``S2 / Q``: inf where the vectors cancel, nan where all of them are zero."""
        cancelled = (self.sum_square == 0) & (self.square_sum > 0)
        value = ratio_or_nan(self.square_sum, self.sum_square)
        return torch.where(cancelled, torch.full_like(value, torch.inf), value)
