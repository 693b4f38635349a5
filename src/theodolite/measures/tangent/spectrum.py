"""Effective ranks of a kernel, and the layer with the highest alignment."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.linalg import matrix_norm

from theodolite.checks import require_axes, require_between, require_finite, require_nonempty
from theodolite.errors import DomainError, ShapeError
from theodolite.linalg import (
    array_function,
    double,
    peak_index,
    ratio_or_nan,
    unit_peak,
)
from theodolite.measures.tangent.alignment import spectral_norm
from theodolite.records import CHANCE


@array_function
def stable_rank(matrix: Float[Tensor, "n d"]) -> Float[Tensor, ""]:
    r"""Squared Frobenius norm divided by squared spectral norm: a rank that noise hardly changes.

    .. math:: R(W) = \frac{\|W\|_F^2}{\|W\|_2^2} = \sum_i \sigma_i^2 / \sigma_1^2

    Range: [1, rank].
    Invariant to: scaling, orthogonal maps on either side.
    Undefined (``nan``): the matrix is zero.

    Args:
        matrix: :math:`W`, any matrix. For a tangent kernel pass :func:`stacked_kernel`.

    Returns:
        A scalar: a 0-d tensor, or a 0-d array for NumPy input.

    Raises:
        ShapeError: If it is not a matrix, or empty.
        DomainError: If it is not finite.

    Examples:
        >>> round(stable_rank(torch.diag(torch.tensor([2.0, 1.0, 1.0]))).item(), 4)
        1.5

    References:
        [lou2022], Appendix G.
    """
    _require_matrix(matrix)
    scaled = unit_peak(double(matrix))
    return ratio_or_nan(matrix_norm(scaled), spectral_norm(scaled)).square()


def _require_matrix(matrix: Tensor) -> None:
    require_axes(2, matrix=matrix)
    require_nonempty(matrix=matrix)
    require_finite(matrix=matrix)


@array_function
def peak_layer(
    alignments: Float[Tensor, " layers"],
    covariance: Float[Tensor, "layers layers"] | None = None,
    *,
    errors: float = CHANCE,
) -> Float[Tensor, ""]:
    r"""The layer with the largest alignment, counted from 1; the first of equals.

    .. math:: l^* = \arg\max_l A_l

    Undefined (``nan``): no alignment is defined; with a covariance, no layer exceeds every other
    by enough errors of their difference.

    Args:
        alignments: :math:`A_l` in order of depth; ``nan`` where undefined.
        covariance: covariance of the errors of the alignments, if these are estimates.
        errors: the peak must exceed all others by this many standard errors of the difference.

    Returns:
        The number of the layer as a float, so that it can be ``nan``.

    Raises:
        ShapeError: If there is not one axis, or no layer, or the covariance does not match.
        DomainError: If an alignment is infinite.

    Examples:
        >>> int(peak_layer(torch.tensor([0.1, 0.3, float("nan"), 0.2])))
        2

    References:
        [lou2022], Section 3.
    """
    require_between(0.0, float("inf"), errors=errors)
    curve = require_curve(alignments)
    S = None if covariance is None else double(covariance)
    if S is not None and S.shape != (len(curve), len(curve)):
        raise ShapeError(
            f"covariance: expected shape {(len(curve), len(curve))}, one row per layer, "
            f"got {tuple(S.shape)}"
        )
    first = peak_index(curve, S, errors)
    return curve.new_tensor(torch.nan if first is None else first + 1.0)


def require_curve(alignments: Tensor) -> Tensor:
    """One number per layer in float64; nan is undefined, infinity is refused."""
    require_axes(1, alignments=alignments)
    require_nonempty(alignments=alignments)
    if alignments.detach().isinf().any():
        raise DomainError(
            "alignments: expected finite numbers, or nan if undefined, got infinity; an overflow "
            "in the kernel is the usual cause"
        )
    return double(alignments)
