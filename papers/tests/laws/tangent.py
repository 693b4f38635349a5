"""Laws of the formulas of tangent alignment."""

import torch

from tests.conformance.laws.law import Law
from tests.conformance.laws.tangent import KERNEL_AND_TARGETS, PERMUTATION, SHIFTS, number_of_pairs

_FISHER = {"kernel": "tangent_kernel", "hessian": "output_hessian"}


def _energy_scale(kernel, targets):
    return float(torch.linalg.vector_norm(kernel) * targets.square().sum())


LAWS = {
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
        inputs=KERNEL_AND_TARGETS,
        invariances=(PERMUTATION, ("negate", "targets"), *SHIFTS),
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
        scale=number_of_pairs,
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
