"""Averages over the tasks "one class against another" of a labelled set."""

from collections.abc import Iterator
from itertools import combinations

import torch
from jaxtyping import Float, Integer
from torch import Tensor

from theodolite.checks import require_axes, require_labels, require_nonempty, require_same_length
from theodolite.linalg import array_function
from theodolite.measures.representation._comparison import CurveAverage, average_of
from theodolite.measures.representation._curve import grid_of
from theodolite.measures.representation._evaluation import Grid, Scale, measure_grid

__all__ = ["one_vs_one_curve", "one_vs_one_difference"]


@array_function
def one_vs_one_curve(
    features: Float[Tensor, "n d"],
    labels: Integer[Tensor, " n"],
    thresholds: Float[Tensor, " t"] | None = None,
    *,
    scale: Scale = "normalized",
) -> CurveAverage:
    r"""Alignment curves of all pairs of classes, labels +1 and -1, and their mean.

    .. math:: \bar A(\tau) = \binom k2^{-1} \sum_{a < b} A(\Phi_{ab}, y_{ab}, \tau),
              \qquad y_{ab} = \pm 1 \text{ on the rows of } a \text{ and } b

    Tasks of different sizes are comparable in the normalised scale, the default. A class with few
    examples is legal, but its curve says little: below about ten rows almost all of the label mass
    lies above the smallest singular value.

    Range: [0, 1] in the scales ``"normalized"`` and ``"relative"``.
    Invariant to: joint permutation of the examples; rotation of the features; appended zero
        columns; names of the classes.
    Undefined (``nan``): fewer than two classes.

    Args:
        features: :math:`\Phi`, prepared with :func:`prepare_features`.
        labels: class of each example, from 0; classes without examples are left out.
        thresholds: in units of the scale; default grid as in :func:`alignment_curve`.
        scale: ``"normalized"``, ``"absolute"`` (the paper's) or ``"relative"``.

    Raises:
        ShapeError: If lengths differ.
        DomainError: If an entry is not finite, a label or a threshold is negative.

    Example:
        >>> average = one_vs_one_curve(torch.eye(3), torch.tensor([0, 1, 2]), torch.tensor([0.5]))
        >>> average.mean.tolist(), len(average.curves)
        ([1.0], 3)

    References:
        [imani2022], Figures 14 and 21.
    """
    require_axes(2, features=features)
    require_nonempty(features=features)
    require_same_length(features=features, labels=labels)
    require_labels(labels)
    grid = grid_of(thresholds, scale, len(features), features)
    curves = [measure_grid(features[rows], signs, grid)[0] for rows, signs in _pairs(labels)]
    return average_of(grid.thresholds, _stacked(curves, grid), scale)


@array_function
def one_vs_one_difference(
    features: Float[Tensor, "n d"],
    other_features: Float[Tensor, "n e"],
    labels: Integer[Tensor, " n"],
    thresholds: Float[Tensor, " t"] | None = None,
    *,
    scale: Scale = "normalized",
) -> CurveAverage:
    r"""Differences of two representations' alignment curves over all pairs of classes.

    .. math:: D_{ab}(\tau) = A(\Phi_{ab}, y_{ab}, \tau) - A(\Phi'_{ab}, y_{ab}, \tau)

    Both representations see the same examples. Positive: the first is the better start for the
    average task of telling two of these classes apart.

    Range: [-1, 1] in the scales ``"normalized"`` and ``"relative"``.
    Invariant to: joint permutation of the examples; rotation of either side's features; appended
        zero columns; names of the classes.
    Undefined (``nan``): fewer than two classes.

    Args:
        features: :math:`\Phi`, e.g. of a network pre-trained on the similar source.
        other_features: :math:`\Phi'` of the same examples, prepared in the same way.
        labels: class of each example, from 0; classes without examples are left out.
        thresholds: in units of the scale; default grid as in :func:`alignment_curve`.
        scale: ``"normalized"``, ``"absolute"`` (the paper's) or ``"relative"``.

    Raises:
        ShapeError: If lengths differ.
        DomainError: If an entry is not finite, a label or a threshold is negative.

    Example:
        >>> labels = torch.tensor([0, 0, 1, 1])
        >>> good = torch.tensor([[1.0], [1.0], [-1.0], [-1.0]])
        >>> one_vs_one_difference(good, torch.ones(4, 1), labels, torch.tensor([0.5])).mean.tolist()
        [1.0]

    References:
        [imani2022], Figures 14 and 16.

    Differs from paper:
        Normalised curves are averaged by default; ``scale="absolute"`` is the paper's.
    """
    require_axes(2, features=features, other_features=other_features)
    require_nonempty(features=features, other_features=other_features)
    require_same_length(features=features, other_features=other_features, labels=labels)
    require_labels(labels)
    grid = grid_of(thresholds, scale, len(features), features)
    curves = [
        measure_grid(features[rows], signs, grid)[0]
        - measure_grid(other_features[rows], signs, grid)[0]
        for rows, signs in _pairs(labels)
    ]
    return average_of(grid.thresholds, _stacked(curves, grid), scale)


def _pairs(labels: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Rows of each pair of classes that occur, and their labels +1 and -1."""
    for first, second in combinations(torch.unique(labels).tolist(), 2):
        rows = ((labels == first) | (labels == second)).nonzero().flatten()
        yield rows, torch.where(labels[rows] == first, 1.0, -1.0).double()


def _stacked(curves: list[Tensor], grid: Grid) -> Tensor:
    return torch.stack(curves) if curves else grid.thresholds.new_zeros(0, len(grid.thresholds))
