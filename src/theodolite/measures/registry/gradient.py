"""Rows of the family ``gradient``."""

from functools import partial
from math import inf

from torch import Tensor

from theodolite.linalg import double
from theodolite.measures.gradient import (
    alignment_contrast,
    between_class_stiffness,
    class_alignment,
    class_alignment_matrix,
    confusion_of_gram,
    cosine_stiffness,
    gradient_confusion,
    gradient_diversity,
    in_class_alignment,
    relative_norm,
    stiffness_matrix,
    vector_alignment,
    weighted_alignment,
    within_class_stiffness,
)
from theodolite.measures.registry.measure import Invariance, Measure

_row = partial(Measure, family="gradient")

_VECTORS = {"vectors": "vectors"}
_CLASSES = {"vectors": "vectors", "labels": "labels"}
_SMOOTH = {"vectors": True}
_SPACE = (
    Invariance("scale", ("vectors",)),
    Invariance("negate", ("vectors",)),
    Invariance("rotate_columns", ("vectors",)),
    Invariance("append_zero_columns", ("vectors",)),
)
_SET = (*_SPACE, Invariance("permute_rows", ("vectors",)))
_LABELED = (*_SPACE, Invariance("permute_rows", ("vectors", "labels")))
_RENAMED = (*_LABELED, Invariance("rename_classes", ("labels",)))


def _diversity_scale(vectors: Tensor) -> float:
    """The value itself, or 1/n where it is smaller."""
    return max(float(gradient_diversity(vectors)), 1 / len(vectors))


def _cancellation(vectors: Tensor) -> float:
    """Squared sum of norms over squared norm of the sum: what cancels in the denominator."""
    wide = double(vectors).flatten(1)
    return float(wide.norm(dim=1).sum() ** 2 / wide.sum(0).norm() ** 2)


def _largest_product(vectors: Tensor, mode: str = "min") -> float:
    """Squared norm of the longest vector."""
    return float(double(vectors).flatten(1).norm(dim=1).max() ** 2)


def _largest_entry(gram: Tensor, mode: str = "min") -> float:
    return float(gram.abs().max())


def _relative_norm_scale(gradient: Tensor, weight: Tensor) -> float:
    return float(relative_norm(gradient, weight))


ROWS: tuple[Measure, ...] = (
    _row(
        name="vector_alignment",
        function=vector_alignment,
        inputs=_VECTORS,
        meaning="How far the gradients (or features) of all examples point the same way.",
        reference="[mehta2021], Eq. (2)-(4)",
        range=(-1.0, 1.0),
        larger_is_more_aligned=True,
        invariances=_SET,
        differentiable=_SMOOTH,
    ),
    _row(
        name="weighted_alignment",
        function=weighted_alignment,
        inputs=_VECTORS,
        meaning="Mean cosine between examples, long vectors counting for more.",
        reference="[mehta2021], Eq. (3) with an unbiased denominator",
        range=(-1.0, 1.0),
        larger_is_more_aligned=True,
        invariances=_SET,
        differentiable=_SMOOTH,
    ),
    _row(
        name="class_alignment",
        function=class_alignment,
        inputs=_CLASSES,
        meaning="How far the gradients of the examples of one class point the same way.",
        reference="[mehta2021], Eq. (5)",
        range=(-1.0, 1.0),
        larger_is_more_aligned=True,
        invariances=_LABELED,
        differentiable=_SMOOTH,
    ),
    _row(
        name="in_class_alignment",
        function=in_class_alignment,
        inputs=_CLASSES,
        meaning="Alignment within classes: high when learning one example helps its class mates.",
        reference="[mehta2021], Eq. (6)",
        range=(-1.0, 1.0),
        larger_is_more_aligned=True,
        invariances=_RENAMED,
        differentiable=_SMOOTH,
    ),
    _row(
        name="alignment_contrast",
        function=alignment_contrast,
        inputs=_CLASSES,
        meaning="In-class alignment above that of all pairs: what the classes add.",
        reference="[mehta2021], Eq. (6) minus Eq. (2)",
        range=(-2.0, 2.0),
        larger_is_more_aligned=True,
        invariances=_RENAMED,
        differentiable=_SMOOTH,
    ),
    _row(
        name="class_alignment_matrix",
        function=class_alignment_matrix,
        inputs=_CLASSES,
        meaning="Which classes pull the network the same way and which against each other.",
        reference="[mehta2021], Eq. (5) between classes",
        range=(-1.0, 1.0),
        larger_is_more_aligned=True,
        invariances=_LABELED,
        differentiable=_SMOOTH,
    ),
    _row(
        name="gradient_diversity",
        function=gradient_diversity,
        inputs=_VECTORS,
        meaning="How much the examples' gradients differ: 1/n when equal, 1 when orthogonal.",
        reference="[yin2018]",
        range=(0.0, inf),
        larger_is_more_aligned=False,
        invariances=_SET,
        differentiable=_SMOOTH,
        scale=_diversity_scale,
        condition=_cancellation,
    ),
    _row(
        name="cosine_stiffness",
        function=cosine_stiffness,
        inputs=_VECTORS,
        meaning="Mean cosine between the gradients of two examples.",
        reference="[fort2019]",
        range=(-1.0, 1.0),
        larger_is_more_aligned=True,
        invariances=_SET,
        differentiable=_SMOOTH,
    ),
    _row(
        name="stiffness_matrix",
        function=stiffness_matrix,
        inputs=_CLASSES,
        meaning="Mean cosine between the gradients of two classes.",
        reference="[fort2019]",
        range=(-1.0, 1.0),
        larger_is_more_aligned=True,
        invariances=_LABELED,
        differentiable=_SMOOTH,
    ),
    _row(
        name="within_class_stiffness",
        function=within_class_stiffness,
        inputs=_CLASSES,
        meaning="Mean cosine between the gradients of two examples of the same class.",
        reference="[fort2019]",
        range=(-1.0, 1.0),
        larger_is_more_aligned=True,
        invariances=_RENAMED,
        differentiable=_SMOOTH,
    ),
    _row(
        name="between_class_stiffness",
        function=between_class_stiffness,
        inputs=_CLASSES,
        meaning="Mean cosine between the gradients of examples of different classes.",
        reference="[fort2019]",
        range=(-1.0, 1.0),
        larger_is_more_aligned=True,
        invariances=_RENAMED,
        differentiable=_SMOOTH,
    ),
    _row(
        name="gradient_confusion",
        function=gradient_confusion,
        inputs=_VECTORS,
        meaning="The most contrary pair of examples: negative when a step for one hurts another.",
        reference="[sankararaman2020]",
        larger_is_more_aligned=True,
        invariances=(
            Invariance("negate", ("vectors",)),
            Invariance("rotate_columns", ("vectors",)),
            Invariance("append_zero_columns", ("vectors",)),
            Invariance("permute_rows", ("vectors",)),
        ),
        differentiable=_SMOOTH,
        scale=_largest_product,
    ),
    _row(
        name="confusion_of_gram",
        function=confusion_of_gram,
        inputs={"gram": "gram"},
        meaning="The most contrary pair of examples, from their matrix of inner products.",
        reference="[sankararaman2020]",
        larger_is_more_aligned=True,
        invariances=(Invariance("permute_rows_and_columns", ("gram",)),),
        differentiable={"gram": True},
        scale=_largest_entry,
    ),
    _row(
        name="relative_norm",
        function=relative_norm,
        inputs={"gradient": "features", "weight": "features"},
        meaning="Length of the gradient relative to the weight: small where training is lazy.",
        reference="[mehta2021], Figure 2(b)",
        range=(0.0, inf),
        invariances=(Invariance("negate", ("gradient",)), Invariance("negate", ("weight",))),
        differentiable={"gradient": True, "weight": True},
        scale=_relative_norm_scale,
    ),
)
