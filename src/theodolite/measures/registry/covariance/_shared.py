"""What several rows have in common: kinds of inputs, invariances, condition numbers."""

from typing import Any

import torch
from torch import Tensor

from theodolite.measures.registry.measure import Invariance

__all__ = [
    "BOTH_ROTATED",
    "PAIR",
    "SCALINGS",
    "TWO",
    "WEIGHTS_ONLY",
    "condition_number",
    "dimension",
    "weight_condition",
]

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
