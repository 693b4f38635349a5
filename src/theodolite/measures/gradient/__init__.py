"""Gradient alignment: do the gradients (or features) of examples point the same way?

*Omega* of some vectors is the mean inner product of two of them, divided by their squared mean norm
(:func:`vector_alignment`). All measures except confusion follow from sums over the examples, in
linear time.

References:
    [mehta2021].
"""

from theodolite.linalg import SetSums, contrast_from_sums, mean_over_classes
from theodolite.measures.gradient._comparison import (
    confusion_of_gram,
    gradient_confusion,
    gradient_diversity,
    relative_norm,
)
from theodolite.measures.gradient.alignment import (
    VectorMoments,
    alignment_contrast,
    class_alignment,
    cosine_stiffness,
    in_class_alignment,
    vector_alignment,
    weighted_alignment,
)

__all__ = [
    "SetSums",
    "VectorMoments",
    "alignment_contrast",
    "class_alignment",
    "confusion_of_gram",
    "contrast_from_sums",
    "cosine_stiffness",
    "gradient_confusion",
    "gradient_diversity",
    "in_class_alignment",
    "mean_over_classes",
    "relative_norm",
    "vector_alignment",
    "weighted_alignment",
]
