"""Where the alignment peaks as networks get deeper: fits of measured peaks."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from theodolite.checks import require_axes, require_finite, require_nonempty, require_same_shape
from theodolite.errors import DomainError
from theodolite.linalg import (
    array_function,
    double,
    nan_unless,
    ratio_or_nan,
    safe_sqrt,
    vanishes_when_centered,
)

__all__ = ["EquilibriumFit", "fit_equilibrium"]

_EQUILIBRIUM_EXPONENT = 3 / 5  # Corollary 1
_EPS = torch.finfo(torch.float64).eps


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

    Example:
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
