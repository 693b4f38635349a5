"""Targets in the left singular basis of features, for alignment and convergence."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from theodolite.linalg.arrays import double, eps_of, prints_shapes
from theodolite.linalg.moments import TriangularState, row_chunks
from theodolite.linalg.spectra import rank_tolerance, symmetric_eigen, thin_svd

Route = Literal["svd", "gram", "dual", "qr"]

_DOUBLE_EPS = torch.finfo(torch.float64).eps
_SMALLEST_BLOCK = 256  # columns; narrower products do not use the machine fully
_GRAM_FLOOR = 3e-7  # times the largest singular value: float64 Gram matrices resolve nothing below
# Below this share of the largest singular value a float64 Gram matrix mixes directions: the error
# of their label mass is above 1e-9.
GRAM_ACCURATE_ABOVE = 1e-4


@prints_shapes
@dataclass(frozen=True)
class LabelProjections:
    r"""Singular values of features and the targets' coordinates on their left singular vectors.

    Let :math:`\Phi = U\Sigma V^\top` have rank :math:`r`, and let :math:`y` be the targets. Several
    sets of targets, such as permutations, have a last axis of their own. A Gram matrix squares the
    condition number, so small singular values are lost in its rounding.

    Args:
        singular_values: the positive :math:`\sigma_i`, largest first.
        coefficients: coordinates :math:`c_i = u_i^\top y` of each target column.
        residual: mass :math:`\|y\|^2 - \sum_i c_i^2` outside the range of the features.
        count: number of examples.
        route: method of computation: ``"svd"``, ``"gram"``, ``"dual"`` or ``"qr"``.
        resolved_above: smaller singular values are lost, and their mass counts as residual. Zero
            means that all are resolved, except those that count as zero.
    """

    singular_values: Float[Tensor, " r"]
    coefficients: Float[Tensor, "r c *sets"]
    residual: Float[Tensor, "c *sets"]
    count: int
    route: Route = "svd"
    resolved_above: float = 0.0

    @property
    def mass(self) -> Float[Tensor, "r c *sets"]:
        """Squared coefficients: the label mass on each direction, per target column."""
        return self.coefficients**2  # also for NumPy arrays, which have no .square()

    @property
    def energy(self) -> Float[Tensor, "c *sets"]:
        """Squared norm of each target column, inside and outside of the range."""
        return self.mass.sum(0) + self.residual


def target_columns(
    targets: Shaped[Tensor, "n *c"], num_classes: int | None
) -> Float[Tensor, "n k"]:
    """Targets as float64 columns: a vector is one column, class labels are one-hot.

    Examples:
        >>> target_columns(torch.tensor([0, 2]), num_classes=3).tolist()
        [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
    """
    if num_classes is not None:
        return torch.nn.functional.one_hot(targets.long(), num_classes).double()
    wide = double(targets)
    return wide.unsqueeze(1) if wide.ndim == 1 else wide


def svd_projections(
    features: Float[Tensor, "n d"], targets: Float[Tensor, "n c"], eps: float | None = None
) -> LabelProjections:
    """Projections by the thin singular value decomposition: accurate to rounding.

    Singular values within ``rank_tolerance`` of zero count as zero; ``eps`` is the rounding of the
    original dtype of the features.

    Examples:
        >>> p = svd_projections(torch.diag(torch.tensor([3.0, 2.0])), torch.ones(2, 1))
        >>> p.singular_values.tolist(), p.coefficients.abs().flatten().tolist()
        ([3.0, 2.0], [1.0, 1.0])
    """
    epsilon = eps_of(features) if eps is None else eps
    return _from_factor(double(features), double(targets), rank_tolerance(features.shape, epsilon))


def qr_projections(
    features: Float[Tensor, "n d"],
    targets: Shaped[Tensor, "n *c"],
    num_classes: int | None = None,
) -> LabelProjections:
    """Projections with the accuracy of the SVD, in one pass with O(d²) memory."""
    width = features.shape[1]
    state: TriangularState | None = None
    for rows, labels in row_chunks(features, targets):
        both = torch.cat([double(rows), target_columns(labels, num_classes)], dim=1)
        state = TriangularState.of(both) if state is None else state.extend(both)
    assert state is not None  # the caller checked that features have rows
    return projections_from_triangle(state, width, len(features), eps_of(features))


def projections_from_triangle(
    state: TriangularState, width: int, count: int, eps: float = _DOUBLE_EPS
) -> LabelProjections:
    r"""Projections from the triangle of the rows ``[features, targets]``.

    .. math:: R = [R_\Phi, z], \qquad A(\Phi, y, \tau) = A(R_\Phi, z, \tau)

    Args:
        state: triangle of all rows, features first.
        width: number of feature columns.
        count: number of rows in the state.
        eps: rounding of the original dtype of the features.

    Returns:
        The projections of all rows.
    """
    factor, targets = state.split(width)
    return _from_factor(factor, targets, rank_tolerance((count, width), eps), count, "qr")


class GramSums(NamedTuple):
    r""":math:`\Phi^\top\Phi`, :math:`\Phi^\top Y` and the squared norm of each target column."""

    gram: Float[Tensor, "d d"]
    cross: Float[Tensor, "d c"]
    energy: Float[Tensor, " c"]


def gram_sums(
    features: Float[Tensor, "n d"],
    targets: Shaped[Tensor, "n *c"],
    num_classes: int | None = None,
) -> GramSums:
    """Sums over chunks of rows in float64: O(n d²) time, O(d²) memory beyond the input."""
    size = features.shape[1]
    columns = target_columns(targets[:1], num_classes).shape[1]
    chunks = row_chunks(features, targets)
    # One product of features and targets; a product with a few columns alone is slow.
    both = double(features[:0]).new_empty(len(chunks[0][0]), columns + size)
    sums, energy = both.new_zeros(size, columns + size), both.new_zeros(columns)
    for rows, labels in chunks:
        wide = both[: len(rows)]
        wide[:, :columns] = target_columns(labels, num_classes)
        wide[:, columns:] = rows
        energy += wide[:, :columns].square().sum(0)
        _add_lower_products(sums, wide)
    lower = sums[:, columns:]
    return GramSums(lower.tril() + lower.tril(-1).mT, sums[:, :columns], energy)


def _add_lower_products(sums: Tensor, wide: Tensor) -> None:
    """Only blocks on and below the diagonal: five eighths of the work for four blocks."""
    size = len(sums)
    columns = wide.shape[1] - size
    step = max(_SMALLEST_BLOCK, -(-size // 4))
    for low in range(0, size, step):
        high = min(low + step, size)
        left, right = wide[:, columns + low : columns + high], wide[:, : columns + high]
        sums[low:high, : columns + high].addmm_(left.mT, right)


def dual_gram(features: Float[Tensor, "n d"]) -> Float[Tensor, "n n"]:
    r""":math:`\Phi\Phi^\top` in float64, over blocks of features, for n < d. O(n² d).

    Examples:
        >>> dual_gram(torch.tensor([[1.0, 2.0], [0.0, 1.0]])).tolist()
        [[5.0, 2.0], [2.0, 1.0]]
    """
    kernel = double(features[:0]).new_zeros(len(features), len(features))
    for (block,) in row_chunks(features.mT):
        wide = double(block)
        kernel.addmm_(wide.mT, wide)
    return kernel


def projections_from_kernel(
    kernel: Float[Tensor, "n n"],
    targets: Float[Tensor, "n c"],
    width: int = 1,
    eps: float | None = None,
) -> LabelProjections:
    r"""Projections from :math:`\Phi\Phi^\top`, whose eigenvectors are the :math:`u_i`.

    Args:
        kernel: n x n kernel of the examples; may be a tangent kernel.
        targets: target columns.
        width: number of features behind the kernel.
        eps: rounding of the original dtype of the features; by default that of the kernel.

    Returns:
        The projections.

    Examples:
        >>> p = projections_from_kernel(torch.diag(torch.tensor([9.0, 4.0])), torch.ones(2, 1))
        >>> p.singular_values.tolist()
        [3.0, 2.0]
    """
    values, vectors = symmetric_eigen(kernel)
    noise = eps_of(kernel) if eps is None else eps
    kept, limit = _resolved(values, (len(kernel), width), noise, _nonzero_rows(kernel))
    left, y = vectors[:, kept], double(targets)
    coefficients = left.mT @ y
    residual = (y - left @ coefficients).square().sum(0)
    sigma = values[kept].sqrt()
    return LabelProjections(sigma, coefficients, residual, len(kernel), "dual", limit)


def projections_from_gram(
    gram: Float[Tensor, "d d"],
    cross: Float[Tensor, "d c"],
    energy: Float[Tensor, " c"],
    count: int,
    eps: float | None = None,
) -> LabelProjections:
    r"""Projections from :math:`\Phi^\top\Phi`, :math:`\Phi^\top Y` and the squared column norms.

    .. math:: \sigma_i = \sqrt{\lambda_i}, \qquad c_i = v_i^\top\Phi^\top y / \sigma_i

    Singular values below :math:`\sqrt{d\,\varepsilon}\,\sigma_1` are rounding of the Gram matrix
    and count as zero. Their mass is added to the residual.

    Args:
        gram: :math:`\Phi^\top\Phi`.
        cross: :math:`\Phi^\top Y`.
        energy: squared norm of each target column.
        count: number of rows behind the sums.
        eps: rounding of the original dtype of the features; by default that of the Gram matrix.

    Returns:
        The projections.

    Examples:
        >>> features, y = torch.tensor([[2.0], [0.0]]), torch.tensor([[1.0], [1.0]])
        >>> energy = y.square().sum(0)
        >>> p = projections_from_gram(features.T @ features, features.T @ y, energy, count=2)
        >>> p.singular_values.tolist(), p.residual.tolist()
        ([2.0], [1.0])
    """
    values, vectors = symmetric_eigen(gram)
    noise = eps_of(gram, cross) if eps is None else eps
    kept, limit = _resolved(values, (count, len(gram)), noise, min(count, _nonzero_rows(gram)))
    sigma = values[kept].sqrt()
    coefficients = vectors[:, kept].mT @ double(cross) / sigma.unsqueeze(1)
    residual = (double(energy) - coefficients.square().sum(0)).clamp(min=0)
    return LabelProjections(sigma, coefficients, residual, count, "gram", limit)


def gram_limit(eigenvalues: Float[Tensor, " d"]) -> Float[Tensor, ""]:
    """The smallest singular value of features that their float64 Gram matrix resolves."""
    share = max(_GRAM_FLOOR, (len(eigenvalues) * _DOUBLE_EPS) ** 0.5)
    return share * eigenvalues.max().clamp(min=0).sqrt()


def _nonzero_rows(gram: Tensor) -> int:
    """Number of nonzero rows or columns of the features, an upper bound of the rank."""
    return int((gram.diagonal() != 0).sum())


def _resolved(
    values: Tensor, shape: tuple[int, int], eps: float, full: int
) -> tuple[Tensor, float]:
    """Which eigenvalues of a Gram matrix represent singular values, and the resulting limit.

    The limit is zero if nothing is lost: the rank is full, or lost values count as zero at the
    precision of the data.
    """
    top, limit = values.max().clamp(min=0).sqrt(), gram_limit(values)
    noise = rank_tolerance(shape, eps) * top
    kept = values > torch.maximum(limit, noise).square()
    complete = int(kept.sum()) >= full
    return kept, 0.0 if complete or bool(noise >= limit) else float(limit)


def _from_factor(
    factor: Tensor, targets: Tensor, noise: float, count: int | None = None, route: Route = "svd"
) -> LabelProjections:
    left, values, _ = thin_svd(factor)
    kept = values > noise * values.max()
    left, sigma = left[:, kept], values[kept]
    coefficients = left.mT @ targets
    residual = (targets - left @ coefficients).square().sum(0)  # avoids a difference of squares
    return LabelProjections(sigma, coefficients, residual, count or len(factor), route)
