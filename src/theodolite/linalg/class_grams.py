"""Gram matrices per class: every one-versus-one task from a single pass over the data."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Integer
from torch import Tensor

from theodolite.checks import require_axes, require_labels, require_same_length, require_same_shape
from theodolite.linalg.arrays import double, eps_of
from theodolite.linalg.moments import row_chunks
from theodolite.linalg.projections import LabelProjections, projections_from_gram

__all__ = ["ClassGrams"]


@dataclass(frozen=True)
class ClassGrams:
    r"""Per class :math:`a`: number of rows, their sum and their Gram matrix, about zero.

    .. math:: n_a, \qquad m_a = \sum_{i \in a} \phi_i, \qquad G_a = \sum_{i \in a} \phi_i\phi_i^\top

    The task "a against b" with labels +1 and -1 has the Gram matrix :math:`G_a + G_b`, the cross
    moment :math:`m_a - m_b` and the label energy :math:`n_a + n_b`. Memory O(k d²).
    """

    counts: Float[Tensor, " k"]
    sums: Float[Tensor, "k d"]
    grams: Float[Tensor, "k d d"]
    eps: float  # rounding of the dtype in which the rows came

    @classmethod
    def of(
        cls, rows: Float[Tensor, "n d"], labels: Integer[Tensor, " n"], num_classes: int
    ) -> "ClassGrams":
        """Statistics of one batch."""
        require_axes(2, rows=rows)
        require_same_length(rows=rows, labels=labels)
        require_labels(labels, num_classes)
        width = rows.shape[1]
        counts = torch.bincount(labels.long(), minlength=num_classes).to(double(rows[:0]))
        sums, grams = counts.new_zeros(num_classes, width), []
        for index in range(num_classes):
            gram = counts.new_zeros(width, width)
            for (chunk,) in row_chunks(rows[labels == index]):
                wide = double(chunk)
                gram.addmm_(wide.mT, wide)
                sums[index] += wide.sum(0)
            grams.append(gram)
        return cls(counts, sums, torch.stack(grams), eps_of(rows))

    def __add__(self, other: "ClassGrams") -> "ClassGrams":
        """Statistics of both groups of rows together."""
        require_same_shape(left=self.grams, right=other.grams)
        return ClassGrams(
            self.counts + other.counts,
            self.sums + other.sums,
            self.grams + other.grams,
            max(self.eps, other.eps),
        )

    def pair(self, first: int, second: int) -> LabelProjections:
        """Projections of the labels +1 (first class) and -1 (second class) on their own rows."""
        cross = (self.sums[first] - self.sums[second]).unsqueeze(1)
        count = self.counts[first] + self.counts[second]
        gram = self.grams[first] + self.grams[second]
        return projections_from_gram(gram, cross, count.reshape(1), int(count), self.eps)
