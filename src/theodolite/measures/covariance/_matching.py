"""Which data eigenvectors a weight eigenvector is made of (Figure 3 of the paper)."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from theodolite.checks import require_between, require_count, require_symmetric
from theodolite.linalg import array_function, nan_unless, ratio_or_nan
from theodolite.measures.covariance._eigenspaces import eigenspaces
from theodolite.measures.covariance._validation import require_dimension

__all__ = ["EigenvectorMatch", "match_eigenvectors"]


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

    Example:
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
