"""What misalignment can be at most, and what sampling alone makes of it."""

from math import expm1

import torch
from jaxtyping import Float
from scipy.special import gammaln
from torch import Tensor

from theodolite.checks import require_count
from theodolite.linalg import array_function, eps_of
from theodolite.measures.covariance._misalignment import quadratic_forms
from theodolite.measures.covariance._validation import (
    positive_definite_factor,
    require_symmetric_stack,
    stacked_eigenvalues,
    symmetrized,
)

__all__ = ["haar_bound", "kantorovich_bound", "misalignment_floor"]


@array_function
def kantorovich_bound(weight_covariance: Float[Tensor, "*batch d d"]) -> Float[Tensor, "*batch"]:
    r"""Largest misalignment that any orthonormal basis could have with a weight covariance.

    .. math:: M \le d \left( \frac{\kappa + 1}{2 \sqrt\kappa} - 1 \right)

    with :math:`\kappa` the condition number of :math:`B`.

    Range: [0, inf).
    Invariant to: rotating, scaling, inverting B.
    Undefined: never.

    Args:
        weight_covariance: :math:`B`, positive definite, or a stack.

    Raises:
        ShapeError: If the matrix is not square.
        DomainError: If it is not symmetric, finite and positive definite.

    Example:
        >>> round(kantorovich_bound(torch.diag(torch.tensor([1.0, 4.0]))).item(), 4)
        0.5

    References:
        [maennel2020], Proposition 2 with the inequality of Kantorovich; the bound is ours.
    """
    require_symmetric_stack(weight_covariance=weight_covariance)
    positive_definite_factor(weight_covariance, "weight_covariance", eps_of(weight_covariance))
    values = stacked_eigenvalues(symmetrized(weight_covariance))
    root = (values[..., 0] / values[..., -1]).sqrt()
    # (kappa + 1) / (2 sqrt(kappa)) - 1 without its cancellation near kappa = 1
    return values.shape[-1] * (root - 1).square() / (2 * root)


@array_function
def haar_bound(weight_covariance: Float[Tensor, "*batch d d"]) -> Float[Tensor, "*batch"]:
    r"""Upper bound of the mean misalignment over uniformly random bases.

    .. math:: \mathbb E M \le d \left( \sqrt{\frac{
              \operatorname{tr} B \operatorname{tr} B^{-1} + 2d}{d (d + 2)}} - 1 \right)

    Range: [0, inf).
    Invariant to: rotating, scaling, inverting B.
    Undefined: never.

    Args:
        weight_covariance: :math:`B`, positive definite, or a stack.

    Raises:
        ShapeError: If the matrix is not square.
        DomainError: If it is not symmetric, finite and positive definite.

    Example:
        >>> round(haar_bound(torch.diag(torch.tensor([1.0, 4.0]))).item(), 4)
        0.2638

    References:
        [maennel2020], Figure 2 with Jensen's inequality; the bound is ours.
    """
    require_symmetric_stack(weight_covariance=weight_covariance)
    L = positive_definite_factor(weight_covariance, "weight_covariance", eps_of(weight_covariance))
    d = L.shape[-1]
    forms, inverse_forms = quadratic_forms(torch.eye(d).to(L), L)
    product = forms.sum(-1) * inverse_forms.sum(-1)
    return (d * (((product + 2 * d) / (d * (d + 2))).sqrt() - 1)).clamp(min=0)


def misalignment_floor(
    filters: int, dimensions: int, *, centered: bool = True
) -> Float[Tensor, ""]:
    r"""Mean misalignment of sampled weights whose true covariance is perfectly aligned.

    .. math:: M_0 = d \left( \frac{\Gamma(\frac{m-d}2)\, \Gamma(\frac m2)}
              {\Gamma(\frac{m-d+1}2)\, \Gamma(\frac{m-1}2)} - 1 \right),
              \qquad m = n - 1 \text{ (centred) or } n

    About :math:`d (d-1) / 2n` for many filters, whatever the true eigenvalues. Gaussian weights are
    assumed, and the filters of a trained layer are not independent: a guide, not a bound.

    Range: [0, inf]; infinite for :math:`m \le d`.

    Args:
        filters: :math:`n`, the number of weight vectors behind the covariance.
        dimensions: :math:`d`; of the subspace where misalignment is taken in one.
        centered: whether the covariance has its mean removed.

    Raises:
        DomainError: If a count is below 1.

    Example:
        >>> round(misalignment_floor(256, 27).item(), 3)
        1.501

    References:
        [maennel2020], Figure 2, which starts at this floor; the formula is ours.
    """
    require_count(1, filters=filters, dimensions=dimensions)
    m, d = filters - 1 if centered else filters, dimensions
    if m <= d:
        return torch.tensor(torch.inf, dtype=torch.float64)
    log_ratio = (
        gammaln((m - d) / 2) - gammaln((m - d + 1) / 2) + gammaln(m / 2) - gammaln((m - 1) / 2)
    )
    return torch.tensor(d * expm1(log_ratio), dtype=torch.float64)
