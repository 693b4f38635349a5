"""Sufficient statistics of the per-example gradients of one layer."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from theodolite.linalg import ratio_or_nan
from theodolite.measures.gradient import SetSums
from theodolite.measures.gradient._alignment import mean_over_defined

__all__ = ["LayerSums", "UnitSums"]


@dataclass(frozen=True)
class UnitSums:
    r"""Sums of gradients divided by their norms, from which cosines follow.

    Args:
        counts: gradients per class that are not zero, :math:`m_c`.
        squares: :math:`\|\sum_{i \in c} u_i\|^2` per class.
        total_square: :math:`\|\sum_i u_i\|^2`.
        mean_square: :math:`\|\sum_c \tfrac{1}{m_c} \sum_{i \in c} u_i\|^2`.
    """

    counts: Float[Tensor, " k"]
    squares: Float[Tensor, " k"]
    total_square: Float[Tensor, ""]
    mean_square: Float[Tensor, ""]

    def stiffness(self) -> Float[Tensor, ""]:
        """Mean cosine of two different gradients."""
        count = self.counts.sum()
        return ratio_or_nan(self.total_square - count, count * (count - 1))

    def within_class(self) -> Float[Tensor, ""]:
        """Mean cosine of two different gradients of one class, averaged over classes."""
        m = self.counts
        return mean_over_defined(ratio_or_nan(self.squares - m, m * (m - 1)))

    def between_class(self) -> Float[Tensor, ""]:
        """Mean cosine of gradients of two different classes, averaged over pairs of classes."""
        present = (self.counts > 0).sum().to(self.squares.dtype)
        own = (self.squares / self.counts.clamp(min=1.0).square()).sum()
        return ratio_or_nan(self.mean_square - own, present * (present - 1))


@dataclass(frozen=True)
class LayerSums:
    """Sufficient statistics of the gradients of one layer.

    Args:
        classes: count, squared norm of the sum, sum of norms and of squared norms, per class.
        overall: the same for all examples as one set.
        norms: norm of each example's gradient, in the order of the data.
        weight_norm: norm of the layer's parameters; nan where there are none.
        units: sums of unit vectors, where they were asked for.
    """

    classes: SetSums
    overall: SetSums
    norms: Float[Tensor, " n"]
    weight_norm: Float[Tensor, ""]
    units: UnitSums | None = None
