"""Laws of the family tangent."""

import torch

from tests.conformance.laws.law import Law
from theodolite.linalg import double_center

PERMUTATION = ("permute_rows_and_columns", "kernel", "targets")
_SCALE = ("scale", "kernel", "targets")
SHIFTS = (("shift_entries", "kernel"), ("shift_entries", "targets"))
KERNEL_AND_TARGETS = {"kernel": "tangent_kernel", "targets": "targets"}


def _lost_by_centering(kernel, targets, **_options):
    """How many times larger kernel and targets are than what centring leaves of them."""
    matrix = kernel.reshape(targets.numel(), targets.numel())
    kept = torch.linalg.vector_norm(double_center(matrix)) / torch.linalg.vector_norm(matrix)
    left = torch.linalg.vector_norm(targets - targets.mean()) / torch.linalg.vector_norm(targets)
    return float(1 / (kept * left))


def _smaller_side(matrix):
    """The largest value that a rank can have."""
    return float(min(matrix.shape))


def number_of_pairs(kernel, **_others):
    """The largest rank that a kernel over pairs of example and output can have."""
    return float(kernel.shape[0] * kernel.shape[1])


LAWS = {
    "tangent_alignment": Law(
        inputs=KERNEL_AND_TARGETS,
        invariances=(PERMUTATION, _SCALE, ("negate", "targets"), *SHIFTS),
        condition=_lost_by_centering,
    ),
    "tangent_alignment.uncentered": Law(
        inputs=KERNEL_AND_TARGETS, invariances=(PERMUTATION, _SCALE, ("negate", "targets"))
    ),
    "alignment_decomposition.correlation": Law(
        inputs=KERNEL_AND_TARGETS,
        invariances=(PERMUTATION, _SCALE, *SHIFTS),
        condition=_lost_by_centering,
    ),
    "alignment_decomposition.stable_rank": Law(
        inputs=KERNEL_AND_TARGETS,
        invariances=(PERMUTATION, _SCALE, *SHIFTS),
        scale=number_of_pairs,
        condition=_lost_by_centering,
    ),
    "stable_rank": Law(
        inputs={"matrix": "features"},
        invariances=(
            ("scale", "matrix"),
            ("negate", "matrix"),
            ("rotate_rows", "matrix"),
            ("rotate_columns", "matrix"),
            ("append_zero_columns", "matrix"),
        ),
        scale=_smaller_side,
    ),
}

# Exported names that are no measures of arrays.
HELPERS = {
    "AlignmentDecomposition",
    "alignment_from_norms",
    "centered_labels",
    "peak_layer",
    "permuted_alignments",
    "stacked_kernel",
}
