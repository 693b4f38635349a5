"""Definition 2: the distance of a weight covariance from all that is aligned with the data."""

from dataclasses import dataclass
from math import expm1, inf
from typing import Literal

import torch
from jaxtyping import Float, Int
from scipy.special import gammaln
from torch import Tensor
from torch.linalg import solve_triangular

from theodolite.checks import require_between, require_choice, require_count, require_symmetric
from theodolite.linalg import array_function, eps_of, prints_shapes
from theodolite.measures.covariance._matrices import (
    Eigenspaces,
    eigenspaces,
    leading_eigenspaces,
    positive_definite_factor,
    require_dimension,
    require_symmetric_stack,
    stacked_eigenvalues,
    symmetrized,
)


@array_function
def misalignment(
    data_covariance: Float[Tensor, "d d"],
    weight_covariance: Float[Tensor, "*batch d d"],
    *,
    subspace: int | None = None,
    ridge: float = 0.0,
    rtol: float | None = None,
) -> Float[Tensor, "*batch"]:
    r"""Distance of a weight covariance from the nearest covariance aligned with the data's.

    .. math:: M(A, B) = \inf_{\Sigma \text{ aligned with } A} D(\Sigma, B)
              = \sum_i \sqrt{\operatorname{tr}(B|_{V_i}) \operatorname{tr}(B^{-1}|_{V_i})} - d

    with :math:`V_i` the eigenspaces of :math:`A`. Compare it with its random-basis baseline
    (:func:`random_basis_misalignment`) and its sampling floor (:func:`misalignment_floor`): the
    covariance of finitely many perfectly aligned filters does not score 0.

    Range: [0, inf).
    Invariant to: rotating both; scaling either; inverting B; injective functions of A.
    Undefined: never. Not symmetric in its arguments; not continuous in A where eigenvalues meet.

    Args:
        data_covariance: :math:`A`, symmetric; only its eigenspaces matter.
        weight_covariance: :math:`B`, positive definite; a stack of them (checkpoints) gives one
            number each at the price of one eigendecomposition of :math:`A`.
        subspace: compress both to so many leading eigenvectors of :math:`A` first. For layers with
            fewer filters than dimensions; changes the number.
        ridge: add ``ridge * tr(B) / d`` to the diagonal of :math:`B` (after the compression).
            Changes the number.
        rtol: eigenvalues of :math:`A` closer than this times the largest share an eigenspace; by
            default the rounding of the dtype.

    Raises:
        ShapeError: If the matrices are not square or differ in size.
        DomainError: If a matrix is not symmetric or not finite, :math:`B` is not positive definite,
            or ``subspace`` cuts through an eigenspace.

    Example:
        >>> weights = torch.diag(torch.tensor([1.0, 2.0]))
        >>> round(misalignment(torch.eye(2), weights).item(), 4)
        0.1213
        >>> round(misalignment(weights, weights).item(), 4)
        0.0

    References:
        [maennel2020], Definition 2 and Proposition 2. Differs from paper: A may be singular.
    """
    spaces, L = prepared(
        data_covariance, weight_covariance, subspace=subspace, ridge=ridge, rtol=rtol
    )
    return total_misalignment(spaces, L)


@prints_shapes
@dataclass(frozen=True)
class MisalignmentTerms:
    """One entry per eigenspace of the data covariance, its eigenvalues decreasing."""

    terms: Float[Tensor, "*batch r"]  # they add up to the misalignment
    eigenvalues: Float[Tensor, " r"]
    dimensions: Int[Tensor, " r"]


@array_function
def misalignment_terms(
    data_covariance: Float[Tensor, "d d"],
    weight_covariance: Float[Tensor, "*batch d d"],
    *,
    subspace: int | None = None,
    ridge: float = 0.0,
    rtol: float | None = None,
) -> MisalignmentTerms:
    r"""Which data direction is misaligned: the summands of :func:`misalignment`.

    .. math:: M_i = \sqrt{\operatorname{tr}(B|_{V_i}) \operatorname{tr}(B^{-1}|_{V_i})} - d_i

    For a single direction this is :math:`1/\sqrt{1 - R_i^2} - 1`, the root of the variance
    inflation factor of that coordinate of the weights given all others, less one.

    Range: [0, inf).
    Invariant to: rotating both; scaling either; inverting B.
    Undefined: never.

    Args:
        data_covariance: as in :func:`misalignment`, like all that follow.
        weight_covariance: positive definite, or a stack.
        subspace: leading directions to compress to.
        ridge: share of the mean variance added to the diagonal.
        rtol: relative gap of eigenvalues that count as equal.

    Raises:
        ShapeError: If the matrices are not square or differ in size.
        DomainError: As in :func:`misalignment`.

    Example:
        >>> data = torch.diag(torch.tensor([3.0, 2.0, 1.0]))
        >>> weights = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.6], [0.0, 0.6, 1.0]])
        >>> misalignment_terms(data, weights).terms.round(decimals=4).tolist()
        [0.0, 0.25, 0.25]

    References:
        [maennel2020], Proposition 2 and Appendix A.6; the single terms are ours.
    """
    spaces, L = prepared(
        data_covariance, weight_covariance, subspace=subspace, ridge=ridge, rtol=rtol
    )
    return MisalignmentTerms(
        _terms(spaces, L).clamp(min=0), spaces.means(spaces.values), spaces.dimensions
    )


@array_function
def closest_aligned(
    data_covariance: Float[Tensor, "d d"],
    weight_covariance: Float[Tensor, "*batch d d"],
    *,
    rtol: float | None = None,
) -> Float[Tensor, "*batch d d"]:
    r"""The covariance aligned with the data's that is nearest to the weights', which attains M.

    .. math:: \Sigma^* = \sum_i \sqrt{\frac{\operatorname{tr}(B|_{V_i})}
              {\operatorname{tr}(B^{-1}|_{V_i})}} \, P_i

    Args:
        data_covariance: :math:`A`, symmetric.
        weight_covariance: :math:`B`, positive definite, or a stack.
        rtol: relative gap of eigenvalues of :math:`A` that count as equal.

    Raises:
        ShapeError: If the matrices are not square or differ in size.
        DomainError: If a matrix is not symmetric or not finite, or :math:`B` not definite.

    Example:
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


def quadratic_forms(V: Tensor, L: Tensor) -> tuple[Tensor, Tensor]:
    """``v_i^T B v_i`` and ``v_i^T B^-1 v_i`` of the columns of V, for ``B = L L^T``."""
    # Sums of squares keep every digit that the condition number leaves.
    return (L.mT @ V).square().sum(-2), solve_triangular(L, V, upper=False).square().sum(-2)


def total_misalignment(spaces: Eigenspaces, L: Tensor) -> Tensor:
    """The score for ``B = L L^T``."""
    return _terms(spaces, L).sum(-1).clamp(min=0)  # below zero by rounding alone


def compressed(leading: Eigenspaces, B: Tensor) -> tuple[Eigenspaces, Tensor]:
    """Data and weights in the coordinates of the leading data eigenvectors."""
    Q = leading.vectors
    identity = torch.eye(Q.shape[-1]).to(Q)
    return Eigenspaces(leading.values, identity, leading.groups), symmetrized(Q.mT @ B @ Q)


def prepared(
    data_covariance: Tensor,
    weight_covariance: Tensor,
    *,
    subspace: int | None = None,
    ridge: float = 0.0,
    rtol: float | None = None,
) -> tuple[Eigenspaces, Tensor]:
    """Eigenspaces of A and the Cholesky factor of B, both in the subspace if one is given."""
    require_pair(data_covariance, weight_covariance)
    require_between(0.0, inf, open_high=True, ridge=ridge)
    B = symmetrized(weight_covariance)
    if subspace is None:
        spaces = eigenspaces(data_covariance, rtol)
    else:
        spaces, B = compressed(leading_eigenspaces(data_covariance, subspace, rtol), B)
    size = B.shape[-1]
    shift = ridge / size * B.diagonal(0, -2, -1).sum(-1)
    B = B + shift[..., None, None] * torch.eye(size).to(B)
    return spaces, positive_definite_factor(B, "weight_covariance", eps_of(weight_covariance))


def require_pair(data_covariance: Tensor, weight_covariance: Tensor) -> None:
    """A symmetric matrix, and one or a stack of the same size."""
    require_symmetric(data_covariance=data_covariance)
    require_symmetric_stack(weight_covariance=weight_covariance)
    require_dimension(len(data_covariance), weight_covariance=weight_covariance)


def _terms(spaces: Eigenspaces, L: Tensor) -> Tensor:
    forms, inverse_forms = quadratic_forms(spaces.vectors, L)
    products = (forms @ spaces.membership) * (inverse_forms @ spaces.membership)
    return products.sqrt() - spaces.dimensions


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

    Example:
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
