"""Laws of the formulas of covariance alignment."""

from math import inf

import torch

from tests.conformance.laws.covariance import (
    BOTH_ROTATED,
    PAIR,
    PAIR_INVARIANCES,
    SCALINGS,
    TWO,
    condition_number,
    dimension,
    weight_condition,
)
from tests.conformance.laws.law import Law

_OF_WEIGHTS = (
    ("rotate_both", "weight_covariance"),
    ("scale", "weight_covariance"),
    ("invert", "weight_covariance"),
)
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


def _smallest_gap(eigenvalues, **_):
    """Squared inverse of the smallest relative gap: the size and the conditioning of the loss."""
    if len(eigenvalues) < 2:
        return 1.0
    gap = eigenvalues.sort().values.diff().min()
    return float((eigenvalues.max() / gap).square()) if gap > 0 else inf


LAWS = {
    "one_sided_misalignment.weights": Law(
        inputs=PAIR, invariances=PAIR_INVARIANCES, scale=dimension, condition=weight_condition
    ),
    "one_sided_misalignment.aligned": Law(
        inputs=PAIR, invariances=PAIR_INVARIANCES, scale=dimension, condition=weight_condition
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
    "curve_deviation": Law(
        inputs={"curve_1": "curve", "curve_2": "curve"},
        invariances=(("swap", "curve_1", "curve_2"), ("scale", "curve_1"), ("scale", "curve_2")),
    ),
    "unimodality_defect": Law(
        inputs={"curve": "curve"}, invariances=(("scale", "curve"), ("shift_entries", "curve"))
    ),
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
    "predicted_overlap_loss": Law(
        inputs={"eigenvalues": "eigenvalues"},
        invariances=(("scale", "eigenvalues"),),
        condition=_smallest_gap,
    ),
    "match_eigenvectors": Law(inputs=PAIR, invariances=(BOTH_ROTATED, *SCALINGS)),
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
