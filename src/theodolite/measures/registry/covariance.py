"""Rows of the family covariance."""

from functools import partial
from math import inf
from typing import Any

import torch
from torch import Tensor

from theodolite.measures import covariance
from theodolite.measures.registry.measure import Invariance, Measure

_row = partial(Measure, family="covariance")

__all__ = ["ROWS"]

PAIR = {"data_covariance": "data_covariance", "weight_covariance": "covariance"}
TWO = {"covariance_1": "covariance", "covariance_2": "covariance"}
WEIGHTS_ONLY = {"data_covariance": False, "weight_covariance": True}
BOTH_ROTATED = Invariance("rotate_both", ("data_covariance", "weight_covariance"))
SCALINGS = (
    Invariance("scale", ("data_covariance",)),
    Invariance("scale", ("weight_covariance",)),
)


def condition_number(matrix: Tensor) -> float:
    """Largest over smallest singular value."""
    return float(torch.linalg.cond(matrix.double()))


def dimension(weight_covariance: Tensor, **_: Any) -> float:
    """Natural scale of misalignments, which are sums over directions."""
    return float(weight_covariance.shape[-1])


def weight_condition(weight_covariance: Tensor, **_: Any) -> float:
    """Condition number of what gets inverted."""
    return condition_number(weight_covariance)


_PAIR_INVARIANCES = (BOTH_ROTATED, *SCALINGS, Invariance("negate", ("data_covariance",)))
_OF_WEIGHTS = (
    Invariance("rotate_both", ("weight_covariance",)),
    Invariance("scale", ("weight_covariance",)),
    Invariance("invert", ("weight_covariance",)),
)


_MISALIGNMENT: tuple[Measure, ...] = (
    _row(
        name="misalignment",
        function=covariance.misalignment,
        inputs=PAIR,
        meaning="Distance of the weights' covariance from the nearest one that has the data's "
        "principal directions; compare it with its random-basis baseline and its floor.",
        reference="[maennel2020], Definition 2 and Proposition 2",
        range=(0.0, inf),
        larger_is_more_aligned=False,
        invariances=(*_PAIR_INVARIANCES, Invariance("invert", ("weight_covariance",))),
        differentiable=WEIGHTS_ONLY,
        scale=dimension,
        condition=weight_condition,
    ),
    _row(
        name="misalignment.subspace",
        function=covariance.misalignment,
        inputs=PAIR,
        options={"subspace": 2},
        meaning="Misalignment in the leading directions of the data alone, for layers with fewer "
        "filters than dimensions.",
        reference="[maennel2020], Definition 2, compressed",
        range=(0.0, inf),
        larger_is_more_aligned=False,
        invariances=(BOTH_ROTATED, *SCALINGS),
        differentiable=WEIGHTS_ONLY,
        scale=dimension,
        condition=weight_condition,
    ),
    _row(
        name="misalignment.ridge",
        function=covariance.misalignment,
        inputs=PAIR,
        options={"ridge": 0.1},
        meaning="Misalignment of the weights' covariance with a share of its mean variance added "
        "to the diagonal.",
        reference="[maennel2020], Definition 2, regularised",
        range=(0.0, inf),
        larger_is_more_aligned=False,
        invariances=_PAIR_INVARIANCES,
        differentiable=WEIGHTS_ONLY,
        scale=dimension,
        condition=weight_condition,
    ),
    _row(
        name="misalignment_terms",
        function=covariance.misalignment_terms,
        inputs=PAIR,
        values=lambda result: result.terms,
        meaning="Which principal direction of the data is misaligned, and by how much.",
        reference="[maennel2020], Proposition 2 and Appendix A.6",
        range=(0.0, inf),
        larger_is_more_aligned=False,
        invariances=(BOTH_ROTATED, *SCALINGS, Invariance("invert", ("weight_covariance",))),
        differentiable=WEIGHTS_ONLY,
        scale=dimension,
        condition=weight_condition,
    ),
    _row(
        name="relative_misalignment",
        function=covariance.relative_misalignment,
        inputs={**PAIR, "bases": "bases"},
        meaning="Misalignment over its mean for random bases: well below 1 where the weights know "
        "the data's directions, about 1 where they do not.",
        reference="[maennel2020], Figure 2",
        range=(0.0, inf),
        larger_is_more_aligned=False,
        invariances=(*SCALINGS, Invariance("invert", ("weight_covariance",))),
        differentiable={**WEIGHTS_ONLY, "bases": False},
        scale=dimension,
        condition=weight_condition,
    ),
    _row(
        name="one_sided_misalignment.weights",
        function=covariance.one_sided_misalignment,
        inputs=PAIR,
        options={"first": "weights"},
        meaning="Smallest divergence of the weights' Gaussian from one aligned with the data.",
        reference="[maennel2020], Definition 2 with one divergence",
        range=(0.0, inf),
        larger_is_more_aligned=False,
        invariances=_PAIR_INVARIANCES,
        differentiable=WEIGHTS_ONLY,
        scale=dimension,
        condition=weight_condition,
    ),
    _row(
        name="one_sided_misalignment.aligned",
        function=covariance.one_sided_misalignment,
        inputs=PAIR,
        options={"first": "aligned"},
        meaning="Smallest divergence from the weights' Gaussian of one aligned with the data.",
        reference="[maennel2020], Definition 2 with one divergence",
        range=(0.0, inf),
        larger_is_more_aligned=False,
        invariances=_PAIR_INVARIANCES,
        differentiable=WEIGHTS_ONLY,
        scale=dimension,
        condition=weight_condition,
    ),
    _row(
        name="basis_misalignment",
        function=covariance.basis_misalignment,
        inputs={"basis": "basis", "weight_covariance": "covariance"},
        meaning="Misalignment of the weights' covariance with any orthonormal basis.",
        reference="[maennel2020], Appendix A.6",
        range=(0.0, inf),
        larger_is_more_aligned=False,
        invariances=(
            Invariance("scale", ("weight_covariance",)),
            Invariance("invert", ("weight_covariance",)),
            Invariance("negate", ("basis",)),
        ),
        differentiable={"basis": False, "weight_covariance": True},
        scale=dimension,
        condition=weight_condition,
    ),
    _row(
        name="basis_misalignment_terms",
        function=covariance.basis_misalignment_terms,
        inputs={"basis": "basis", "weight_covariance": "covariance"},
        meaning="Which basis vector the weights' covariance is misaligned with.",
        reference="[maennel2020], Appendix A.6",
        range=(0.0, inf),
        larger_is_more_aligned=False,
        invariances=(
            Invariance("scale", ("weight_covariance",)),
            Invariance("invert", ("weight_covariance",)),
        ),
        differentiable={"basis": False, "weight_covariance": True},
        scale=dimension,
        condition=weight_condition,
    ),
    _row(
        name="kantorovich_bound",
        function=covariance.kantorovich_bound,
        inputs={"weight_covariance": "covariance"},
        meaning="The largest misalignment that any basis could have with these weights.",
        reference="[maennel2020], Proposition 2 with Kantorovich's inequality",
        range=(0.0, inf),
        invariances=_OF_WEIGHTS,
        differentiable={"weight_covariance": True},
        scale=dimension,
        condition=weight_condition,
    ),
    _row(
        name="haar_bound",
        function=covariance.haar_bound,
        inputs={"weight_covariance": "covariance"},
        meaning="Bound of the mean misalignment of these weights with random bases.",
        reference="[maennel2020], Figure 2 with Jensen's inequality",
        range=(0.0, inf),
        invariances=_OF_WEIGHTS,
        differentiable={"weight_covariance": True},
        scale=dimension,
        condition=weight_condition,
    ),
    _row(
        name="alignment_defect",
        function=covariance.alignment_defect,
        inputs={"matrix": "covariance", "reference": "data_covariance"},
        meaning="How far a matrix is from being constant on each eigenspace of another.",
        reference="[maennel2020], Definition 1",
        range=(0.0, 1.0),
        larger_is_more_aligned=False,
        invariances=(
            Invariance("rotate_both", ("matrix", "reference")),
            Invariance("scale", ("matrix",)),
            Invariance("scale", ("reference",)),
            Invariance("negate", ("matrix",)),
            Invariance("negate", ("reference",)),
        ),
        differentiable={"matrix": True, "reference": False},
    ),
)


def _weights_scale(weights: Tensor, **_: Any) -> float:
    return float(weights.norm())


def _root_scale(weight_covariance: Tensor, **_: Any) -> float:
    return float(weight_covariance.abs().max().sqrt())


_TRANSFER: tuple[Measure, ...] = (
    _row(
        name="transfer_function",
        function=covariance.transfer_function,
        inputs={"data_covariance": "data_covariance", "weights": "weights"},
        values=lambda result: result.tau,
        meaning="Standard deviation of the weights along each principal direction of the data.",
        reference="[maennel2020], Equations (2), (3) and Definition 3",
        range=(0.0, inf),
        invariances=(
            Invariance("rotate_both", ("data_covariance", "weights")),
            Invariance("scale", ("data_covariance",)),
            Invariance("shift_rows", ("weights",)),
            Invariance("permute_rows", ("weights",)),
            Invariance("negate", ("weights",)),
        ),
        differentiable={"data_covariance": False, "weights": True},
        scale=_weights_scale,
    ),
    _row(
        name="transfer_from_covariance",
        function=covariance.transfer_from_covariance,
        inputs=PAIR,
        values=lambda result: result.tau,
        meaning="The transfer function of weights that are known by their covariance alone.",
        reference="[maennel2020], Equation (2)",
        range=(0.0, inf),
        invariances=(BOTH_ROTATED, Invariance("scale", ("data_covariance",))),
        differentiable=WEIGHTS_ONLY,
        scale=_root_scale,
        condition=weight_condition,
    ),
    _row(
        name="curve_deviation",
        function=covariance.curve_deviation,
        inputs={"curve_1": "curve", "curve_2": "curve"},
        meaning="Difference in shape between two transfer functions.",
        reference="[maennel2020], Figures 21 and 22",
        range=(0.0, 2.0),
        invariances=(
            Invariance("swap", ("curve_1", "curve_2")),
            Invariance("scale", ("curve_1",)),
            Invariance("scale", ("curve_2",)),
        ),
        differentiable={"curve_1": True, "curve_2": True},
    ),
    _row(
        name="unimodality_defect",
        function=covariance.unimodality_defect,
        inputs={"curve": "curve"},
        meaning="Share of a transfer function that is not explained by a rise and then a fall.",
        reference="[maennel2020], Section 2.3",
        range=(0.0, 1.0),
        invariances=(Invariance("scale", ("curve",)), Invariance("shift_entries", ("curve",))),
        differentiable={"curve": True},
    ),
)


_EIGENVALUES = {"eigenvalue_1": "eigenvalues", "eigenvalue_2": "eigenvalues"}
_CONGRUENT = (
    Invariance("rotate_both", ("covariance_1", "covariance_2")),
    Invariance("swap", ("covariance_1", "covariance_2")),
    Invariance("invert", ("covariance_1", "covariance_2")),
)


def _pair_condition(covariance_1: Tensor, covariance_2: Tensor) -> float:
    return condition_number(covariance_1) * condition_number(covariance_2)


def _pair_scale(covariance_1: Tensor, covariance_2: Tensor) -> float:
    forward = torch.linalg.solve(covariance_1.double(), covariance_2.double()).trace()
    backward = torch.linalg.solve(covariance_2.double(), covariance_1.double()).trace()
    return float((forward + backward) / 2)


def _information_scale(covariance: Tensor, direction: Tensor) -> float:
    return float((direction.norm() * torch.linalg.matrix_norm(covariance.inverse(), 2)).square())


def _relative_gap(eigenvalue_1: Tensor, eigenvalue_2: Tensor, **_: Any) -> float:
    return float(((eigenvalue_1 + eigenvalue_2) / (eigenvalue_1 - eigenvalue_2)).abs().max())


def _information_of_pair(eigenvalue_1: Tensor, eigenvalue_2: Tensor, **_: Any) -> float:
    ratio = eigenvalue_1 / eigenvalue_2
    return 1.0 + float(torch.maximum(ratio, 1 / ratio).max())


_GAUSSIANS: tuple[Measure, ...] = (
    _row(
        name="symmetric_kl",
        function=covariance.symmetric_kl,
        inputs=TWO,
        meaning="Sum of both divergences between the Gaussians of two covariances.",
        reference="[maennel2020], Definition 2",
        range=(0.0, inf),
        invariances=_CONGRUENT,
        differentiable={"covariance_1": True, "covariance_2": True},
        scale=_pair_scale,
        condition=_pair_condition,
    ),
    _row(
        name="gaussian_kl",
        function=covariance.gaussian_kl,
        inputs=TWO,
        meaning="Divergence of the Gaussian of one covariance from that of another.",
        reference="[maennel2020], Appendix D.4",
        range=(0.0, inf),
        invariances=(Invariance("rotate_both", ("covariance_1", "covariance_2")),),
        differentiable={"covariance_1": True, "covariance_2": True},
        scale=_pair_scale,
        condition=_pair_condition,
    ),
    _row(
        name="fisher_rao_length",
        function=covariance.fisher_rao_length,
        inputs=TWO,
        meaning="Length of the shortest path between the Gaussians of two covariances.",
        reference="[maennel2020], Appendix D.3",
        range=(0.0, inf),
        invariances=_CONGRUENT,
        differentiable={"covariance_1": True, "covariance_2": True},
        scale=_pair_scale,
        condition=_pair_condition,
    ),
    _row(
        name="fisher_information",
        function=covariance.fisher_information,
        inputs={"covariance": "covariance", "direction": "symmetric"},
        meaning="How much one sample tells about a change of its covariance.",
        reference="[maennel2020], Appendix D.3",
        range=(0.0, inf),
        invariances=(
            Invariance("rotate_both", ("covariance", "direction")),
            Invariance("negate", ("direction",)),
        ),
        differentiable={"covariance": True, "direction": True},
        scale=_information_scale,
    ),
    _row(
        name="rotation_information",
        function=covariance.rotation_information,
        inputs=_EIGENVALUES,
        meaning="How much one sample tells about the angle between two eigenvectors.",
        reference="[maennel2020], Appendix D.3",
        range=(0.0, inf),
        invariances=(Invariance("swap", ("eigenvalue_1", "eigenvalue_2")),),
        differentiable={"eigenvalue_1": True, "eigenvalue_2": True},
        scale=_information_of_pair,
    ),
    _row(
        name="rotation_angle_deviation",
        function=covariance.rotation_angle_deviation,
        inputs=_EIGENVALUES,
        options={"count": 100},
        meaning="Standard deviation of the angle of an eigenvector measured from samples.",
        reference="[maennel2020], Appendix D.3 and Figure 19",
        range=(0.0, inf),
        invariances=(Invariance("swap", ("eigenvalue_1", "eigenvalue_2")),),
        differentiable={"eigenvalue_1": True, "eigenvalue_2": True},
        scale=_information_of_pair,
        condition=_relative_gap,
    ),
    _row(
        name="rotation_length",
        function=covariance.rotation_length,
        inputs={"angle": "curve", **_EIGENVALUES},
        meaning="How far a rotation moves a Gaussian, in units in which samples can tell.",
        reference="[maennel2020], Appendix D.3",
        range=(0.0, inf),
        invariances=(
            Invariance("swap", ("eigenvalue_1", "eigenvalue_2")),
            Invariance("negate", ("angle",)),
        ),
        differentiable={"angle": True, "eigenvalue_1": True, "eigenvalue_2": True},
        scale=lambda angle, **pair: float(angle.abs().max()) * _information_of_pair(**pair),
    ),
)


def _smallest_gap(eigenvalues: Tensor, **_: Any) -> float:
    """Squared inverse of the smallest relative gap: the size and the conditioning of the loss."""
    if len(eigenvalues) < 2:
        return 1.0
    gap = eigenvalues.sort().values.diff().min()
    return float((eigenvalues.max() / gap).square()) if gap > 0 else inf


_EIGENVECTORS: tuple[Measure, ...] = (
    _row(
        name="eigenvector_overlap",
        function=covariance.eigenvector_overlap,
        inputs=TWO,
        values=lambda result: result.ranked,
        meaning="Agreement of eigenvectors of equal rank between two covariances.",
        reference="[maennel2020], Appendix D.1",
        range=(0.0, 1.0),
        larger_is_more_aligned=True,
        invariances=(
            Invariance("rotate_both", ("covariance_1", "covariance_2")),
            Invariance("scale", ("covariance_1",)),
            Invariance("scale", ("covariance_2",)),
            Invariance("swap", ("covariance_1", "covariance_2")),
        ),
        differentiable={"covariance_1": False, "covariance_2": False},
    ),
    _row(
        name="eigenvector_overlap.best",
        function=covariance.eigenvector_overlap,
        inputs=TWO,
        values=lambda result: result.best,
        meaning="Agreement of each eigenvector with the best match in another covariance, which "
        "does not suffer where close eigenvalues swap ranks.",
        reference="[maennel2020], Appendix D.1",
        range=(0.0, 1.0),
        larger_is_more_aligned=True,
        invariances=(
            Invariance("rotate_both", ("covariance_1", "covariance_2")),
            Invariance("scale", ("covariance_1",)),
        ),
        differentiable={"covariance_1": False, "covariance_2": False},
    ),
    _row(
        name="subspace_overlap",
        function=covariance.subspace_overlap,
        inputs=TWO,
        options={"indices": (0, 1)},
        meaning="Agreement of the subspaces that eigenvectors of some ranks span.",
        reference="[maennel2020], Appendix D.1",
        range=(0.0, 1.0),
        larger_is_more_aligned=True,
        invariances=(
            Invariance("rotate_both", ("covariance_1", "covariance_2")),
            Invariance("swap", ("covariance_1", "covariance_2")),
        ),
        differentiable={"covariance_1": False, "covariance_2": False},
    ),
    _row(
        name="predicted_overlap_loss",
        function=covariance.predicted_overlap_loss,
        inputs={"eigenvalues": "eigenvalues"},
        options={"count_1": 100, "count_2": 200},
        meaning="Loss of agreement between eigenvectors that sampling alone explains.",
        reference="[maennel2020], Appendix D.1 and D.3",
        range=(0.0, inf),
        invariances=(Invariance("scale", ("eigenvalues",)),),
        differentiable={"eigenvalues": True},
        condition=_smallest_gap,
    ),
    _row(
        name="match_eigenvectors",
        function=covariance.match_eigenvectors,
        inputs=PAIR,
        values=lambda result: result.quality,
        meaning="How much of each leading eigenvector of the weights a few eigenvectors of the "
        "data explain.",
        reference="[maennel2020], Figure 3",
        range=(0.0, 1.0),
        larger_is_more_aligned=True,
        invariances=(BOTH_ROTATED, *SCALINGS),
        differentiable={"data_covariance": False, "weight_covariance": False},
    ),
)


_ACTIVATIONS: tuple[Measure, ...] = (
    _row(
        name="activation_fractions",
        function=covariance.activation_fractions,
        inputs={"activations": "features"},
        values=lambda result: result.mean,
        meaning="Share of pairs of neuron and example in which the neuron is active.",
        reference="[maennel2020], Section 3 and Appendix F",
        range=(0.0, 1.0),
        invariances=(
            Invariance("scale", ("activations",)),
            Invariance("permute_rows", ("activations",)),
        ),
        differentiable={"activations": False},
    ),
    _row(
        name="activation_fractions.neurons",
        function=covariance.activation_fractions,
        inputs={"activations": "features"},
        values=lambda result: result.neurons,
        meaning="Share of examples that activate each neuron.",
        reference="[maennel2020], Section 3 and Appendix F",
        range=(0.0, 1.0),
        invariances=(
            Invariance("scale", ("activations",)),
            Invariance("permute_rows", ("activations",)),
        ),
        differentiable={"activations": False},
    ),
    _row(
        name="activation_fractions.examples",
        function=covariance.activation_fractions,
        inputs={"activations": "features"},
        values=lambda result: result.examples,
        meaning="Share of neurons that each example activates.",
        reference="[maennel2020], Section 3 and Appendix F",
        range=(0.0, 1.0),
        invariances=(Invariance("scale", ("activations",)),),
        differentiable={"activations": False},
    ),
    _row(
        name="activation_fractions.dead",
        function=covariance.activation_fractions,
        inputs={"activations": "features"},
        values=lambda result: result.dead,
        meaning="Share of neurons that no example activates.",
        reference="[maennel2020], Section 3 and Appendix F",
        range=(0.0, 1.0),
        invariances=(
            Invariance("scale", ("activations",)),
            Invariance("permute_rows", ("activations",)),
        ),
        differentiable={"activations": False},
    ),
)


ROWS: tuple[Measure, ...] = (
    *_MISALIGNMENT,
    *_TRANSFER,
    *_GAUSSIANS,
    *_EIGENVECTORS,
    *_ACTIVATIONS,
)
