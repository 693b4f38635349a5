"""Misalignment with random bases, and the quotient that surveys print as their headline."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from theodolite.checks import require_axes, require_count, require_finite, require_function
from theodolite.errors import ShapeError
from theodolite.linalg import (
    Eigen,
    array_function,
    double,
    eigenvalue_groups,
    eps_of,
    equality_tolerance,
    prints_shapes,
    ratio_or_nan,
)
from theodolite.measures.covariance._misalignment import misalignment_floor, total_misalignment
from theodolite.measures.covariance.matrices import (
    Eigenspaces,
    basis_scores,
    compressed,
    eigenspaces,
    haar_basis,
    positive_definite_factor,
    prepared,
    require_dimension,
    require_orthonormal,
    require_pair,
    require_symmetric_stack,
    symmetrized,
    whole_leading_eigenspaces,
)


@array_function
def random_basis_misalignment(
    weight_covariance: Float[Tensor, "*batch d d"],
    draws: int = 10,
    generator: torch.Generator | None = None,
) -> Float[Tensor, "*batch draws"]:
    """Misalignment with uniformly random bases: the chance level of misalignment.

    Range: [0, inf).
    Invariant, in distribution, to: rotating, scaling and inverting the weight covariance.
    Undefined: never.

    Args:
        weight_covariance: positive definite. All matrices of a stack (checkpoints) are compared
            with the same bases, so that their scores are comparable.
        draws: number of bases.
        generator: of the bases; torch's global one if not given.

    Returns:
        All draws, along the last axis; take their mean and their range.

    Raises:
        ShapeError: If the matrix is not square.
        DomainError: If it is not symmetric, finite and positive definite, or there are no draws.

    Examples:
        >>> weights = torch.diag(torch.tensor([1.0, 2.0, 4.0]))
        >>> scores = random_basis_misalignment(weights, generator=torch.Generator().manual_seed(0))
        >>> tuple(scores.shape), bool((scores > 0).all())
        ((10,), True)

    References:
        [maennel2020], Section 2.2, Figure 2. The paper does not say how many bases; ours: 10.
    """
    require_count(1, draws=draws)
    require_symmetric_stack(weight_covariance=weight_covariance)
    L = positive_definite_factor(weight_covariance, "weight_covariance", eps_of(weight_covariance))
    return random_scores(L, draws, generator)


def random_scores(L: Tensor, draws: int, generator: torch.Generator | None) -> Tensor:
    """Misalignment of ``B = L L^T`` with uniformly random bases, draws last."""
    size = L.shape[-1]
    whitener = torch.linalg.solve_triangular(L, torch.eye(size).to(L), upper=False)
    scores = []
    for _ in range(draws):  # one basis at a time: memory does not grow with the draws
        Q = haar_basis(size, generator).to(L)
        forms, inverse_forms = ((M @ Q).square().sum(-2) for M in (L.mT, whitener))
        scores.append(((forms * inverse_forms).sqrt() - 1).sum(-1).clamp(min=0))
    return torch.stack(scores, -1)


def subspace_size(filters: int, dimensions: int) -> int:
    """Number of leading data directions for which a layer has enough filters.

    This is the number of all directions if ``filters - 1 > dimensions``,
    otherwise a quarter of the number of filters.

    Args:
        filters: number of weight vectors of the layer.
        dimensions: length of a weight vector.

    Returns:
        The number of directions; 0 if there are fewer than four filters.

    Raises:
        DomainError: If a count is below 1.

    Examples:
        >>> subspace_size(256, 27), subspace_size(64, 576), subspace_size(3, 10)
        (27, 16, 0)

    References:
        [maennel2020], Figure 2, whose layers have enough filters. The number is ours.
    """
    require_count(1, filters=filters, dimensions=dimensions)
    return dimensions if filters - 1 > dimensions else min(dimensions, filters // 4)


@array_function
def relative_misalignment(
    data_covariance: Float[Tensor, "d d"],
    weight_covariance: Float[Tensor, "*batch d d"],
    bases: Float[Tensor, "draws k k"],
    *,
    subspace: int | None = None,
) -> Float[Tensor, "*batch"]:
    r"""Misalignment with the data, divided by the mean misalignment with the given random bases.

    .. math:: \frac{M(A, B)}{\frac1s \sum_j M(Q_j, B)}

    Below 1: the weights follow the directions of the data. About 1: they do not.

    Range: [0, inf).
    Invariant to: scaling either; inverting B.
    Undefined (``nan``): the weights are isotropic, every basis scores 0.

    Args:
        data_covariance: :math:`A`, symmetric.
        weight_covariance: :math:`B`, positive definite, or a stack.
        bases: :math:`Q_j`, e.g. from :func:`random_bases`, with ``subspace`` dimensions if that is
            given. Reuse them over training steps.
        subspace: compress both to so many leading eigenvectors of :math:`A` first.

    Returns:
        One number for every weight covariance; 1 is the mean over random bases.

    Raises:
        ShapeError: If the matrices are not square or differ in size.
        DomainError: As in :func:`misalignment`, or a basis is not orthonormal.

    Examples:
        >>> data = torch.diag(torch.tensor([1.0, 2.0]))
        >>> weights = torch.tensor([[1.0, 0.2], [0.2, 2.0]])
        >>> diagonal = torch.tensor([[[1.0, 1.0], [1.0, -1.0]]]) / 2**0.5
        >>> round(relative_misalignment(data, weights, bases=diagonal).item(), 4)
        0.1641

    References:
        [maennel2020], Figure 2: both curves; their quotient is ours.
    """
    require_axes(3, bases=bases)
    require_orthonormal(bases=bases)
    spaces, L = prepared(data_covariance, weight_covariance, subspace=subspace)
    require_dimension(L.shape[-1], bases=bases)
    stack = bases.reshape(len(bases), *(1 for _ in L.shape[:-2]), *bases.shape[1:])
    scores = basis_scores(stack, L).sum(-1).clamp(min=0)
    return _relative(total_misalignment(spaces, L), scores.mean(0), L, eps_of(weight_covariance))


@prints_shapes
@dataclass(frozen=True)
class MisalignmentComparison:
    """Misalignment, its chance level and its floor, all in the same subspace.

    Args:
        value: misalignment of the weights with the data.
        baseline: misalignment with every random basis.
        relative: ``value`` divided by the mean of ``baseline``.
        floor: expected misalignment of perfectly aligned filters, see :func:`misalignment_floor`.
        subspace: number of leading data directions; 0 if there are too few filters. All other
            numbers are then nan.
    """

    value: Float[Tensor, "*batch"]
    baseline: Float[Tensor, "*batch draws"]
    relative: Float[Tensor, "*batch"]
    floor: Float[Tensor, ""]
    subspace: int


@array_function
def compare_misalignment(
    data_covariance: Float[Tensor, "d d"],
    weight_covariance: Float[Tensor, "*batch d d"],
    filters: int,
    *,
    draws: int = 10,
    generator: torch.Generator | None = None,
) -> MisalignmentComparison:
    """Misalignment, random-basis baseline, their quotient and the sampling floor.

    With too few filters for all dimensions, all numbers are computed in the leading
    :func:`subspace_size` data directions. If this number would divide an eigenspace, fewer are
    used.

    Args:
        data_covariance: symmetric.
        weight_covariance: of a layer's filters (centred), or a stack of checkpoints.
        filters: number of weight vectors behind each weight covariance.
        draws: number of random bases.
        generator: of the random bases.

    Returns:
        All four numbers, and the size of the subspace they were taken in.

    Raises:
        ShapeError: If the matrices are not square or differ in size.
        DomainError: If a matrix is not symmetric or not finite, or the weight covariance not
            positive definite in the subspace.

    Examples:
        >>> data = torch.diag(torch.tensor([3.0, 2.0, 1.0]))
        >>> result = compare_misalignment(data, data @ data, filters=64)
        >>> result.subspace, round(result.floor.item(), 4), round(result.value.item(), 4)
        (3, 0.05, 0.0)

    References:
        [maennel2020], Figure 2; floor and quotient are ours.
    """
    require_pair(data_covariance, weight_covariance)
    require_count(1, draws=draws)
    spaces, B = _judged(data_covariance, symmetrized(weight_covariance), filters)
    if len(spaces.values) == 0:
        return _undefined_comparison(weight_covariance, draws)
    L = positive_definite_factor(B, "weight_covariance", eps_of(weight_covariance))
    scores = random_scores(L, draws, generator)
    return _comparison(spaces, L, scores, filters, eps_of(weight_covariance))


def _comparison(
    spaces: Eigenspaces, L: Tensor, baseline: Tensor, filters: int, eps: float
) -> MisalignmentComparison:
    value = total_misalignment(spaces, L)
    relative = _relative(value, baseline.mean(-1), L, eps)
    floor = misalignment_floor(filters, len(spaces.values)).to(value.device)
    return MisalignmentComparison(value, baseline, relative, floor, len(spaces.values))


@array_function
def compare_misalignment_along(
    directions: Eigen,
    weights: Float[Tensor, "f d"],
    bases: Callable[[int], Float[Tensor, "draws k k"]],
) -> MisalignmentComparison:
    """:func:`compare_misalignment` from leading data directions and the filters themselves.

    Neither covariance is formed: with d inputs and few filters it takes numbers of the order of
    ``filters * d``, not ``d * d``.

    Args:
        directions: leading eigenpairs of the data covariance, more than :func:`subspace_size`, or
            all of them.
        weights: filters as rows; their covariance is taken about their mean.
        bases: from a number of directions to random bases, e.g. of :func:`random_bases`.

    Returns:
        All four numbers, and the size of the subspace they were taken in.

    Raises:
        ShapeError: If the directions have another dimension, or there are too few of them.
        DomainError: If a weight is not finite, or the weight covariance is not positive definite in
            the subspace.

    Examples:
        >>> from theodolite.measures.covariance import random_bases
        >>> generator = torch.Generator().manual_seed(0)
        >>> weights = torch.randn(64, 3, generator=generator) * torch.tensor([3.0, 2.0, 1.0])
        >>> data = Eigen(torch.tensor([3.0, 2.0, 1.0]), torch.eye(3))
        >>> found = compare_misalignment_along(
        ...     data, weights, lambda k: random_bases(k, generator=generator)
        ... )
        >>> found.subspace, bool(found.relative < 0.5)
        (3, True)

    References:
        [maennel2020], Figure 2; floor and quotient are ours.
    """
    values, vectors = (double(part) for part in directions)
    require_axes(2, weights=weights)
    require_dimension(len(vectors), weights=weights)
    require_finite(weights=weights)
    require_function(bases=bases)
    filters, size = len(weights), subspace_size(len(weights), len(vectors))
    whole = size == len(vectors)
    if len(values) < (size if whole else size + 1):
        raise ShapeError(
            f"directions: expected {size if whole else size + 1} leading eigenpairs or more for "
            f"{filters} filters of {len(vectors)} numbers, got {len(values)}"
        )
    shown = size if whole else size + 1
    rtol = equality_tolerance(len(vectors), torch.finfo(torch.float64).eps)
    groups = eigenvalue_groups(values[:shown], rtol)
    if not whole:  # the pair beyond the last shows whether its eigenspace goes on
        groups = groups[:-1]
    kept = groups[-1].stop if groups else 0
    if kept == 0:
        return _undefined_comparison(values.new_zeros(1, 1), len(bases(1)))
    W = double(weights)
    W, basis = W - W.mean(0), vectors[:, :kept]
    if not whole:  # in the coordinates of the leading directions
        W, basis = W @ basis, torch.eye(kept).to(basis)
    B = W.mT @ W / filters
    spaces = Eigenspaces(values[:kept], basis, tuple(groups))
    L = positive_definite_factor(B, "weights", torch.finfo(torch.float64).eps)
    stack = bases(kept)
    require_axes(3, bases=stack)
    stack = stack.to(L)
    scores = basis_scores(stack, L).sum(-1).clamp(min=0)
    return _comparison(spaces, L, scores, filters, torch.finfo(torch.float64).eps)


def _judged(data_covariance: Tensor, B: Tensor, filters: int) -> tuple[Eigenspaces, Tensor]:
    """Eigenspaces and weights in the leading directions for which there are enough filters."""
    size = subspace_size(filters, len(data_covariance))
    if size == len(data_covariance):
        return eigenspaces(data_covariance), B
    return compressed(whole_leading_eigenspaces(data_covariance, size), B)


def _relative(value: Tensor, mean: Tensor, L: Tensor, eps: float) -> Tensor:
    """The quotient; nan if the chance level is only rounding (isotropic weights)."""
    return ratio_or_nan(value, mean, mean > 8 * L.shape[-1] ** 2 * eps)


def _undefined_comparison(weight_covariance: Tensor, draws: int) -> MisalignmentComparison:
    leading = weight_covariance.shape[:-2]
    nan = double(weight_covariance).new_full((*leading, draws), torch.nan)
    floor = double(weight_covariance).new_full((), torch.inf)
    return MisalignmentComparison(nan[..., 0], nan, nan[..., 0], floor, 0)
