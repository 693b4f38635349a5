"""The transfer function: strength of the weights along each principal direction of the data."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from theodolite.checks import require_count, require_finite, require_symmetric
from theodolite.errors import DomainError, ShapeError
from theodolite.linalg import (
    Eigen,
    array_function,
    double,
    eigenvalue_groups,
    eps_of,
    equality_tolerance,
    prints_shapes,
    safe_sqrt,
    top_eigen,
)
from theodolite.measures.covariance.matrices import (
    Eigenspaces,
    require_dimension,
    symmetrized,
)


@prints_shapes
@dataclass(frozen=True)
class TransferFunction:
    """Pairs ``tau = f(sigma)``, one per data direction, sigma decreasing.

    Args:
        sigma: standard deviation of the data along each principal direction.
        tau: standard deviation of the weights along the same direction.
    """

    sigma: Float[Tensor, " d"]
    tau: Float[Tensor, "*batch d"]


@array_function
def transfer_function(
    data_covariance: Float[Tensor, "d d"] | Eigen,
    weights: Float[Tensor, "*batch f d"],
    *,
    centered: bool = True,
    count: int | None = None,
) -> TransferFunction:
    r"""How widely a layer's weights spread along each principal direction of its data.

    .. math:: \tau_i^2 = \frac1F \sum_k \langle w_k - \bar w, v_i\rangle^2 = v_i^\top \Sigma_w v_i,
              \qquad f(\sigma_i) = \tau_i

    In a degenerate data eigenspace :math:`V`: :math:`\tau^2 = \operatorname{tr}(\Sigma_w|_V) /
    \dim V` for each of its directions. Works for any number of filters.

    Range: [0, inf).
    Invariant to: rotating both; adding a constant to all weights (if centred); order of filters.
    Undefined: never.

    Args:
        data_covariance: :math:`\Sigma_x`, positive semi-definite, or its leading eigenpairs.
        weights: :math:`w_k` as rows, ``weight.flatten(1)`` of a convolution; a stack of runs or
            checkpoints gives one curve each. To pool runs, concatenate their rows.
        centered: remove the mean filter.
        count: number of leading directions (default: all). If the cut divides an eigenspace, the
            average over this eigenspace has only the directions before the cut.

    Returns:
        Pairs of sigma and tau, one for each direction.

    Raises:
        ShapeError: If the covariance is not square or the weights have another dimension.
        DomainError: If the covariance is not symmetric or has negative eigenvalues beyond
            rounding, or an entry is not finite.

    Examples:
        >>> weights = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 2.0], [0.0, -2.0]])
        >>> curve = transfer_function(torch.diag(torch.tensor([4.0, 1.0])), weights)
        >>> curve.sigma.tolist(), (curve.tau**2).round(decimals=1).tolist()
        ([2.0, 1.0], [0.5, 2.0])

    References:
        [maennel2020], Equations (2), (3) and Definition 3; degenerate spaces are ours.
    """
    if weights.ndim < 2 or 0 in weights.shape:
        raise ShapeError(
            f"weights: expected at least one filter as a row, got shape {tuple(weights.shape)}; "
            "pass weight.flatten(1)"
        )
    require_finite(weights=weights)
    spaces = _directions(data_covariance, count)
    require_dimension(len(spaces.vectors), weights=weights)
    W = double(weights)
    if centered:
        W = W - W.mean(-2, keepdim=True)
    return _curve(spaces, (W @ spaces.vectors).square().mean(-2))


def _directions(data_covariance: Tensor | Eigen, count: int | None) -> Eigenspaces:
    """Leading eigenpairs with their groups; eigenvalues below 0 by rounding count as 0."""
    if isinstance(data_covariance, Eigen):
        values, vectors = (double(part) for part in data_covariance)
        count = len(values) if count is None else count
        require_count(1, count=count)
        if count > len(values):
            raise DomainError(
                f"count: expected at most {len(values)}, the number of directions given, got "
                f"{count}"
            )
        values, vectors = values[:count].clamp(min=0), vectors[:, :count]
        fine = equality_tolerance(len(vectors), torch.finfo(torch.float64).eps)
        groups = eigenvalue_groups(values, fine)
        return Eigenspaces(values, vectors, tuple(groups))
    require_symmetric(data_covariance=data_covariance)
    size = len(data_covariance)
    count = size if count is None else count
    require_count(1, count=count)
    if count > size:
        raise DomainError(f"count: expected at most {size} directions, got {count}")
    values, vectors = top_eigen(symmetrized(data_covariance.detach()), count)
    tolerance = equality_tolerance(size, eps_of(data_covariance))
    if bool((values < -tolerance * values.abs().max()).any()):
        raise DomainError(
            "data_covariance: expected a covariance, without negative variances, got "
            f"{values.min().item():.3g} along an eigenvector; pass a covariance matrix"
        )
    groups = eigenvalue_groups(values, tolerance)
    return Eigenspaces(values.clamp(min=0), vectors, tuple(groups))


def _curve(spaces: Eigenspaces, variances: Tensor) -> TransferFunction:
    means = spaces.spread(spaces.means(variances))
    return TransferFunction(spaces.values.sqrt(), safe_sqrt(means))
