"""Shape of the curve of alignment over depth. Layers are numbered from 1, undefined ones skipped.

Results are 0-d floating-point tensors, ``nan`` where no layer has a defined alignment.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from theodolite.checks import require_axes, require_between, require_nonempty
from theodolite.errors import DomainError, ShapeError
from theodolite.linalg import array_function, double

__all__ = [
    "alignment_centroid",
    "is_ascent_descent",
    "peak_layer",
    "prominence",
    "relative_alignment",
]


@array_function
def peak_layer(
    alignments: Float[Tensor, " layers"],
    covariance: Float[Tensor, "layers layers"] | None = None,
    *,
    errors: float = 2.0,
) -> Float[Tensor, ""]:
    r"""The layer with the largest alignment, counted from 1; the first of equals.

    .. math:: l^* = \arg\max_l A_l

    Undefined (``nan``): no alignment is defined; with a covariance, no layer exceeds every other
    by enough errors of their difference.

    Args:
        alignments: :math:`A_l` in order of depth; ``nan`` where undefined.
        covariance: of the errors of the alignments, where they are estimates.
        errors: how many standard errors of the difference the peak must stand above others.

    Raises:
        ShapeError: If there is not one axis, or no layer, or the covariance does not match.
        DomainError: If an alignment is infinite.

    Example:
        >>> int(peak_layer(torch.tensor([0.1, 0.3, float("nan"), 0.2])))
        2

    References:
        [lou2022], Section 3.
    """
    curve = _curve(alignments)
    defined = ~curve.isnan()
    if not defined.any():
        return curve.new_full((), torch.nan)
    first = int((curve == curve[defined].max()).nonzero()[0, 0])
    if covariance is not None:
        S = double(covariance)
        if S.shape != (len(curve), len(curve)):
            raise ShapeError(
                f"covariance: expected shape {(len(curve), len(curve))}, one row per layer, "
                f"got {tuple(S.shape)}"
            )
        variance = S.diagonal() + S[first, first] - 2 * S[first]
        clear = curve[first] - curve > errors * variance.clamp(min=0).sqrt()
        clear[first] = True
        if not bool((clear | ~defined).all()):
            return curve.new_full((), torch.nan)
    return curve.new_tensor(float(first + 1))


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

    Example:
        >>> relative_alignment(torch.tensor([0.25, 0.5])).tolist()
        [0.5, 1.0]

    References:
        [lou2022], Figure 3.
    """
    curve = _curve(alignments)
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

    Example:
        >>> round(prominence(torch.tensor([0.1, 0.4, 0.2])).item(), 4)
        0.2

    References:
        [lou2022], Section 3, where the hierarchy is described in words.
    """
    curve = _curve(alignments)
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

    Example:
        >>> is_ascent_descent(torch.tensor([0.1, 0.4, 0.2])).item()
        True

    References:
        [lou2022], Section 3.
    """
    require_between(0.0, 1.0, tolerance=tolerance)
    curve = _curve(alignments)
    curve = curve[~curve.isnan()]
    if len(curve) < 2:
        return torch.ones((), dtype=torch.bool, device=curve.device)
    top = int((curve == curve.max()).nonzero()[0, 0])
    slack = tolerance * (curve.max() - curve.min())
    steps = curve[1:] - curve[:-1]
    return (steps[:top] >= -slack).all() & (steps[top:] <= slack).all()


@array_function
def alignment_centroid(
    alignments: Float[Tensor, " layers"], fraction: float = 0.9
) -> Float[Tensor, ""]:
    r"""Mean number of the layers close to the peak: steadier than the peak on noisy curves.

    .. math:: \mathrm{mean}\{l : A_l \ge \mathrm{fraction}\cdot\max_j A_j\}

    Undefined (``nan``): no alignment is positive.

    Args:
        alignments: :math:`A_l` in order of depth; ``nan`` where undefined.
        fraction: how close, as a share of the largest alignment.

    Raises:
        ShapeError: If there is not one axis, or no layer.
        DomainError: If an alignment is infinite, or the fraction lies outside [0, 1].

    Example:
        >>> alignment_centroid(torch.tensor([0.1, 0.4, 0.39, 0.2])).item()
        2.5

    References:
        [lou2022], Section 3; the centroid is not in the paper.
    """
    require_between(0.0, 1.0, fraction=fraction)
    curve = _curve(alignments)
    top = _largest(curve)
    if not top > 0:
        return curve.new_full((), torch.nan)
    return ((curve >= fraction * top).nonzero() + 1).double().mean()


def _curve(alignments: Tensor) -> Tensor:
    require_axes(1, alignments=alignments)
    require_nonempty(alignments=alignments)
    if alignments.detach().isinf().any():
        raise DomainError(
            "alignments: expected numbers, nan where undefined, got an infinite one; "
            "no alignment is infinite, look for an overflow upstream"
        )
    return double(alignments)


def _largest(curve: Tensor) -> Tensor:
    defined = curve[~curve.isnan()]
    return defined.max() if len(defined) else curve.new_full((), torch.nan)
