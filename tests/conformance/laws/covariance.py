"""Laws of the family covariance."""

from math import inf

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


_PAIR_INVARIANCES = (BOTH_ROTATED, *SCALINGS, ("negate", "data_covariance"))
_OF_WEIGHTS = (
    ("rotate_both", "weight_covariance"),
    ("scale", "weight_covariance"),
    ("invert", "weight_covariance"),
)
_MISALIGNMENT = {
    "misalignment": Law(
        inputs=PAIR,
        invariances=(*_PAIR_INVARIANCES, ("invert", "weight_covariance")),
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
    "one_sided_misalignment.weights": Law(
        inputs=PAIR, invariances=_PAIR_INVARIANCES, scale=dimension, condition=weight_condition
    ),
    "one_sided_misalignment.aligned": Law(
        inputs=PAIR, invariances=_PAIR_INVARIANCES, scale=dimension, condition=weight_condition
    ),
    "basis_misalignment": Law(
        inputs={"basis": "basis", "weight_covariance": "covariance"},
        invariances=(
            ("scale", "weight_covariance"),
            ("invert", "weight_covariance"),
            ("negate", "basis"),
        ),
        scale=dimension,
        condition=weight_condition,
    ),
    "basis_misalignment_terms": Law(
        inputs={"basis": "basis", "weight_covariance": "covariance"},
        invariances=(("scale", "weight_covariance"), ("invert", "weight_covariance")),
        scale=dimension,
        condition=weight_condition,
    ),
    "kantorovich_bound": Law(
        inputs={"weight_covariance": "covariance"},
        invariances=_OF_WEIGHTS,
        scale=dimension,
        condition=weight_condition,
    ),
    "haar_bound": Law(
        inputs={"weight_covariance": "covariance"},
        invariances=_OF_WEIGHTS,
        scale=dimension,
        condition=weight_condition,
    ),
    "alignment_defect": Law(
        inputs={"matrix": "covariance", "reference": "data_covariance"},
        invariances=(
            ("rotate_both", "matrix", "reference"),
            ("scale", "matrix"),
            ("scale", "reference"),
            ("negate", "matrix"),
            ("negate", "reference"),
        ),
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
    "curve_deviation": Law(
        inputs={"curve_1": "curve", "curve_2": "curve"},
        invariances=(("swap", "curve_1", "curve_2"), ("scale", "curve_1"), ("scale", "curve_2")),
    ),
    "unimodality_defect": Law(
        inputs={"curve": "curve"}, invariances=(("scale", "curve"), ("shift_entries", "curve"))
    ),
}
_EIGENVALUES = {"eigenvalue_1": "eigenvalues", "eigenvalue_2": "eigenvalues"}
_CONGRUENT = (
    ("rotate_both", "covariance_1", "covariance_2"),
    ("swap", "covariance_1", "covariance_2"),
    ("invert", "covariance_1", "covariance_2"),
)


def _pair_condition(covariance_1, covariance_2):
    return condition_number(covariance_1) * condition_number(covariance_2)


def _pair_scale(covariance_1, covariance_2):
    forward = torch.linalg.solve(covariance_1.double(), covariance_2.double()).trace()
    backward = torch.linalg.solve(covariance_2.double(), covariance_1.double()).trace()
    return float((forward + backward) / 2)


def _information_scale(covariance, direction):
    return float((direction.norm() * torch.linalg.matrix_norm(covariance.inverse(), 2)).square())


def _relative_gap(eigenvalue_1, eigenvalue_2, **_):
    return float(((eigenvalue_1 + eigenvalue_2) / (eigenvalue_1 - eigenvalue_2)).abs().max())


def _information_of_pair(eigenvalue_1, eigenvalue_2, **_):
    ratio = eigenvalue_1 / eigenvalue_2
    return 1.0 + float(torch.maximum(ratio, 1 / ratio).max())


_GAUSSIANS = {
    "symmetric_kl": Law(
        inputs=TWO, invariances=_CONGRUENT, scale=_pair_scale, condition=_pair_condition
    ),
    "gaussian_kl": Law(
        inputs=TWO,
        invariances=(("rotate_both", "covariance_1", "covariance_2"),),
        scale=_pair_scale,
        condition=_pair_condition,
    ),
    "fisher_rao_length": Law(
        inputs=TWO, invariances=_CONGRUENT, scale=_pair_scale, condition=_pair_condition
    ),
    "gaussian_information": Law(
        inputs={"covariance": "covariance", "direction": "symmetric"},
        invariances=(("rotate_both", "covariance", "direction"), ("negate", "direction")),
        scale=_information_scale,
    ),
    "rotation_information": Law(
        inputs=_EIGENVALUES,
        invariances=(("swap", "eigenvalue_1", "eigenvalue_2"),),
        scale=_information_of_pair,
    ),
    "rotation_angle_deviation": Law(
        inputs=_EIGENVALUES,
        invariances=(("swap", "eigenvalue_1", "eigenvalue_2"),),
        scale=_information_of_pair,
        condition=_relative_gap,
    ),
    "rotation_length": Law(
        inputs={"angle": "curve", **_EIGENVALUES},
        invariances=(("swap", "eigenvalue_1", "eigenvalue_2"), ("negate", "angle")),
        scale=lambda angle, **pair: float(angle.abs().max()) * _information_of_pair(**pair),
    ),
}


def _smallest_gap(eigenvalues, **_):
    """Squared inverse of the smallest relative gap: the size and the conditioning of the loss."""
    if len(eigenvalues) < 2:
        return 1.0
    gap = eigenvalues.sort().values.diff().min()
    return float((eigenvalues.max() / gap).square()) if gap > 0 else inf


_EIGENVECTORS = {
    "eigenvector_overlap": Law(
        inputs=TWO,
        invariances=(
            ("rotate_both", "covariance_1", "covariance_2"),
            ("scale", "covariance_1"),
            ("scale", "covariance_2"),
            ("swap", "covariance_1", "covariance_2"),
        ),
    ),
    "eigenvector_overlap.best": Law(
        inputs=TWO,
        invariances=(("rotate_both", "covariance_1", "covariance_2"), ("scale", "covariance_1")),
    ),
    "subspace_overlap": Law(
        inputs=TWO,
        invariances=(
            ("rotate_both", "covariance_1", "covariance_2"),
            ("swap", "covariance_1", "covariance_2"),
        ),
    ),
    "predicted_overlap_loss": Law(
        inputs={"eigenvalues": "eigenvalues"},
        invariances=(("scale", "eigenvalues"),),
        condition=_smallest_gap,
    ),
    "match_eigenvectors": Law(inputs=PAIR, invariances=(BOTH_ROTATED, *SCALINGS)),
}
_ACTIVATIONS = {
    "activation_fractions": Law(
        inputs={"activations": "features"},
        invariances=(("scale", "activations"), ("permute_rows", "activations")),
    ),
    "activation_fractions.neurons": Law(
        inputs={"activations": "features"},
        invariances=(("scale", "activations"), ("permute_rows", "activations")),
    ),
    "activation_fractions.examples": Law(
        inputs={"activations": "features"}, invariances=(("scale", "activations"),)
    ),
    "activation_fractions.dead": Law(
        inputs={"activations": "features"},
        invariances=(("scale", "activations"), ("permute_rows", "activations")),
    ),
}
LAWS = {**_MISALIGNMENT, **_TRANSFER, **_GAUSSIANS, **_EIGENVECTORS, **_ACTIVATIONS}

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
