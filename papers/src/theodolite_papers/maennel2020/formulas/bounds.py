"""Bounds of misalignment, its one-sided forms and the closest aligned covariance."""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from theodolite.checks import require_choice
from theodolite.linalg import array_function, eps_of
from theodolite.measures.covariance.matrices import (
    positive_definite_factor,
    prepared,
    quadratic_forms,
    require_symmetric_stack,
    stacked_eigenvalues,
    symmetrized,
)


@array_function
def closest_aligned(
    data_covariance: Float[Tensor, "d d"],
    weight_covariance: Float[Tensor, "*batch d d"],
    *,
    rtol: float | None = None,
) -> Float[Tensor, "*batch d d"]:
    r"""The covariance aligned with the data's whose distance from the weights' is the misalignment.

    .. math:: \Sigma^* = \sum_i \sqrt{\frac{\operatorname{tr}(B|_{V_i})}
              {\operatorname{tr}(B^{-1}|_{V_i})}} \, P_i

    Args:
        data_covariance: :math:`A`, symmetric.
        weight_covariance: :math:`B`, positive definite, or a stack.
        rtol: relative gap of eigenvalues of :math:`A` that count as equal.

    Raises:
        ShapeError: If the matrices are not square or differ in size.
        DomainError: If a matrix is not symmetric or not finite, or :math:`B` not definite.

    Examples:
        >>> weights = torch.diag(torch.tensor([1.0, 4.0]))
        >>> closest_aligned(torch.eye(2), weights).tolist()
        [[2.0, 0.0], [0.0, 2.0]]

    References:
        [maennel2020], Proposition 2.
    """
    spaces, L = prepared(data_covariance, weight_covariance, rtol=rtol)
    forms, inverse_forms = quadratic_forms(spaces.vectors, L)
    ratio = (forms @ spaces.membership) / (inverse_forms @ spaces.membership)
    return (spaces.vectors * spaces.spread(ratio.sqrt())[..., None, :]) @ spaces.vectors.mT


@array_function
def one_sided_misalignment(
    data_covariance: Float[Tensor, "d d"],
    weight_covariance: Float[Tensor, "*batch d d"],
    *,
    first: Literal["weights", "aligned"] = "weights",
    rtol: float | None = None,
) -> Float[Tensor, "*batch"]:
    r"""Smallest Kullback-Leibler divergence between weights and anything aligned with the data.

    .. math:: \inf_\Sigma \mathrm{KL}(B \| \Sigma) = \tfrac12 \Big( \sum_i d_i
              \log \frac{\operatorname{tr}(B|_{V_i})}{d_i} - \log\det B \Big)

    and the same with :math:`B^{-1}` for :math:`\inf_\Sigma \mathrm{KL}(\Sigma \| B)`. The two add
    up to at most :func:`misalignment`.

    Range: [0, inf).
    Invariant to: rotating both; scaling either.
    Undefined: never.

    Args:
        data_covariance: :math:`A`, whose eigenspaces are :math:`V_i`.
        weight_covariance: :math:`B`, positive definite, or a stack.
        first: first argument of the divergence, ``"weights"`` for :math:`\mathrm{KL}(B \| \Sigma)`,
            ``"aligned"`` for :math:`\mathrm{KL}(\Sigma \| B)`.
        rtol: relative gap of eigenvalues of :math:`A` that count as equal.

    Raises:
        ShapeError: If the matrices are not square or differ in size.
        DomainError: If a matrix is not symmetric or not finite, or :math:`B` not definite.

    Examples:
        >>> weights = torch.diag(torch.tensor([1.0, 2.0]))
        >>> round(one_sided_misalignment(torch.eye(2), weights).item(), 4)
        0.0589

    References:
        [maennel2020], Definition 2 with one divergence; ours.
    """
    require_choice(("weights", "aligned"), first=first)
    spaces, L = prepared(data_covariance, weight_covariance, rtol=rtol)
    forms, inverse_forms = quadratic_forms(spaces.vectors, L)
    half_log_det = L.diagonal(0, -2, -1).log().sum(-1)
    traces = forms if first == "weights" else inverse_forms
    spread = (spaces.means(traces).log() * spaces.dimensions).sum(-1) / 2
    return (spread - half_log_det if first == "weights" else spread + half_log_det).clamp(min=0)


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

    Examples:
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

    Examples:
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
