"""Alignment over depth: the shape of the curve, and where its peak lies as networks get deeper.

Results are 0-d floating-point tensors, ``nan`` where no layer has a defined alignment.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from theodolite.checks import (
    require_axes,
    require_between,
    require_finite,
    require_nonempty,
    require_same_shape,
)
from theodolite.errors import DomainError
from theodolite.linalg import (
    array_function,
    double,
    nan_unless,
    prints_shapes,
    ratio_or_nan,
    safe_sqrt,
    vanishes_when_centered,
)
from theodolite.measures.tangent.spectrum import require_curve

_EQUILIBRIUM_EXPONENT = 3 / 5  # Corollary 1
_EPS = torch.finfo(torch.float64).eps


@array_function
def relative_alignment(
    alignments: Float[Tensor, " layers"],
) -> Float[Tensor, " layers"]:
    r"""Alignments over the largest of them, :math:`A_l / \max_j A_j`.

    Undefined (``nan``): where the alignment is, and everywhere if no alignment is positive.

    Args:
        alignments: :math:`A_l` in order of depth; ``nan`` where undefined.

    Raises:
        ShapeError: If there is not one axis, or no layer.
        DomainError: If an alignment is infinite.

    Examples:
        >>> relative_alignment(torch.tensor([0.25, 0.5])).tolist()
        [0.5, 1.0]

    References:
        [lou2022], Figure 3.
    """
    curve = require_curve(alignments)
    top = _largest(curve)
    return curve / torch.where(top > 0, top, torch.full_like(top, torch.nan))


@array_function
def prominence(alignments: Float[Tensor, " layers"]) -> Float[Tensor, ""]:
    r"""How far the peak stands above the higher end, :math:`\max_l A_l - \max(A_1, A_L)`.

    Zero if the peak is an end; the ends are the first and the last defined layer.

    Args:
        alignments: :math:`A_l` in order of depth; ``nan`` where undefined.

    Raises:
        ShapeError: If there is not one axis, or no layer.
        DomainError: If an alignment is infinite.

    Examples:
        >>> round(prominence(torch.tensor([0.1, 0.4, 0.2])).item(), 4)
        0.2

    References:
        [lou2022], Section 3, where the hierarchy is described in words.
    """
    curve = require_curve(alignments)
    curve = curve[~curve.isnan()]
    if len(curve) == 0:
        return curve.new_full((), torch.nan)
    return curve.max() - torch.maximum(curve[0], curve[-1])


@array_function
def is_ascent_descent(
    alignments: Float[Tensor, " layers"], tolerance: float = 0.0
) -> Bool[Tensor, ""]:
    r"""Whether the alignment rises to its peak and falls after it.

    Every step may go the wrong way by ``tolerance`` times the range of the curve. A curve that only
    rises or only falls passes; ask :func:`prominence` whether the peak is inside.

    Args:
        alignments: :math:`A_l` in order of depth; ``nan`` where undefined.
        tolerance: slack of each step, as a share of :math:`\max A - \min A`.

    Raises:
        ShapeError: If there is not one axis, or no layer.
        DomainError: If an alignment is infinite, or the tolerance lies outside [0, 1].

    Examples:
        >>> is_ascent_descent(torch.tensor([0.1, 0.4, 0.2])).item()
        True

    References:
        [lou2022], Section 3.
    """
    require_between(0.0, 1.0, tolerance=tolerance)
    curve = require_curve(alignments)
    curve = curve[~curve.isnan()]
    if len(curve) < 2:
        return torch.ones((), dtype=torch.bool, device=curve.device)
    top = int((curve == curve.max()).nonzero()[0, 0])
    slack = tolerance * (curve.max() - curve.min())
    steps = curve[1:] - curve[:-1]
    return (steps[:top] >= -slack).all() & (steps[top:] <= slack).all()


def _largest(curve: Tensor) -> Tensor:
    defined = curve[~curve.isnan()]
    return defined.max() if len(defined) else curve.new_full((), torch.nan)


@prints_shapes
@dataclass(frozen=True)
class EquilibriumFit:
    """Straight lines through log peak against log depth (natural logarithms)."""

    constant: Float[Tensor, ""]  # C of log l = (3/5) log L + C
    slope: Float[Tensor, ""]  # ordinary least squares
    intercept: Float[Tensor, ""]
    r_squared: Float[Tensor, ""]
    slope_error: Float[Tensor, ""]  # standard error


@array_function
def fit_equilibrium(depths: Float[Tensor, " s"], peaks: Float[Tensor, " s"]) -> EquilibriumFit:
    r"""Power law of the peak layer in the depth of the network.

    .. math:: \log l^* = \tfrac35 \log L + C, \qquad \log l^* = a \log L + b

    The first line has the slope that balanced information losses predict at great depth, the
    second is ordinary least squares. Between depths of 10 and 100 the exact balance has slopes of
    0.7 to 1.0, so neither slope alone decides.

    Range: (-inf, inf).
    Invariant to: order of the networks.
    Undefined (``nan``): slope, intercept and the rest with fewer than two different depths; the
    standard error with fewer than three points; R² if all peaks are equal.

    Args:
        depths: :math:`L`, number of layers of each network; several networks may share one.
        peaks: :math:`l^*`, number of the layer with the largest alignment, counted from 1.

    Raises:
        ShapeError: If the two differ in length, or are empty.
        DomainError: If a peak lies below 1 or beyond its depth.

    Examples:
        >>> depths = torch.tensor([10.0, 20.0, 40.0, 80.0])
        >>> fit = fit_equilibrium(depths, 1.5 * depths**0.6)
        >>> round(fit.slope.item(), 4), round(fit.constant.exp().item(), 4)
        (0.6, 1.5)

    References:
        [lou2022], Corollary 1 and Figure 3.
    """
    require_axes(1, depths=depths, peaks=peaks)
    require_nonempty(depths=depths)
    require_same_shape(depths=depths, peaks=peaks)
    require_finite(depths=depths, peaks=peaks)
    wrong = ((peaks < 1) | (peaks > depths)).nonzero().flatten()
    if len(wrong):
        first = int(wrong[0])
        raise DomainError(
            "peaks: expected layers counted from 1 up to the depth, got "
            f"{peaks[first].item():g} at depth {depths[first].item():g} (entry {first})"
        )
    return _fit(double(depths).log(), double(peaks).log())


def _fit(x: Tensor, y: Tensor) -> EquilibriumFit:
    xc, yc = x - x.mean(), y - y.mean()
    several = ~vanishes_when_centered(xc, x, _EPS)
    varied = several & ~vanishes_when_centered(yc, y, _EPS)
    spread = torch.where(several, xc.square().sum(), xc.new_ones(()))
    slope = (xc * yc).sum() / spread
    missed = (yc - slope * xc).square().sum()
    error = safe_sqrt(missed / max(len(x) - 2, 1) / spread)
    return EquilibriumFit(
        constant=(y - _EQUILIBRIUM_EXPONENT * x).mean(),
        slope=nan_unless(several, slope),
        intercept=nan_unless(several, y.mean() - slope * x.mean()),
        r_squared=1 - ratio_or_nan(missed, yc.square().sum(), varied),
        slope_error=nan_unless(several & (len(x) > 2), error),
    )
