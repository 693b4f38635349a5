"""Laws of the family ``gradient``."""

from tests.conformance.laws.law import Law
from theodolite.linalg import double
from theodolite.measures.gradient import gradient_diversity, relative_norm

_VECTORS = {"vectors": "vectors"}
CLASSES = {"vectors": "vectors", "labels": "labels"}
SPACE = (
    ("scale", "vectors"),
    ("negate", "vectors"),
    ("rotate_columns", "vectors"),
    ("append_zero_columns", "vectors"),
)
_SET = (*SPACE, ("permute_rows", "vectors"))
LABELED = (*SPACE, ("permute_rows", "vectors", "labels"))
RENAMED = (*LABELED, ("rename_classes", "labels"))


def _diversity_scale(vectors):
    """The value itself, or 1/n where it is smaller."""
    return max(float(gradient_diversity(vectors)), 1 / len(vectors))


def _cancellation(vectors):
    """Squared sum of norms over squared norm of the sum: what cancels in the denominator."""
    wide = double(vectors).flatten(1)
    return float(wide.norm(dim=1).sum() ** 2 / wide.sum(0).norm() ** 2)


def _largest_product(vectors):
    """Squared norm of the longest vector."""
    return float(double(vectors).flatten(1).norm(dim=1).max() ** 2)


def _largest_entry(gram):
    return float(gram.abs().max())


def _relative_norm_scale(gradient, weight):
    return float(relative_norm(gradient, weight))


LAWS = {
    "vector_alignment": Law(inputs=_VECTORS, invariances=_SET),
    "weighted_alignment": Law(inputs=_VECTORS, invariances=_SET),
    "class_alignment": Law(inputs=CLASSES, invariances=LABELED),
    "in_class_alignment": Law(inputs=CLASSES, invariances=RENAMED),
    "alignment_contrast": Law(inputs=CLASSES, invariances=RENAMED),
    "gradient_diversity": Law(
        inputs=_VECTORS, invariances=_SET, scale=_diversity_scale, condition=_cancellation
    ),
    "cosine_stiffness": Law(inputs=_VECTORS, invariances=_SET),
    "gradient_confusion": Law(
        inputs=_VECTORS,
        invariances=(
            ("negate", "vectors"),
            ("rotate_columns", "vectors"),
            ("append_zero_columns", "vectors"),
            ("permute_rows", "vectors"),
        ),
        scale=_largest_product,
    ),
    "confusion_of_gram": Law(
        inputs={"gram": "gram"},
        invariances=(("permute_rows_and_columns", "gram"),),
        scale=_largest_entry,
    ),
    "relative_norm": Law(
        inputs={"gradient": "features", "weight": "features"},
        invariances=(("negate", "gradient"), ("negate", "weight")),
        scale=_relative_norm_scale,
    ),
}

# Exported names that are no measures of arrays.
HELPERS = {
    "SetSums",
    "VectorMoments",
    "contrast_from_sums",
    "mean_over_classes",
}
