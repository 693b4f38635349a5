"""Symmetric matrices as arguments, their eigenspaces; random bases and symmetries."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Integral

import torch
from jaxtyping import Float
from torch import Tensor
from torch.linalg import solve_triangular

from theodolite.checks import (
    require_between,
    require_count,
    require_finite,
    require_kind,
    require_nonempty,
    require_symmetric,
    symmetry_tolerance,
)
from theodolite.errors import DomainError, ShapeError
from theodolite.linalg import (
    array_function,
    checks_classes,
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
    """The symmetric part in float64; the check accepts asymmetry due to rounding."""
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
    except RuntimeError:  # a matrix did not converge: one by one, with fall-backs
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
            "filters than dimensions are the usual cause: pool runs, or pass subspace= where "
            "offered"
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
    """The given relative gap, or the gap that rounding of the dtype can cause."""
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


def haar_basis(size: int, generator: torch.Generator | None) -> Tensor:
    """One draw from O(size), in float64 on the generator's device (default: CPU)."""
    device = generator.device if generator is not None else torch.device("cpu")
    gaussian = torch.randn(size, size, dtype=torch.float64, device=device, generator=generator)
    q, r = torch.linalg.qr(gaussian)
    # Without the signs of R's diagonal the draw would follow the convention of the QR routine.
    return q * torch.where(r.diagonal() < 0, -1.0, 1.0)


@checks_classes
def random_bases(
    dimensions: int, draws: int = 10, generator: torch.Generator | None = None
) -> Float[Tensor, "draws d d"]:
    """Orthonormal bases of a space, uniformly distributed, to be reused over training steps.

    Args:
        dimensions: of the space.
        draws: number of bases.
        generator: of the draws; torch's global one if not given.

    Returns:
        Bases along the first axis; the columns of each are orthonormal.

    Raises:
        DomainError: If there are no dimensions or no draws.

    Examples:
        >>> bases = random_bases(3, draws=2, generator=torch.Generator().manual_seed(0))
        >>> tuple(bases.shape), round((bases.mT @ bases).diagonal(0, 1, 2).sum().item(), 4)
        ((2, 3, 3), 6.0)

    References:
        [maennel2020], Section 2.2, Figure 2: the random basis.
    """
    require_count(1, dimensions=dimensions, draws=draws)
    return torch.stack([haar_basis(dimensions, generator) for _ in range(draws)])


@array_function
def subspace_overlap(
    covariance_1: Float[Tensor, "d d"],
    covariance_2: Float[Tensor, "d d"],
    indices: Sequence[int],
) -> Float[Tensor, ""]:
    r"""Overlap of the subspaces that eigenvectors of the same ranks span in two matrices.

    .. math:: \frac{\|E_S^\top E_S'\|_F^2}{|S|}

    Range: [0, 1].
    Invariant to: swapping; rotating both; scaling either.
    Undefined (``nan``): the ranks cut an eigenspace of either matrix in two.

    Args:
        covariance_1: symmetric, with eigenvectors :math:`E` by decreasing eigenvalue.
        covariance_2: symmetric, with eigenvectors :math:`E'`.
        indices: :math:`S`, ranks counted from 0, e.g. a pair of close eigenvalues.

    Returns:
        A scalar: a 0-d tensor, or a 0-d array for NumPy input.

    Raises:
        ShapeError: If the matrices are not square or differ in size.
        DomainError: If a matrix is not symmetric or not finite, or a rank is out of range or twice.

    Examples:
        >>> first = torch.diag(torch.tensor([3.0, 2.0, 1.0]))
        >>> second = torch.diag(torch.tensor([2.0, 3.0, 1.0]))
        >>> [subspace_overlap(first, second, ranks).item() for ranks in ([0], [0, 1])]
        [0.0, 1.0]

    References:
        [maennel2020], Appendix D.1.
    """
    first, second = two_eigenspaces(covariance_1, covariance_2)
    require_kind((Iterable,), indices=indices)
    chosen = list(indices)
    size = len(covariance_1)
    valid = all(isinstance(i, Integral) and 0 <= int(i) < size for i in chosen)
    if not chosen or not valid or len(set(chosen)) < len(chosen):
        raise DomainError(
            f"indices: expected different ranks from 0 to {size - 1}, got {chosen}; "
            "rank 0 is the largest eigenvalue"
        )
    overlap = (first.vectors[:, chosen].mT @ second.vectors[:, chosen]).square().sum() / len(chosen)
    whole = all(_keeps_spaces_whole(spaces, chosen) for spaces in (first, second))
    return overlap.clamp(max=1.0) if whole else torch.full_like(overlap, torch.nan)


def two_eigenspaces(covariance_1: Tensor, covariance_2: Tensor) -> tuple[Eigenspaces, Eigenspaces]:
    """Eigenspaces of two symmetric matrices of the same size."""
    require_symmetric(covariance_1=covariance_1, covariance_2=covariance_2)
    require_dimension(len(covariance_1), covariance_2=covariance_2)
    return eigenspaces(covariance_1), eigenspaces(covariance_2)


def _keeps_spaces_whole(spaces: Eigenspaces, chosen: list[int]) -> bool:
    inside = torch.zeros_like(spaces.values)
    inside[chosen] = 1
    share = spaces.means(inside)
    return bool(((share == 0) | (share == 1)).all())


def quadratic_forms(V: Tensor, L: Tensor) -> tuple[Tensor, Tensor]:
    """``v_i^T B v_i`` and ``v_i^T B^-1 v_i`` of the columns of V, for ``B = L L^T``."""
    # Sums of squares keep every digit that the condition number leaves.
    return (L.mT @ V).square().sum(-2), solve_triangular(L, V, upper=False).square().sum(-2)


def basis_scores(basis: Tensor, L: Tensor) -> Tensor:
    """The summands for ``B = L L^T``, one for each basis vector."""
    forms, inverse_forms = quadratic_forms(basis.to(L), L)
    return (forms * inverse_forms).sqrt() - 1


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
    rtol: float | None = None,
) -> tuple[Eigenspaces, Tensor]:
    """Eigenspaces of A and the Cholesky factor of B, both in the subspace if one is given."""
    require_pair(data_covariance, weight_covariance)
    B = symmetrized(weight_covariance)
    if subspace is None:
        spaces = eigenspaces(data_covariance, rtol)
    else:
        spaces, B = compressed(leading_eigenspaces(data_covariance, subspace, rtol), B)
    return spaces, positive_definite_factor(B, "weight_covariance", eps_of(weight_covariance))


def require_pair(data_covariance: Tensor, weight_covariance: Tensor) -> None:
    """A symmetric matrix, and one or a stack of the same size."""
    require_symmetric(data_covariance=data_covariance)
    require_symmetric_stack(weight_covariance=weight_covariance)
    require_dimension(len(data_covariance), weight_covariance=weight_covariance)
