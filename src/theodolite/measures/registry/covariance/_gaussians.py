"""Rows about divergences and information of Gaussians."""

from math import inf
from typing import Any

import torch
from torch import Tensor

from theodolite.measures import covariance
from theodolite.measures.registry.covariance._shared import TWO, condition_number
from theodolite.measures.registry.measure import Invariance, Measure

__all__ = ["ROWS"]

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


ROWS: tuple[Measure, ...] = (
    Measure(
        name="symmetric_kl",
        function=covariance.symmetric_kl,
        family="covariance",
        inputs=TWO,
        meaning="Sum of both divergences between the Gaussians of two covariances.",
        reference="[maennel2020], Definition 2",
        range=(0.0, inf),
        invariances=_CONGRUENT,
        differentiable={"covariance_1": True, "covariance_2": True},
        scale=_pair_scale,
        condition=_pair_condition,
    ),
    Measure(
        name="gaussian_kl",
        function=covariance.gaussian_kl,
        family="covariance",
        inputs=TWO,
        meaning="Divergence of the Gaussian of one covariance from that of another.",
        reference="[maennel2020], Appendix D.4",
        range=(0.0, inf),
        invariances=(Invariance("rotate_both", ("covariance_1", "covariance_2")),),
        differentiable={"covariance_1": True, "covariance_2": True},
        scale=_pair_scale,
        condition=_pair_condition,
    ),
    Measure(
        name="fisher_rao_length",
        function=covariance.fisher_rao_length,
        family="covariance",
        inputs=TWO,
        meaning="Length of the shortest path between the Gaussians of two covariances.",
        reference="[maennel2020], Appendix D.3",
        range=(0.0, inf),
        invariances=_CONGRUENT,
        differentiable={"covariance_1": True, "covariance_2": True},
        scale=_pair_scale,
        condition=_pair_condition,
    ),
    Measure(
        name="fisher_information",
        function=covariance.fisher_information,
        family="covariance",
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
    Measure(
        name="rotation_information",
        function=covariance.rotation_information,
        family="covariance",
        inputs=_EIGENVALUES,
        meaning="How much one sample tells about the angle between two eigenvectors.",
        reference="[maennel2020], Appendix D.3",
        range=(0.0, inf),
        invariances=(Invariance("swap", ("eigenvalue_1", "eigenvalue_2")),),
        differentiable={"eigenvalue_1": True, "eigenvalue_2": True},
        scale=_information_of_pair,
    ),
    Measure(
        name="rotation_angle_deviation",
        function=covariance.rotation_angle_deviation,
        family="covariance",
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
    Measure(
        name="rotation_length",
        function=covariance.rotation_length,
        family="covariance",
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
