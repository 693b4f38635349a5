"""Definition 2: distance of a weight covariance from covariances aligned with the data."""

from math import expm1

import torch
from jaxtyping import Float
from scipy.special import gammaln
from torch import Tensor

from theodolite.checks import require_count, require_flag
from theodolite.linalg import array_function
from theodolite.measures.covariance.matrices import Eigenspaces, prepared, quadratic_forms


@array_function
def misalignment(
    data_covariance: Float[Tensor, "d d"],
    weight_covariance: Float[Tensor, "*batch d d"],
    *,
    subspace: int | None = None,
) -> Float[Tensor, "*batch"]:
    r"""Distance of a weight covariance from the nearest covariance aligned with the data's.

    .. math:: M(A, B) = \inf_{\Sigma \text{ aligned with } A} D(\Sigma, B)
              = \sum_i \sqrt{\operatorname{tr}(B|_{V_i}) \operatorname{tr}(B^{-1}|_{V_i})} - d,
          \qquad D(\Sigma, B) = \tfrac12 \operatorname{tr}(\Sigma^{-1} B + B^{-1} \Sigma) - d

    with :math:`V_i` the eigenspaces of :math:`A`, to which :math:`B|_{V_i}` is restricted. A matrix
    is aligned with :math:`A` if each :math:`V_i` lies in one of its eigenspaces. Compare it with
    its random-basis baseline (:func:`random_basis_misalignment`) and its sampling floor
    (:func:`misalignment_floor`): the covariance of finitely many perfectly aligned filters does not
    score 0.

    Range: [0, inf).
    Invariant to: rotating both; scaling either; inverting B; injective functions of A.
    Undefined: never. Not symmetric in its arguments; not continuous in A where eigenvalues meet.
    Eigenvalues of A that differ by less than the rounding of its dtype count as equal.

    Args:
        data_covariance: :math:`A`, symmetric; only its eigenspaces matter.
        weight_covariance: :math:`B`, positive definite; a stack of them (checkpoints) gives one
            number each at the price of one eigendecomposition of :math:`A`.
        subspace: compress both to so many leading eigenvectors of :math:`A` first. For layers with
            fewer filters than dimensions; changes the number.

    Returns:
        One number for every weight covariance.

    Raises:
        ShapeError: If the matrices are not square or differ in size.
        DomainError: If a matrix is not symmetric or not finite, :math:`B` is not positive definite,
            or ``subspace`` cuts through an eigenspace.

    Examples:
        >>> weights = torch.diag(torch.tensor([1.0, 2.0]))
        >>> round(misalignment(torch.eye(2), weights).item(), 4)
        0.1213
        >>> round(misalignment(weights, weights).item(), 4)
        0.0

    References:
        [maennel2020], Definition 2 and Proposition 2. Differs from paper: A may be singular.
    """
    spaces, L = prepared(data_covariance, weight_covariance, subspace=subspace)
    return total_misalignment(spaces, L)


def total_misalignment(spaces: Eigenspaces, L: Tensor) -> Tensor:
    """The score for ``B = L L^T``."""
    forms, inverse_forms = quadratic_forms(spaces.vectors, L)
    products = (forms @ spaces.membership) * (inverse_forms @ spaces.membership)
    terms = products.sqrt() - spaces.dimensions
    return terms.sum(-1).clamp(min=0)  # below zero by rounding alone


def misalignment_floor(
    filters: int, dimensions: int, *, centered: bool = True
) -> Float[Tensor, ""]:
    r"""Mean misalignment of sampled weights whose true covariance is perfectly aligned.

    .. math:: M_0 = d \left( \frac{\Gamma(\frac{m-d}2)\, \Gamma(\frac m2)}
              {\Gamma(\frac{m-d+1}2)\, \Gamma(\frac{m-1}2)} - 1 \right),
              \qquad m = n - 1 \text{ (centred) or } n

    This is about :math:`d (d-1) / 2n` for many filters, whatever the true eigenvalues. The formula
    assumes independent Gaussian filters. Those of a trained layer are not independent, so the
    floor is no strict bound for them.

    Range: [0, inf]; infinite for :math:`m \le d`.

    Args:
        filters: :math:`n`, the number of weight vectors behind the covariance.
        dimensions: :math:`d`; of the subspace where misalignment is taken in one.
        centered: whether the covariance has its mean removed.

    Returns:
        A scalar tensor in float64; ``inf`` if there are too few filters.

    Raises:
        DomainError: If a count is below 1.

    Examples:
        >>> round(misalignment_floor(256, 27).item(), 3)
        1.501

    References:
        [maennel2020], Figure 2, which starts at this floor; the formula is ours.
    """
    require_count(1, filters=filters, dimensions=dimensions)
    require_flag(centered=centered)
    m, d = filters - 1 if centered else filters, dimensions
    if m <= d:
        return torch.tensor(torch.inf, dtype=torch.float64)
    log_ratio = (
        gammaln((m - d) / 2) - gammaln((m - d + 1) / 2) + gammaln(m / 2) - gammaln((m - 1) / 2)
    )
    return torch.tensor(d * expm1(log_ratio), dtype=torch.float64)
