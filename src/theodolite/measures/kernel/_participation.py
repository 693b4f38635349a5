"""Participation ratio: how many modes share the variance of a kernel."""

from jaxtyping import Float
from torch import Tensor

from theodolite.checks import require_symmetric
from theodolite.linalg import (
    array_function,
    double,
    double_center,
    eps_of,
    ratio_or_nan,
    unit_peak,
    vanishes_when_centered,
)

__all__ = ["participation_ratio"]


@array_function
def participation_ratio(gram: Float[Tensor, "n n"], center: bool = False) -> Float[Tensor, ""]:
    r"""Effective number of modes of a kernel, from its trace and norm.

    .. math:: \frac{(\sum_\rho \eta_\rho)^2}{\sum_\rho \eta_\rho^2}
              = \frac{(\mathrm{tr} K)^2}{\|K\|_F^2}

    One or two large modes, such as the mean at initialisation, already make it small: centre first,
    and prefer :func:`spectral_gap` to tell a low rank.

    Range: [0, n]; at least 1 if the matrix is positive semi-definite.
    Invariant to: scaling; orthogonal maps of both sides.
    Undefined (``nan``): the matrix is zero (after centring, up to rounding).

    Args:
        gram: :math:`K`, symmetric.
        center: take the centred kernel :math:`HKH`.

    Raises:
        ShapeError: If the matrix is not square.
        DomainError: If it is not symmetric or not finite.

    Example:
        >>> participation_ratio(torch.eye(5)).item(), participation_ratio(torch.ones(5, 5)).item()
        (5.0, 1.0)

    References:
        [canatar2022], Fig. 3; the number is ours.
    """
    require_symmetric(gram=gram)
    return _participation_ratio(double(gram), center, eps_of(gram))


def _participation_ratio(gram: Tensor, center: bool, eps: float) -> Tensor:
    raw = unit_peak(gram)
    K = double_center(raw) if center else raw
    defined = ~vanishes_when_centered(K, raw, eps)
    trace = K.diagonal(dim1=-2, dim2=-1).sum(-1)
    return ratio_or_nan(trace.square(), K.square().sum((-2, -1)), defined)
