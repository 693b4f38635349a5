"""Symmetries of a covariance, and whether a training commutes with rotations."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from theodolite.checks import (
    require_axes,
    require_count,
    require_finite,
    require_nonempty,
    require_symmetric,
)
from theodolite.errors import ShapeError
from theodolite.linalg import array_function, double, prints_shapes
from theodolite.measures.covariance.matrices import (
    Eigenspaces,
    eigenspaces,
    haar_basis,
    require_dimension,
    require_orthonormal,
    require_square_stack,
)

Train = Callable[[Tensor, Tensor], Sequence[Tensor]]


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

    Examples:
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

    Examples:
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


@prints_shapes
@dataclass(frozen=True)
class EquivarianceDeviation:
    """Largest absolute differences between the rotated run and the plain run, rotated."""

    weights: Float[Tensor, ""]  # of the first layer
    others: Float[Tensor, ""]  # of all that must not change: biases, later layers, losses


@array_function
def rotation_equivariance_check(
    train: Train,
    weights: Float[Tensor, "f d"],
    inputs: Float[Tensor, "n d"],
    rotation: Float[Tensor, "d d"] | None = None,
    generator: torch.Generator | None = None,
) -> EquivarianceDeviation:
    r"""Train twice, once in a rotated input space, and compare.

    Where a step of the optimiser commutes with rotations, training from
    :math:`(W G^\top, X G^\top)` ends at :math:`W_T G^\top` with identical biases, later layers and
    losses. Gradient descent, momentum, weight decay: yes. Adam, RMSProp, an L1 penalty: no, unless
    :math:`G` is a signed permutation.

    Args:
        train: maps first-layer weights and inputs to ``(weights, *others)`` after training. It must
            use the same other parameters, labels and order of batches in every call.
        weights: :math:`W`, initial first-layer weights.
        inputs: :math:`X`.
        rotation: :math:`G`, orthogonal; drawn uniformly if not given.
        generator: of that draw.

    Raises:
        ShapeError: If weights, inputs and rotation differ in dimension, or the two runs of
            ``train`` in what they return.
        DomainError: If the rotation is not orthogonal, or an entry is not finite.

    Examples:
        >>> def train(w, x):
        ...     for _ in range(5):  # gradient descent on the mean squared output
        ...         w = w - 0.1 * (x @ w.T).T @ x / len(x)
        ...     return (w,)
        >>> generator = torch.Generator().manual_seed(0)
        >>> w, x = (torch.randn(4, 3, generator=generator, dtype=torch.float64) for _ in range(2))
        >>> bool(rotation_equivariance_check(train, w, x, generator=generator).weights < 1e-12)
        True

    References:
        [maennel2020], Appendix C, Claim 2. Differs from paper: coordinate-wise adaptive methods
        (Adam, AdaGrad) are not equivariant, which this check shows.
    """
    require_axes(2, weights=weights, inputs=inputs)
    require_nonempty(weights=weights, inputs=inputs)
    require_finite(weights=weights, inputs=inputs)
    require_dimension(weights.shape[1], inputs=inputs)
    if rotation is None:
        rotation = haar_basis(weights.shape[1], generator).to(weights.device)
    require_orthonormal(rotation=rotation)
    require_dimension(weights.shape[1], rotation=rotation)
    turn = double(rotation).mT
    final, *others = train(weights, inputs)
    rotated_final, *rotated_others = train(_turned(weights, turn), _turned(inputs, turn))
    return EquivarianceDeviation(
        _largest_difference([rotated_final], [double(final) @ turn]),
        _largest_difference(rotated_others, others),
    )


def _turned(rows: Tensor, turn: Tensor) -> Tensor:
    return (double(rows) @ turn).to(rows.dtype)


def _largest_difference(first: Sequence[Tensor], second: Sequence[Tensor]) -> Tensor:
    if [part.shape for part in first] != [part.shape for part in second]:
        raise ShapeError(
            "train: expected results of the same shapes in both runs, got "
            f"{[tuple(part.shape) for part in first]} and {[tuple(part.shape) for part in second]}"
        )
    differences = [
        (double(one) - double(two)).abs().max() for one, two in zip(first, second, strict=True)
    ]
    return torch.stack(differences).max() if differences else torch.zeros((), dtype=torch.float64)
