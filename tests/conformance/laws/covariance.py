"""Laws of the family covariance."""

import torch

from tests.conformance.laws.law import Law

PAIR = {"data_covariance": "data_covariance", "weight_covariance": "covariance"}
TWO = {"covariance_1": "covariance", "covariance_2": "covariance"}
BOTH_ROTATED = ("rotate_both", "data_covariance", "weight_covariance")
SCALINGS = (("scale", "data_covariance"), ("scale", "weight_covariance"))


def condition_number(matrix):
    """Largest over smallest singular value."""
    return float(torch.linalg.cond(matrix.double()))


def dimension(weight_covariance, **_):
    """Natural scale of misalignments, which are sums over directions."""
    return float(weight_covariance.shape[-1])


def weight_condition(weight_covariance, **_):
    """Condition number of what gets inverted."""
    return condition_number(weight_covariance)


PAIR_INVARIANCES = (BOTH_ROTATED, *SCALINGS, ("negate", "data_covariance"))
_MISALIGNMENT = {
    "misalignment": Law(
        inputs=PAIR,
        invariances=(*PAIR_INVARIANCES, ("invert", "weight_covariance")),
        scale=dimension,
        condition=weight_condition,
    ),
    "misalignment.subspace": Law(
        inputs=PAIR,
        invariances=(BOTH_ROTATED, *SCALINGS),
        scale=dimension,
        condition=weight_condition,
    ),
    "relative_misalignment": Law(
        inputs={**PAIR, "bases": "bases"},
        invariances=(*SCALINGS, ("invert", "weight_covariance")),
        scale=dimension,
        condition=weight_condition,
    ),
}


def _weights_scale(weights, **_):
    return float(weights.norm())


_TRANSFER = {
    "transfer_function": Law(
        inputs={"data_covariance": "data_covariance", "weights": "weights"},
        invariances=(
            ("rotate_both", "data_covariance", "weights"),
            ("scale", "data_covariance"),
            ("shift_rows", "weights"),
            ("permute_rows", "weights"),
            ("negate", "weights"),
        ),
        scale=_weights_scale,
    ),
}


_EIGENVECTORS = {
    "subspace_overlap": Law(
        inputs=TWO,
        invariances=(
            ("rotate_both", "covariance_1", "covariance_2"),
            ("swap", "covariance_1", "covariance_2"),
        ),
    ),
}
LAWS = {**_MISALIGNMENT, **_TRANSFER, **_EIGENVECTORS}

# Exported names that are no measures of arrays.
HELPERS = {
    "MisalignmentComparison",
    "TransferFunction",
    "compare_misalignment",
    "compare_misalignment_along",
    "random_bases",
    "random_basis_misalignment",
    "misalignment_floor",
    "subspace_size",
}
