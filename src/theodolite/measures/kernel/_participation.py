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

__all__ = ["participation_from_traces", "participation_ratio"]


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
    raw = unit_peak(double(gram))
    K = double_center(raw) if center else raw
    defined = ~vanishes_when_centered(K, raw, eps_of(gram))
    return participation_from_traces(K.trace(), K.square().sum(), defined)


def participation_from_traces(
    trace: Float[Tensor, "*batch"],
    trace_of_square: Float[Tensor, "*batch"],
    defined: Tensor | bool = True,
) -> Float[Tensor, "*batch"]:
    r"""Participation ratio from the sum of the eigenvalues and the sum of their squares.

    Args:
        trace: :math:`\mathrm{tr} K = n\sum_\rho\eta_\rho`.
        trace_of_square: :math:`\mathrm{tr} K^2 = n^2\sum_\rho\eta_\rho^2`.
        defined: whether the kernel is more than rounding.

    Example:
        >>> eta = torch.tensor([2.0, 1.0])
        >>> round(participation_from_traces(eta.sum(), eta.square().sum()).item(), 4)
        1.8
    """
    return ratio_or_nan(trace.square(), trace_of_square, defined)
