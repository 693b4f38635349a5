"""Differences, averages and order of curves on a common grid."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from theodolite.checks import require_between, require_count
from theodolite.errors import DomainError
from theodolite.linalg import array_function, double, eps_of
from theodolite.measures.representation._curve import AlignmentCurve

__all__ = ["CurveAverage", "curve_average", "curve_difference", "dominance_fraction"]


@dataclass(frozen=True)
class CurveAverage:
    """Mean of several curves, its standard error (nan for a single one), and the curves."""

    thresholds: Float[Tensor, " t"]
    mean: Float[Tensor, " t"]
    standard_error: Float[Tensor, " t"]
    curves: Float[Tensor, "r t"]
    scale: str


@array_function
def curve_difference(first: AlignmentCurve, second: AlignmentCurve) -> AlignmentCurve:
    r"""Difference of two curves on a common grid, :math:`D(\tau) = A_1(\tau) - A_2(\tau)`.

    Zero at threshold 0 when both belong to the same targets, and above both spectra; its integral
    is the difference of the areas.

    Args:
        first: :math:`A_1`.
        second: :math:`A_2`, same grid and scale.

    Raises:
        DomainError: If grids or scales differ.

    Example:
        >>> from theodolite.measures.representation import alignment_curve
        >>> grid, y = torch.tensor([0.0, 0.6, 0.9]), torch.ones(2)
        >>> high = alignment_curve(torch.ones(2, 1), y, grid)
        >>> curve_difference(high, alignment_curve(torch.eye(2), y, grid)).values.tolist()
        [0.0, 0.0, 1.0]

    References:
        [imani2022], Figure 14.
    """
    _require_common_grid([first, second])
    values = double(first.values) - double(second.values)
    route = first.route if first.route == second.route else f"{first.route}, {second.route}"
    return AlignmentCurve(first.thresholds, values, first.scale, route)


@array_function
def curve_average(curves: Sequence[AlignmentCurve]) -> CurveAverage:
    r"""Pointwise mean over runs or tasks, with its standard error :math:`\mathrm{sd}/\sqrt R`.

    Average normalised curves where tasks differ in size.

    Args:
        curves: one per run or task, same grid and scale.

    Raises:
        DomainError: If there is no curve, or grids or scales differ.

    Example:
        >>> grid = torch.tensor([0.0, 1.0])
        >>> one = AlignmentCurve(grid, torch.tensor([1.0, 2.0]), "absolute", "svd")
        >>> two = AlignmentCurve(grid, torch.tensor([3.0, 2.0]), "absolute", "svd")
        >>> average = curve_average([one, two])
        >>> average.mean.tolist(), average.standard_error.tolist()
        ([2.0, 2.0], [1.0, 0.0])

    References:
        [imani2022], Figures 6 and 14.
    """
    require_count(1, number_of_curves=len(curves))
    _require_common_grid(curves)
    values = torch.stack([double(curve.values) for curve in curves])
    return average_of(curves[0].thresholds, values, curves[0].scale)


@array_function
def dominance_fraction(
    first: AlignmentCurve, second: AlignmentCurve, *, slack: float = 0.0
) -> Float[Tensor, ""]:
    """Share of grid points at which the first curve is at least the second, less some slack.

    A value of 1 makes gradient descent at a common step size at least as fast at every step.
    Points at which either curve is unknown do not count; without any other, ``nan``.

    Args:
        first: the curve that may dominate.
        second: the curve that may be dominated, same grid and scale.
        slack: tolerated deficit, in units of the values.

    Raises:
        DomainError: If grids or scales differ, or the slack is negative.

    Example:
        >>> from theodolite.measures.representation import alignment_curve
        >>> grid, y = torch.tensor([0.0, 0.6, 0.9]), torch.ones(2)
        >>> low = alignment_curve(torch.eye(2), y, grid)
        >>> high = alignment_curve(torch.ones(2, 1), y, grid)
        >>> dominance_fraction(high, low).item(), round(dominance_fraction(low, high).item(), 4)
        (1.0, 0.6667)

    References:
        [imani2022], Figure 3, where curves are compared by eye.
    """
    require_between(0.0, float("inf"), open_high=True, slack=slack)
    _require_common_grid([first, second])
    lead = double(first.values) - double(second.values)
    known = lead[~lead.isnan()]
    return (known >= -slack).double().mean()


def average_of(thresholds: Tensor, values: Tensor, scale: str) -> CurveAverage:
    """Mean and standard error over the first axis; nan where there is nothing to average."""
    count = len(values)
    mean = values.mean(0)
    squares = (values - mean).square().sum(0)
    error = (squares / (count - 1)).sqrt() / count**0.5 if count > 1 else mean * torch.nan
    return CurveAverage(thresholds, mean, error.detach(), values, scale)


def _require_common_grid(curves: Sequence[AlignmentCurve]) -> None:
    scales = sorted({curve.scale for curve in curves})
    if len(scales) > 1:
        raise DomainError(f"curves: expected one scale, got {scales}; recompute with one scale=")
    grids = [double(curve.thresholds) for curve in curves]
    eps = max(eps_of(curve.thresholds) for curve in curves)
    same = all(
        len(grid) == len(grids[0]) and torch.allclose(grid, grids[0], rtol=8 * eps, atol=0)
        for grid in grids
    )
    if not same:
        raise DomainError(
            "curves: expected the same thresholds in all of them, got different grids; "
            "pass one thresholds= to every alignment_curve"
        )
