"""Symmetric matrices as arguments, their eigenspaces; random bases and symmetries."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from theodolite.checks import (
    require_axes,
    require_between,
    require_count,
    require_finite,
    require_nonempty,
    require_symmetric,
    symmetry_tolerance,
)
from theodolite.errors import DomainError, ShapeError
from theodolite.linalg import (
    array_function,
    double,
    eigenvalue_groups,
    eps_of,
    equality_tolerance,
    prints_shapes,
    symmetric_eigen,
    symmetric_eigenvalues,
    top_eigen,
)


def symmetrized(matrix: Tensor) -> Tensor:
    """In float64, without the asymmetry that the check has put down to rounding."""
    wide = double(matrix)
    return (wide + wide.mT) / 2


def require_square_stack(**tensors: Tensor) -> None:
    """The last two axes of each tensor are those of a non-empty square matrix."""
    for name, tensor in tensors.items():
        if tensor.ndim < 2 or tensor.shape[-1] != tensor.shape[-2]:
            raise ShapeError(
                f"{name}: expected a square matrix or a stack of them, got shape "
                f"{tuple(tensor.shape)}; a covariance of rows is centered.T @ centered / n"
            )
    require_nonempty(**tensors)


def require_symmetric_stack(**tensors: Tensor) -> None:
    """Each matrix is square, finite and symmetric up to the rounding of its dtype."""
    require_square_stack(**tensors)
    require_finite(**tensors)
    for name, tensor in tensors.items():
        values = tensor.detach()
        asymmetry = (values - values.mT).abs().amax((-2, -1))
        scale = values.abs().amax((-2, -1))
        if bool((asymmetry > symmetry_tolerance(values.dtype) * scale).any()):
            worst = (asymmetry / scale.clamp(min=torch.finfo(scale.dtype).tiny)).max().item()
            raise DomainError(
                f"{name}: expected a symmetric matrix, got a relative asymmetry of {worst:.1e}; "
                "if it is rounding, pass (m + m.mT) / 2"
            )


def require_dimension(dimension: int, **tensors: Tensor) -> None:
    """The last axis of each tensor has the given length."""
    for name, tensor in tensors.items():
        if tensor.shape[-1] != dimension:
            raise ShapeError(
                f"{name}: expected dimension {dimension} as in the other argument, got shape "
                f"{tuple(tensor.shape)}; patches and filters must be flattened alike"
            )


def require_orthonormal(**bases: Tensor) -> None:
    """The columns of each (stack of) square matrix are orthonormal up to rounding."""
    require_square_stack(**bases)
    require_finite(**bases)
    for name, basis in bases.items():
        values = double(basis.detach())
        size = values.shape[-1]
        defect = (values.mT @ values - torch.eye(size).to(values)).abs().max().item()
        if defect > max(1e-8, 8 * size * eps_of(basis)):
            raise DomainError(
                f"{name}: expected orthonormal columns, got a deviation of {defect:.1e}; "
                "orthonormalise them, e.g. with torch.linalg.qr(basis).Q"
            )


def stacked_eigenvalues(matrices: Tensor) -> Tensor:
    """Eigenvalues of each symmetric matrix of a stack, largest first; differentiable at ties."""
    if matrices.ndim == 2:
        return symmetric_eigenvalues(matrices)
    try:
        return torch.linalg.eigvalsh(matrices).flip(-1)
    except RuntimeError:  # one matrix of the stack did not converge: its fall-backs find out which
        pass
    size = matrices.shape[-1]
    rows = [symmetric_eigenvalues(matrix) for matrix in matrices.reshape(-1, size, size)]
    return torch.stack(rows).reshape(matrices.shape[:-1])


def positive_definite_factor(matrix: Tensor, name: str, eps: float) -> Tensor:
    """Lower Cholesky factor in float64 of symmetric matrices that are definite beyond rounding.

    Raises:
        DomainError: If the smallest eigenvalue is at most ``d * eps`` times the largest.
    """
    wide = symmetrized(matrix)
    values = stacked_eigenvalues(wide.detach())
    low, high = values[..., -1], values[..., 0]
    factor, failed = torch.linalg.cholesky_ex(wide)
    singular = (low <= wide.shape[-1] * eps * high) | (failed != 0)
    if bool(singular.any()):
        first = int(singular.flatten().nonzero()[0])
        raise DomainError(
            f"{name}: expected a positive definite matrix, got eigenvalues from "
            f"{low.flatten()[first].item():.3g} to {high.flatten()[first].item():.3g}; fewer "
            "filters than dimensions are the usual cause: pool runs, or pass subspace= or ridge= "
            "where offered"
        )
    return factor


@prints_shapes
@dataclass(frozen=True)
class Eigenspaces:
    """Sorted eigenpairs in float64 and the runs of columns that share an eigenspace."""

    values: Tensor  # (k,), decreasing
    vectors: Tensor  # (d, k)
    groups: tuple[slice, ...]

    @property
    def dimensions(self) -> Tensor:
        """Dimension of each eigenspace, (r,)."""
        sizes = [group.stop - group.start for group in self.groups]
        return torch.tensor(sizes, device=self.values.device)

    @property
    def owner(self) -> Tensor:
        """Number of the eigenspace that each column belongs to, (k,)."""
        dimensions = self.dimensions
        return torch.arange(len(dimensions), device=dimensions.device).repeat_interleave(dimensions)

    @property
    def membership(self) -> Tensor:
        """One-hot columns, (k, r): ``x @ membership`` sums over each eigenspace."""
        return torch.nn.functional.one_hot(self.owner, len(self.groups)).to(self.values)

    def spread(self, per_space: Tensor) -> Tensor:
        """One number per eigenspace, (..., r), to one per column, (..., k)."""
        return per_space[..., self.owner]

    def means(self, per_column: Tensor) -> Tensor:
        """Average of one number per column, (..., k), over each eigenspace, (..., r)."""
        return per_column @ self.membership / self.dimensions


def grouping_tolerance(matrix: Tensor, rtol: float | None) -> float:
    """The given relative gap, or the one that rounding in the matrix's dtype explains."""
    if rtol is None:
        return equality_tolerance(len(matrix), eps_of(matrix))
    require_between(0.0, 1.0, rtol=rtol)
    return rtol


def eigenspaces(matrix: Tensor, rtol: float | None = None) -> Eigenspaces:
    """All eigenspaces. No gradient: eigenspaces are not continuous where eigenvalues meet."""
    values, vectors = symmetric_eigen(symmetrized(matrix.detach()))
    groups = eigenvalue_groups(values, grouping_tolerance(matrix, rtol))
    return Eigenspaces(values, vectors, tuple(groups))


def leading_eigenspaces(matrix: Tensor, count: int, rtol: float | None = None) -> Eigenspaces:
    """The ``count`` leading eigenvectors, if they are determined by the matrix.

    Raises:
        DomainError: If ``count`` exceeds the dimension or cuts an eigenspace in two.
    """
    require_count(1, subspace=count)
    if count > len(matrix):
        raise DomainError(f"subspace: expected at most {len(matrix)} directions, got {count}")
    spaces = whole_leading_eigenspaces(matrix, count, rtol)
    if len(spaces.values) < count:
        raise DomainError(
            f"subspace: expected a number of directions that keeps equal eigenvalues together, got "
            f"{count}, but eigenvalues {len(spaces.values) + 1} to {count + 1} (at least) of the "
            f"data covariance are equal up to rounding; pass {len(spaces.values) or 'a larger one'}"
        )
    return spaces


def whole_leading_eigenspaces(matrix: Tensor, count: int, rtol: float | None = None) -> Eigenspaces:
    """The leading eigenspaces of total dimension at most ``count``; possibly none."""
    values, vectors = top_eigen(symmetrized(matrix.detach()), min(count + 1, len(matrix)))
    groups = eigenvalue_groups(values, grouping_tolerance(matrix, rtol))
    if len(values) > count:  # the pair beyond the last shows whether its eigenspace goes on
        groups = groups[:-1]
    kept = groups[-1].stop if groups else 0
    return Eigenspaces(values[:kept], vectors[:, :kept], tuple(groups))


Train = Callable[[Tensor, Tensor], Sequence[Tensor]]


def haar_basis(size: int, generator: torch.Generator | None) -> Tensor:
    """One draw from O(size), in float64 on the generator's device (default: CPU)."""
    device = generator.device if generator is not None else torch.device("cpu")
    gaussian = torch.randn(size, size, dtype=torch.float64, device=device, generator=generator)
    q, r = torch.linalg.qr(gaussian)
    # Without the signs of R's diagonal the draw would follow the convention of the QR routine.
    return q * torch.where(r.diagonal() < 0, -1.0, 1.0)


def random_bases(
    dimensions: int, draws: int = 10, generator: torch.Generator | None = None
) -> Float[Tensor, "draws d d"]:
    """Orthonormal bases of a space, uniformly distributed, to be reused over training steps.

    Args:
        dimensions: of the space.
        draws: number of bases.
        generator: of the draws; torch's global one if not given.

    Raises:
        DomainError: If there are no dimensions or no draws.

    Example:
        >>> bases = random_bases(3, draws=2, generator=torch.Generator().manual_seed(0))
        >>> tuple(bases.shape), round((bases.mT @ bases).diagonal(0, 1, 2).sum().item(), 4)
        ((2, 3, 3), 6.0)

    References:
        [maennel2020], Section 2.2, Figure 2: the random basis.
    """
    require_count(1, dimensions=dimensions, draws=draws)
    return torch.stack([haar_basis(dimensions, generator) for _ in range(draws)])


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

    Example:
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
