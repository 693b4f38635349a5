"""Alignment as a function of the threshold, on a grid."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from theodolite.checks import require_axes, require_nonempty, require_nonnegative
from theodolite.linalg import LabelProjections, array_function, double, ratio_or_nan
from theodolite.measures.representation._evaluation import Grid, Scale, mass_above, measure_grid
from theodolite.measures.representation._projections import RouteChoice
from theodolite.measures.representation._targets import Rows, read_features

__all__ = ["AlignmentCurve", "alignment_curve", "curve_from_projections", "grid_of"]

_GRID_POINTS = 200


@dataclass(frozen=True)
class AlignmentCurve:
    """Values on a grid of thresholds, in one of three scales.

    ``"absolute"``: label mass over singular values. ``"normalized"``: share of the label mass over
    singular values divided by the root of n, comparable across sample sizes. ``"relative"``: share
    of the label mass over singular values in units of the largest; predicts speed where the step
    size is tuned to each representation, as the absolute curve does at a common step size.
    """

    thresholds: Float[Tensor, " t"]
    values: Float[Tensor, " t"]
    scale: str
    route: str  # by which the projections were found: svd, gram, dual or qr


def grid_of(
    thresholds: Tensor | None, scale: Scale, count: int, like: Tensor, rtol: float = 0.0
) -> Grid:
    """The thresholds asked for, or 200 equispaced points up to the largest possible value."""
    if thresholds is None:
        top = count**0.5 if scale == "absolute" else 1.0
        grid = torch.linspace(0, top, _GRID_POINTS, dtype=torch.float64)
        return Grid(grid.to(double(like[:0]).device), scale, rtol)
    require_axes(1, thresholds=thresholds)
    require_nonempty(thresholds=thresholds)
    require_nonnegative(thresholds=thresholds)
    return Grid(double(thresholds), scale, rtol)


@array_function
def alignment_curve(
    features: Float[Tensor, "n d"],
    targets: Shaped[Tensor, "n *c"],
    thresholds: Float[Tensor, " t"] | None = None,
    *,
    rows: Rows = "unit",
    scale: Scale = "normalized",
    rtol: float = 0.0,
    route: RouteChoice = "auto",
) -> AlignmentCurve:
    r"""Alignment on a grid of thresholds.

    .. math:: A(\tau) = \sum_{i:\,\sigma_i \ge \tau} (u_i^\top y)^2

    A non-increasing step function that starts at :math:`\|y\|^2`. With its defaults this is the
    curve of a survey: rows of unit length, shares of the label mass over thresholds in units of
    :math:`\sqrt n`. Costs one Gram matrix and one
    eigen-decomposition of the smaller side, O(n d²) time and O(d²) memory beyond the input; the
    accurate and slower route is taken when a threshold asks for it, and ``route`` of the result
    says which it was.

    Range: [0, 1]; [0, :math:`\|y\|^2`] in the scale ``"absolute"``.
    Invariant to: joint permutation of the examples; rotation of the features; appended zero
        columns; the sign of the targets; scaling of any row (``rows="unit"``); joint rotation of
        the examples (``rows="none"``).
    Undefined (``nan``): targets of zeros where values are shares; features of zeros in the scale
        ``"relative"``; thresholds that the route asked for does not resolve.

    Args:
        features: :math:`\Phi`, one row per example.
        targets: :math:`y`: a vector, columns, or integer class labels (one-hot columns).
        thresholds: in units of the scale. By default 200 points on [0, 1], or on
            :math:`[0, \sqrt n]` in the scale ``"absolute"``: every singular value of rows of unit
            length lies there.
        rows: length of the rows, as in :func:`alignment_area`.
        scale: ``"absolute"``, ``"normalized"`` or ``"relative"``, see :class:`AlignmentCurve`.
        rtol: count :math:`\sigma_i \ge \tau (1 - \mathrm{rtol})`.
        route: see :func:`label_projections`.

    Raises:
        ShapeError: If features are not a non-empty matrix or targets differ in length.
        DomainError: If an entry is not finite, or a threshold is negative.

    Example:
        >>> features = torch.diag(torch.tensor([3.0, 2.0, 0.0]))
        >>> grid = torch.tensor([0.0, 1.0, 2.5, 4.0])
        >>> y = torch.tensor([1.0, 2.0, 3.0])
        >>> alignment_curve(features, y, grid, rows="none", scale="absolute").values.tolist()
        [14.0, 5.0, 1.0, 0.0]

    References:
        [imani2022], Eq. (2) and Figure 3.
    """
    Phi = read_features(features, targets, rows)
    grid = grid_of(thresholds, scale, len(features), features, rtol)
    values, taken = measure_grid(Phi, targets, grid, route)
    return AlignmentCurve(grid.thresholds, values, scale, taken)


@array_function
def curve_from_projections(
    projections: LabelProjections,
    thresholds: Float[Tensor, " t"] | None = None,
    *,
    scale: Scale = "normalized",
    rtol: float = 0.0,
) -> AlignmentCurve:
    """The curve of projections that were found elsewhere, e.g. from streamed sums.

    Args:
        projections: from :func:`label_projections` or from the mergeable sums of ``linalg``.
        thresholds: in units of the scale; default grid as in :func:`alignment_curve`.
        scale: ``"absolute"``, ``"normalized"`` or ``"relative"``.
        rtol: slack of the comparison.

    Raises:
        DomainError: If a threshold is negative or not finite.

    Example:
        >>> from theodolite.measures.representation import label_projections
        >>> p = label_projections(torch.eye(2), torch.tensor([1.0, 2.0]))
        >>> curve_from_projections(p, torch.tensor([0.0, 0.7, 2.0])).values.tolist()
        [1.0, 1.0, 0.0]

    References:
        [imani2022], Eq. (2).
    """
    grid = grid_of(thresholds, scale, projections.count, projections.singular_values, rtol)
    values = mass_above(projections, grid)
    if scale != "absolute":
        values = ratio_or_nan(values, double(projections.energy).sum())
    return AlignmentCurve(grid.thresholds, values, scale, projections.route)
