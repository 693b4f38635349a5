"""Alignment of tangent kernels with the labels, layer by layer, and the shape of that curve."""

from theodolite.linalg import (
    LeaveOneOut,
    alignment_from_norms,
    cross_entropy_gradient,
    cross_entropy_hessian,
    squared_error_gradient,
    squared_error_hessian,
)
from theodolite.measures.tangent._regression import (
    leave_one_out_tangent_regression,
    tangent_regression_accuracy,
    tangent_regression_error,
)
from theodolite.measures.tangent.alignment import (
    AlignmentDecomposition,
    alignment_decomposition,
    centered_labels,
    correlation_term,
    feature_kernel,
    operator_alignment,
    permuted_alignments,
    stacked_kernel,
    tangent_alignment,
)
from theodolite.measures.tangent.spectrum import effective_rank, peak_layer, stable_rank

__all__ = [
    "AlignmentDecomposition",
    "LeaveOneOut",
    "alignment_decomposition",
    "alignment_from_norms",
    "centered_labels",
    "correlation_term",
    "cross_entropy_gradient",
    "cross_entropy_hessian",
    "effective_rank",
    "feature_kernel",
    "leave_one_out_tangent_regression",
    "operator_alignment",
    "peak_layer",
    "permuted_alignments",
    "squared_error_gradient",
    "squared_error_hessian",
    "stable_rank",
    "stacked_kernel",
    "tangent_alignment",
    "tangent_regression_accuracy",
    "tangent_regression_error",
]
