"""Rows about eigenvectors: overlaps and matches."""

from math import inf
from typing import Any

from torch import Tensor

from theodolite.measures import covariance
from theodolite.measures.registry.covariance._shared import BOTH_ROTATED, PAIR, SCALINGS, TWO
from theodolite.measures.registry.measure import Invariance, Measure

__all__ = ["ROWS"]


def _smallest_gap(eigenvalues: Tensor, **_: Any) -> float:
    """Squared inverse of the smallest relative gap: the size and the conditioning of the loss."""
    if len(eigenvalues) < 2:
        return 1.0
    gap = eigenvalues.sort().values.diff().min()
    return float((eigenvalues.max() / gap).square()) if gap > 0 else inf


ROWS: tuple[Measure, ...] = (
    Measure(
        name="eigenvector_overlap",
        function=covariance.eigenvector_overlap,
        family="covariance",
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
    Measure(
        name="eigenvector_overlap.best",
        function=covariance.eigenvector_overlap,
        family="covariance",
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
    Measure(
        name="subspace_overlap",
        function=covariance.subspace_overlap,
        family="covariance",
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
    Measure(
        name="predicted_overlap_loss",
        function=covariance.predicted_overlap_loss,
        family="covariance",
        inputs={"eigenvalues": "eigenvalues"},
        options={"count_1": 100, "count_2": 200},
        meaning="Loss of agreement between eigenvectors that sampling alone explains.",
        reference="[maennel2020], Appendix D.1 and D.3",
        range=(0.0, inf),
        invariances=(Invariance("scale", ("eigenvalues",)),),
        differentiable={"eigenvalues": True},
        condition=_smallest_gap,
    ),
    Measure(
        name="match_eigenvectors",
        function=covariance.match_eigenvectors,
        family="covariance",
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
