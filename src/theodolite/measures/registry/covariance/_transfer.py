"""Rows about transfer functions."""

from math import inf
from typing import Any

from torch import Tensor

from theodolite.measures import covariance
from theodolite.measures.registry.covariance._shared import (
    BOTH_ROTATED,
    PAIR,
    WEIGHTS_ONLY,
    weight_condition,
)
from theodolite.measures.registry.measure import Invariance, Measure

__all__ = ["ROWS"]


def _weights_scale(weights: Tensor, **_: Any) -> float:
    return float(weights.norm())


def _root_scale(weight_covariance: Tensor, **_: Any) -> float:
    return float(weight_covariance.abs().max().sqrt())


ROWS: tuple[Measure, ...] = (
    Measure(
        name="transfer_function",
        function=covariance.transfer_function,
        family="covariance",
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
    Measure(
        name="transfer_from_covariance",
        function=covariance.transfer_from_covariance,
        family="covariance",
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
    Measure(
        name="curve_deviation",
        function=covariance.curve_deviation,
        family="covariance",
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
    Measure(
        name="unimodality_defect",
        function=covariance.unimodality_defect,
        family="covariance",
        inputs={"curve": "curve"},
        meaning="Share of a transfer function that is not explained by a rise and then a fall.",
        reference="[maennel2020], Section 2.3",
        range=(0.0, 1.0),
        invariances=(Invariance("scale", ("curve",)), Invariance("shift_entries", ("curve",))),
        differentiable={"curve": True},
    ),
)
