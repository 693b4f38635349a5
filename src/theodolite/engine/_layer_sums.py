"""Sufficient statistics of per-example gradients, for one layer or for several side by side."""

from dataclasses import dataclass, fields

import torch
from jaxtyping import Float
from torch import Tensor

from theodolite.linalg import ratio_or_nan
from theodolite.measures.gradient import SetSums

__all__ = ["LayerSums", "UnitSums", "mean_over_classes"]


def mean_over_classes(values: Float[Tensor, "*layers k"]) -> Float[Tensor, "*layers"]:
    """Mean over the classes where a value is defined; nan if it is nowhere."""
    defined = ~values.isnan()
    total = torch.where(defined, values, torch.zeros_like(values)).sum(-1)
    return ratio_or_nan(total, defined.sum(-1).to(values.dtype))


@dataclass(frozen=True)
class UnitSums:
    r"""Sums of gradients divided by their norms, from which cosines follow.

    Args:
        counts: gradients per class that are not zero, :math:`m_c`.
        squares: :math:`\|\sum_{i \in c} u_i\|^2` per class.
        total_square: :math:`\|\sum_i u_i\|^2`.
        mean_square: :math:`\|\sum_c \tfrac{1}{m_c} \sum_{i \in c} u_i\|^2`.
    """

    counts: Float[Tensor, "*layers k"]
    squares: Float[Tensor, "*layers k"]
    total_square: Float[Tensor, "*layers"]
    mean_square: Float[Tensor, "*layers"]

    def stiffness(self) -> Float[Tensor, "*layers"]:
        """Mean cosine of two different gradients."""
        count = self.counts.sum(-1)
        return ratio_or_nan(self.total_square - count, count * (count - 1))

    def within_class(self) -> Float[Tensor, "*layers"]:
        """Mean cosine of two different gradients of one class, averaged over classes."""
        m = self.counts
        return mean_over_classes(ratio_or_nan(self.squares - m, m * (m - 1)))

    def between_class(self) -> Float[Tensor, "*layers"]:
        """Mean cosine of gradients of two different classes, averaged over pairs of classes."""
        present = (self.counts > 0).sum(-1).to(self.squares.dtype)
        own = (self.squares / self.counts.clamp(min=1.0).square()).sum(-1)
        return ratio_or_nan(self.mean_square - own, present * (present - 1))

    def row(self, index: int) -> "UnitSums":
        """One of several layers side by side."""
        return UnitSums(*(getattr(self, field.name)[index] for field in fields(self)))


@dataclass(frozen=True)
class LayerSums:
    """Sufficient statistics of the gradients of one layer, on the CPU in float64.

    Args:
        classes: count, squared norm of the sum, sum of norms and of squared norms, per class.
        overall: the same for all examples as one set.
        norms: norm of each example's gradient, in the order of the data.
        weight_norm: norm of the layer's parameters; nan where there are none.
        units: sums of unit vectors, where they were asked for.
    """

    classes: SetSums
    overall: SetSums
    norms: Float[Tensor, "*layers n"]
    weight_norm: Float[Tensor, "*layers"]
    units: UnitSums | None = None

    def row(self, index: int) -> "LayerSums":
        """One of several layers side by side."""
        classes, overall = (
            SetSums(*(getattr(sums, field.name)[index] for field in fields(sums)))
            for sums in (self.classes, self.overall)
        )
        units = None if self.units is None else self.units.row(index)
        return LayerSums(classes, overall, self.norms[index], self.weight_norm[index], units)
