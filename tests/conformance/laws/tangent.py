"""Laws of the family tangent."""

import torch

from tests.conformance.laws.law import Law
from theodolite.linalg import double_center

_PERMUTATION = ("permute_rows_and_columns", "kernel", "targets")
_SCALE = ("scale", "kernel", "targets")
_SHIFTS = (("shift_entries", "kernel"), ("shift_entries", "targets"))
_KERNEL_AND_TARGETS = {"kernel": "tangent_kernel", "targets": "targets"}
_FISHER = {"kernel": "tangent_kernel", "hessian": "output_hessian"}


def _lost_by_centering(kernel, targets, **_options):
    """How many times larger kernel and targets are than what centring leaves of them."""
    matrix = kernel.reshape(targets.numel(), targets.numel())
    kept = torch.linalg.vector_norm(double_center(matrix)) / torch.linalg.vector_norm(matrix)
    left = torch.linalg.vector_norm(targets - targets.mean()) / torch.linalg.vector_norm(targets)
    return float(1 / (kept * left))


def _smaller_side(matrix):
    """The largest value that a rank can have."""
    return float(min(matrix.shape))


def _number_of_pairs(kernel, **_others):
    """The largest rank that a kernel over pairs of example and output can have."""
    return float(kernel.shape[0] * kernel.shape[1])


def _energy_scale(kernel, targets):
    return float(torch.linalg.vector_norm(kernel) * targets.square().sum())


LAWS = {
    "tangent_alignment": Law(
        inputs=_KERNEL_AND_TARGETS,
        invariances=(_PERMUTATION, _SCALE, ("negate", "targets"), *_SHIFTS),
        condition=_lost_by_centering,
    ),
    "tangent_alignment.uncentered": Law(
        inputs=_KERNEL_AND_TARGETS, invariances=(_PERMUTATION, _SCALE, ("negate", "targets"))
    ),
    "alignment_decomposition.correlation": Law(
        inputs=_KERNEL_AND_TARGETS,
        invariances=(_PERMUTATION, _SCALE, *_SHIFTS),
        condition=_lost_by_centering,
    ),
    "alignment_decomposition.stable_rank": Law(
        inputs=_KERNEL_AND_TARGETS,
        invariances=(_PERMUTATION, _SCALE, *_SHIFTS),
        scale=_number_of_pairs,
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
    "normalized_spectrum": Law(
        inputs={"matrix": "covariance"},
        invariances=(("scale", "matrix"), ("rotate_both", "matrix")),
    ),
    "uncoupled_bound": Law(
        inputs={"targets": "targets"},
        invariances=(
            ("scale", "targets"),
            ("negate", "targets"),
            ("shift_entries", "targets"),
            ("permute_rows", "targets"),
        ),
    ),
    "label_contribution": Law(
        inputs=_KERNEL_AND_TARGETS,
        invariances=(_PERMUTATION, ("negate", "targets"), *_SHIFTS),
        scale=_energy_scale,
    ),
    "rank_one_model": Law(
        inputs={"tangent_features": "tangent_features", "targets": "targets"},
        invariances=(
            ("permute_rows", "tangent_features", "targets"),
            ("scale", "tangent_features", "targets"),
            ("negate", "tangent_features"),
            ("negate", "targets"),
            ("shift_entries", "targets"),
        ),
    ),
    "label_gradient_correlation": Law(
        inputs={"targets": "targets", "loss_gradient": "loss_gradient"},
        invariances=(
            ("permute_rows", "targets", "loss_gradient"),
            ("scale", "targets", "loss_gradient"),
            ("shift_entries", "targets"),
            ("shift_entries", "loss_gradient"),
            ("swap", "targets", "loss_gradient"),
        ),
    ),
    "fisher_stable_rank": Law(
        inputs=_FISHER,
        invariances=(
            ("permute_rows_and_columns", "kernel", "hessian"),
            ("scale", "kernel", "hessian"),
        ),
        scale=_number_of_pairs,
    ),
    "fisher_correlation": Law(
        inputs={**_FISHER, "targets": "targets"},
        invariances=(
            ("permute_rows_and_columns", "kernel", "hessian", "targets"),
            ("scale", "kernel", "hessian", "targets"),
            ("shift_entries", "targets"),
        ),
    ),
    "layer_energy": Law(
        inputs={"vectors": "parameter_vectors", "sizes": "layer_sizes"},
        invariances=(("scale", "vectors"), ("negate", "vectors")),
    ),
    "fit_equilibrium": Law(
        inputs={"depths": "depths", "peaks": "peaks"},
        invariances=(("permute_rows", "depths", "peaks"),),
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
