"""The group of rotations that leave a covariance as it is: draws, and the average over it."""

import torch
from jaxtyping import Float
from torch import Tensor

from theodolite.checks import require_count, require_finite, require_symmetric
from theodolite.linalg import array_function, double
from theodolite.measures.covariance._eigenspaces import Eigenspaces, eigenspaces
from theodolite.measures.covariance._haar import haar_basis
from theodolite.measures.covariance._validation import require_dimension, require_square_stack

__all__ = ["random_symmetry", "symmetrize"]


@array_function
def random_symmetry(
    data_covariance: Float[Tensor, "d d"],
    draws: int | None = None,
    generator: torch.Generator | None = None,
) -> Float[Tensor, "*draws d d"]:
    r"""Orthogonal matrices that commute with a covariance, uniformly distributed.

    .. math:: G \in \{G \in O(d) : G^\top \Sigma_x G = \Sigma_x\}
              = O(d_1) \times \dots \times O(d_r)

    Args:
        data_covariance: :math:`\Sigma_x`, symmetric; only its eigenspaces matter.
        draws: number of matrices; one without a leading axis if not given.
        generator: of the draws; torch's global one if not given.

    Raises:
        ShapeError: If the covariance is not square.
        DomainError: If it is not symmetric or not finite, or if there are no draws.

    Example:
        >>> symmetry = random_symmetry(torch.diag(torch.tensor([2.0, 1.0])))
        >>> symmetry.abs().round(decimals=4).tolist()  # signs are all the freedom there is
        [[1.0, 0.0], [0.0, 1.0]]

    References:
        [maennel2020], Appendix C, Claim 1.
    """
    require_symmetric(data_covariance=data_covariance)
    spaces = eigenspaces(data_covariance)
    if draws is None:
        return _group_element(spaces, generator)
    require_count(1, draws=draws)
    return torch.stack([_group_element(spaces, generator) for _ in range(draws)])


@array_function
def symmetrize(
    matrix: Float[Tensor, "*batch d d"], data_covariance: Float[Tensor, "d d"]
) -> Float[Tensor, "*batch d d"]:
    r"""Average of a matrix over the symmetries of a covariance: the aligned part of the matrix.

    .. math:: \mathbb E_G\, G S G^\top
              = \sum_i \frac{\operatorname{tr}(S|_{V_i})}{d_i} P_i

    Linear in the matrix, and differentiable with respect to it.

    Args:
        matrix: :math:`S`, e.g. a weight covariance, or a stack of them.
        data_covariance: :math:`\Sigma_x`, whose eigenspaces are :math:`V_i`.

    Raises:
        ShapeError: If the matrices are not square or differ in size.
        DomainError: If the covariance is not symmetric, or an entry is not finite.

    Example:
        >>> matrix = torch.tensor([[1.0, 0.5], [0.5, 3.0]])
        >>> symmetrize(matrix, torch.eye(2)).tolist()
        [[2.0, 0.0], [0.0, 2.0]]

    References:
        [maennel2020], Appendix C, Claim 1.
    """
    require_symmetric(data_covariance=data_covariance)
    require_square_stack(matrix=matrix)
    require_finite(matrix=matrix)
    require_dimension(len(data_covariance), matrix=matrix)
    spaces = eigenspaces(data_covariance)
    V = spaces.vectors
    means = spaces.spread(spaces.means((V * (double(matrix) @ V)).sum(-2)))
    return (V * means[..., None, :]) @ V.mT


def _group_element(spaces: Eigenspaces, generator: torch.Generator | None) -> Tensor:
    V = spaces.vectors
    turned = [
        V[:, group] @ haar_basis(group.stop - group.start, generator).to(V)
        for group in spaces.groups
    ]
    return torch.cat(turned, 1) @ V.mT
