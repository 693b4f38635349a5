"""Eigenvectors of two samples or of weights and data: how well they agree."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from theodolite.checks import (
    require_axes,
    require_between,
    require_count,
    require_nonempty,
    require_nonnegative,
    require_symmetric,
)
from theodolite.linalg import (
    array_function,
    double,
    eps_of,
    equality_tolerance,
    nan_unless,
    prints_shapes,
    ratio_or_nan,
)
from theodolite.measures.covariance.matrices import eigenspaces, require_dimension, two_eigenspaces


@prints_shapes
@dataclass(frozen=True)
class EigenvectorOverlap:
    """Absolute inner products of eigenvectors; nan if equal eigenvalues make them arbitrary."""

    ranked: Float[Tensor, " d"]  # of equal rank
    best: Float[Tensor, " d"]  # with the eigenspace of the second matrix that fits best
    products: Float[Tensor, "d d"]  # rank in the first matrix, rank in the second


@array_function
def eigenvector_overlap(
    covariance_1: Float[Tensor, "d d"], covariance_2: Float[Tensor, "d d"]
) -> EigenvectorOverlap:
    r"""Overlaps of the eigenvectors of two symmetric matrices.

    .. math:: \text{products}_{ij} = |\langle e_i, e_j'\rangle|, \qquad
              \text{ranked}_i = |\langle e_i, e_i'\rangle|, \qquad
              \text{best}_i = \max_j |\langle e_i, e_j'\rangle|

    Eigenvalues that are nearly equal may swap rank, which gives a ranked overlap near 0 for vectors
    that are well determined: look at ``best`` too, and at :func:`subspace_overlap` of the plane,
    before concluding anything.

    Range: [0, 1].
    Invariant to: rotating both; scaling either.
    Undefined (``nan``): an eigenvalue is not simple, so that its eigenvector is not determined.

    Args:
        covariance_1: symmetric, with eigenvectors :math:`e_i` by decreasing eigenvalue.
        covariance_2: symmetric, with eigenvectors :math:`e_i'`.

    Raises:
        ShapeError: If the matrices are not square or differ in size.
        DomainError: If a matrix is not symmetric or not finite.

    Examples:
        >>> first = torch.diag(torch.tensor([3.0, 2.0, 1.0]))
        >>> second = torch.diag(torch.tensor([2.0, 3.0, 1.0]))
        >>> overlap = eigenvector_overlap(first, second)
        >>> overlap.ranked.tolist(), overlap.best.tolist()
        ([0.0, 0.0, 1.0], [1.0, 1.0, 1.0])

    References:
        [maennel2020], Appendix D.1; the best match is ours.
    """
    first, second = two_eigenspaces(covariance_1, covariance_2)
    products = (first.vectors.mT @ second.vectors).abs()
    simple_1, simple_2 = (spaces.spread(spaces.dimensions) == 1 for spaces in (first, second))
    shares = (products.square() @ second.membership).sqrt().amax(-1)
    nan = products.new_tensor(torch.nan)
    products = torch.where(simple_1[:, None] & simple_2[None, :], products, nan)
    return EigenvectorOverlap(
        products.diagonal().clamp(max=1.0),
        torch.where(simple_1, shares, nan).clamp(max=1.0),
        products.clamp(max=1.0),
    )


@array_function
def predicted_overlap_loss(
    eigenvalues: Float[Tensor, " d"], count_1: int, count_2: int
) -> Float[Tensor, " d"]:
    r"""Loss of overlap between eigenvectors of two samples that sampling alone predicts.

    .. math:: \mathbb E[1 - \langle e_i, e_i'\rangle^2] \approx \Big(\frac1{n_1} + \frac1{n_2}\Big)
              \sum_{j \ne i} \frac{\lambda_i \lambda_j}{(\lambda_i - \lambda_j)^2}

    First order, for Gaussian samples: a value that is not small only says that the vector is not
    determined.

    Range: [0, inf]; infinite where an eigenvalue is not simple.
    Invariant to: scaling the eigenvalues.
    Undefined: never; where it is infinite, the gradient is zero.

    Args:
        eigenvalues: :math:`\lambda_i`, of the true covariance or the best estimate of it.
        count_1: :math:`n_1`, size of the first sample.
        count_2: :math:`n_2`, size of the second sample.

    Raises:
        ShapeError: If the eigenvalues are not a vector.
        DomainError: If an eigenvalue is negative or not finite, or a sample is empty.

    Examples:
        >>> round(predicted_overlap_loss(torch.tensor([2.0, 1.0]), 100, 100)[0].item(), 4)
        0.04

    References:
        [maennel2020], Appendix D.1 and D.3; the formula is ours.
    """
    require_axes(1, eigenvalues=eigenvalues)
    require_nonempty(eigenvalues=eigenvalues)
    require_nonnegative(eigenvalues=eigenvalues)
    require_count(1, count_1=count_1, count_2=count_2)
    values = double(eigenvalues)
    gaps = values[:, None] - values[None, :]
    others = ~torch.eye(len(values), dtype=torch.bool, device=values.device)
    tolerance = equality_tolerance(len(values), eps_of(eigenvalues)) * values.detach().max()
    tied = (gaps.detach().abs() <= tolerance) & others
    safe = torch.where(others & ~tied, gaps, torch.ones_like(gaps))
    shares = torch.where(others & ~tied, values[:, None] / safe * (values[None, :] / safe), 0.0)
    loss = (1 / count_1 + 1 / count_2) * shares.sum(-1)
    return torch.where(tied.any(-1), torch.full_like(loss, torch.inf), loss)


@prints_shapes
@dataclass(frozen=True)
class EigenvectorMatch:
    """One row per leading weight eigenvector; columns count data eigenspaces, largest first.

    Where all data eigenvalues are simple, data eigenspaces are data eigenvectors. A weight
    eigenvector that equal eigenvalues leave open has nan overlaps and no partners.
    """

    partners: tuple[Int[Tensor, " _"], ...]  # data eigenspaces above the threshold, best first
    counts: Int[Tensor, " k"]  # how many partners; 0: no match
    overlaps: Float[Tensor, "k r"]  # length of the part of the vector in each data eigenspace
    quality: Float[Tensor, " k"]  # overlap with the combination of the partners
    combinations: Float[Tensor, "k d"]  # weighted sum of the partners, unit length; nan if none
    weight_eigenvalues: Float[Tensor, " k"]
    data_eigenvalues: Float[Tensor, " r"]


@array_function
def match_eigenvectors(
    data_covariance: Float[Tensor, "d d"],
    weight_covariance: Float[Tensor, "d d"],
    *,
    count: int = 10,
    threshold: float = 0.4,
) -> EigenvectorMatch:
    r"""Match the leading weight eigenvectors to data eigenvectors by their overlap.

    .. math:: J = \{j : |\langle v^x_j, v^w\rangle| > t\}, \qquad
              \text{quality} = \Big( \sum_{j \in J} \langle v^x_j, v^w\rangle^2 \Big)^{1/2}

    A vector has at most :math:`\lceil 1/t^2 \rceil - 1` partners, 6 at the default threshold.
    A degenerate data eigenspace counts as one partner, with the length of the vector's part in it.

    Range: [0, 1], the quality.
    Invariant to: rotating both; scaling either.
    Undefined (``nan``): a weight eigenvalue is not simple, so that its vector is not determined.

    Args:
        data_covariance: symmetric, with eigenvectors :math:`v^x_j`.
        weight_covariance: symmetric, with eigenvectors :math:`v^w`.
        count: number of leading weight eigenvectors, at most all of them.
        threshold: :math:`t`; partners overlap by strictly more.

    Raises:
        ShapeError: If the matrices are not square or differ in size.
        DomainError: If a matrix is not symmetric or not finite, or the threshold not in (0, 1).

    Examples:
        >>> data = torch.diag(torch.tensor([3.0, 2.0, 1.0]))
        >>> weights = torch.tensor([[2.0, 1.0, 0.0], [1.0, 2.0, 0.0], [0.0, 0.0, 0.5]])
        >>> match = match_eigenvectors(data, weights)
        >>> match.counts.tolist(), match.quality.round(decimals=4).tolist()
        ([2, 2, 1], [1.0, 1.0, 1.0])

    References:
        [maennel2020], Figure 3. Differs from paper: absolute overlaps (eigenvectors have no sign);
        the combination is scaled to unit length.
    """
    require_symmetric(data_covariance=data_covariance, weight_covariance=weight_covariance)
    require_dimension(len(data_covariance), weight_covariance=weight_covariance)
    require_count(1, count=count)
    require_between(0.0, 1.0, open_low=True, open_high=True, threshold=threshold)
    data, weights = eigenspaces(data_covariance), eigenspaces(weight_covariance)
    leading = weights.vectors[:, :count]
    products = leading.mT @ data.vectors
    simple = (weights.spread(weights.dimensions) == 1)[:count]
    overlaps = nan_unless(
        simple[:, None], (products.square() @ data.membership).sqrt().clamp(max=1.0)
    )
    chosen = overlaps > threshold
    quality = torch.where(chosen, overlaps, 0.0).square().sum(-1).sqrt().clamp(max=1.0)
    sums = torch.where(data.spread(chosen), products, 0.0) @ data.vectors.mT
    counts = chosen.sum(-1)
    return EigenvectorMatch(
        partners=tuple(
            row.argsort(descending=True)[:number]
            for row, number in zip(overlaps.nan_to_num(nan=-1.0), counts.tolist(), strict=True)
        ),
        counts=counts,
        overlaps=overlaps,
        quality=nan_unless(simple, quality),
        combinations=ratio_or_nan(sums, quality[:, None]),
        weight_eigenvalues=weights.values[:count],
        data_eigenvalues=data.means(data.values),
    )
