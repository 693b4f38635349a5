"""Symmetric eigendecompositions and singular values with a fallback if a driver does not converge.

All work is in float64 on the device of the input. If a driver does not converge, the next one is
tried, then the CPU, then LAPACK's slowest and most robust routine.

Leading pairs come from ARPACK (``scipy.sparse.linalg.eigsh``), with products in torch on the
device. On a GPU single vectors are slow, so leading pairs of a matrix come from blocks of vectors.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import scipy.linalg
import torch
from jaxtyping import Float
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh
from torch import Tensor

from theodolite.checks import require_count
from theodolite.errors import DomainError
from theodolite.linalg.arrays import double

_DENSE_BELOW = 512  # a full eigh is faster below this size
_BLOCK = 64  # vectors that are multiplied together
_SPARE = 8  # additional pairs that speed up convergence
_STEPS = 6  # products with a block between two restarts
_MOST_RESTARTS = 60


class Eigen(NamedTuple):
    """Eigenvalues in decreasing order with their unit eigenvectors as columns."""

    values: Float[Tensor, " r"]
    vectors: Float[Tensor, "d r"]


class Singular(NamedTuple):
    """``matrix = left @ diag(values) @ right.T``, values in decreasing order."""

    left: Float[Tensor, "n r"]
    values: Float[Tensor, " r"]
    right: Float[Tensor, "d r"]


def symmetric_eigen(matrix: Float[Tensor, "d d"]) -> Eigen:
    """All eigenpairs of a symmetric matrix (its lower triangle), largest value first.

    Examples:
        >>> symmetric_eigen(torch.tensor([[2.0, 1.0], [1.0, 2.0]])).values.tolist()
        [3.0, 1.0]
    """

    def lapack(a: np.ndarray) -> Sequence[np.ndarray]:
        found: Sequence[np.ndarray] = scipy.linalg.eigh(a, driver="ev")
        return found

    scaled, peak = _scaled(matrix)
    values, vectors = _first_that_converges(scaled, [torch.linalg.eigh], lapack)
    return Eigen(values.flip(-1) * peak, vectors.flip(-1))


def symmetric_eigenvalues(matrix: Float[Tensor, "d d"]) -> Float[Tensor, " d"]:
    """Eigenvalues alone, largest first; differentiable at ties as well.

    Examples:
        >>> symmetric_eigenvalues(torch.diag(torch.tensor([1.0, 3.0]))).tolist()
        [3.0, 1.0]
    """
    scaled, peak = _scaled(matrix)
    (values,) = _first_that_converges(
        scaled,
        [lambda a: [torch.linalg.eigvalsh(a)]],
        lambda a: [scipy.linalg.eigvalsh(a, driver="ev")],
    )
    return values.flip(-1) * peak


def thin_svd(matrix: Float[Tensor, "n d"]) -> Singular:
    """Thin singular value decomposition, accurate to ``eps`` of the largest singular value.

    Examples:
        >>> thin_svd(torch.tensor([[3.0, 0.0], [0.0, 4.0], [0.0, 0.0]])).values.tolist()
        [4.0, 3.0]
    """

    def default(a: Tensor) -> Sequence[Tensor]:
        found: Sequence[Tensor] = torch.linalg.svd(a, full_matrices=False)
        return found

    def by_qr(a: Tensor) -> Sequence[Tensor]:
        driver = "gesvd" if a.is_cuda else None
        found: Sequence[Tensor] = torch.linalg.svd(a, full_matrices=False, driver=driver)
        return found

    def lapack(a: np.ndarray) -> Sequence[np.ndarray]:
        found: Sequence[np.ndarray] = scipy.linalg.svd(
            a, full_matrices=False, lapack_driver="gesvd"
        )
        return found

    scaled, peak = _scaled(matrix)
    left, values, right = _first_that_converges(scaled, [default, by_qr], lapack)
    return Singular(left, values * peak, right.mT)


def rank_tolerance(shape: tuple[int, ...], eps: float) -> float:
    r"""Share of the largest singular value below which values of an n x d matrix count as zero.

    It is the larger of two numbers: ``max(n, d)`` times the rounding of float64, for the
    decomposition, and :math:`\sqrt{\min(n, d)}` times ``eps``, the rounding of the original dtype.
    Entries that are rounded to it move a singular value by at most
    :math:`\frac\varepsilon2\|A\|_F`. With ``max(n, d) * eps`` a million float32 rows would lose
    every direction below 12 % of the largest.

    Examples:
        >>> rank_tolerance((100, 4), eps=1e-7)
        2e-07
    """
    rounding = torch.finfo(torch.float64).eps
    return max(max(shape) * rounding, min(shape) ** 0.5 * eps)


def numerical_rank(values: Float[Tensor, " r"], shape: tuple[int, ...], eps: float) -> int:
    """Number of singular values of a matrix of this shape that do not count as zero.

    Examples:
        >>> numerical_rank(torch.tensor([1.0, 1e-3, 1e-12]), (100, 3), eps=1e-7)
        2
    """
    if len(values) == 0:
        return 0
    return int((values > rank_tolerance(shape, eps) * values.max()).sum())


def equality_tolerance(size: int, eps: float) -> float:
    """Relative gap below which two eigenvalues of a d x d matrix count as equal."""
    return max(1e-10, 8 * size * eps)


def eigenvalue_groups(values: Float[Tensor, " d"], rtol: float) -> list[slice]:
    """Chains of sorted neighbours whose gaps are at most ``rtol * max|value|``.

    Examples:
        >>> eigenvalue_groups(torch.tensor([2.0, 2.0, 1.0]), rtol=1e-6)
        [slice(0, 2, None), slice(2, 3, None)]
    """
    if len(values) == 0:
        return []
    gaps = (values[:-1] - values[1:]).abs()
    cuts = (gaps > rtol * values.abs().max()).nonzero().flatten() + 1
    edges = [0, *cuts.tolist(), len(values)]
    return [slice(low, high) for low, high in pairwise(edges)]


def _scaled(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """The matrix in float64 with largest entry 1, so that squares in LAPACK do not overflow."""
    wide = double(matrix)
    peak = wide.detach().abs().max() if wide.numel() else wide.new_ones(())
    peak = torch.where(peak > 0, peak, torch.ones_like(peak))
    return wide / peak, peak


def _first_that_converges(
    matrix: Tensor,
    drivers: Sequence[Callable[[Tensor], Sequence[Tensor]]],
    lapack: Callable[[np.ndarray], Sequence[np.ndarray]],
) -> Sequence[Tensor]:
    """Torch on the device, torch on the CPU, then LAPACK; the first result that is finite."""

    def on_cpu(a: Tensor) -> Sequence[Tensor]:
        return [part.to(a.device) for part in drivers[0](a.cpu())]

    def last(a: Tensor) -> Sequence[Tensor]:
        parts = lapack(a.detach().cpu().numpy())
        return [torch.from_numpy(np.ascontiguousarray(part)).to(a.device) for part in parts]

    failure: Exception | None = None
    for driver in (*drivers, on_cpu, last):
        try:
            parts = driver(matrix)
        except RuntimeError as error:  # torch.linalg.LinAlgError and cuSOLVER's internal errors
            failure = error
            continue
        if all(bool(part.detach().isfinite().all()) for part in parts):
            return parts
    raise RuntimeError(
        "no eigenvalue solver converged; very large or very small numbers in the matrix are the "
        "usual cause"
    ) from failure


def top_eigen(matrix: Float[Tensor, "d d"], count: int, *, tolerance: float = 1e-11) -> Eigen:
    r"""The ``count`` algebraically largest eigenpairs of a symmetric matrix, largest first.

    Small problems, or a large share of the spectrum, use the dense method. Otherwise a Krylov space
    grows until every residual :math:`\|A v - \lambda v\|` is at most ``tolerance`` times the
    largest eigenvalue. The error of eigenvalues is then about the square of ``tolerance``. That of
    vectors is ``tolerance`` divided by the relative gap. It takes a few times ``O(count d²)``.

    Args:
        matrix: a symmetric matrix.
        count: number of pairs.
        tolerance: tolerance of the residuals.

    Returns:
        The eigenpairs.

    Examples:
        >>> top_eigen(torch.diag(torch.tensor([1.0, 3.0, 2.0])), 2).values.tolist()
        [3.0, 2.0]
    """
    size = len(matrix)
    require_count(1, count=count)
    if size <= _DENSE_BELOW or 4 * count >= size:
        values, vectors = symmetric_eigen(matrix)
        return Eigen(values[:count], vectors[:, :count])
    scaled, peak = _scaled(matrix)
    if not matrix.is_cuda:
        product = scaled.__matmul__
        values, vectors = top_eigen_operator(product, size, count, tolerance=tolerance)
        return Eigen(values * peak, vectors)
    found = _block_krylov(scaled, count, tolerance)
    if found is None:
        values, vectors = symmetric_eigen(matrix)
        return Eigen(values[:count], vectors[:, :count])
    return Eigen(found.values * peak, found.vectors)


def _block_krylov(matrix: Float[Tensor, "d d"], count: int, tolerance: float) -> Eigen | None:
    """Leading eigenpairs by a block Lanczos method with thick restarts; None if not converged.

    The basis and its image are kept. A restart keeps the leading Ritz vectors and continues from
    their residuals. Vanishing vectors, as in a matrix of low rank, are replaced by random ones.
    """
    size, keep = len(matrix), count + _SPARE
    draws = torch.Generator(matrix.device).manual_seed(0)
    basis = _fresh_block(matrix.new_empty(size, 0), matrix.new_zeros(size, _BLOCK), draws)
    image = matrix @ basis
    block = image
    for _ in range(_MOST_RESTARTS):
        for _ in range(_STEPS + (keep // _BLOCK if basis.shape[1] == _BLOCK else 0)):
            block = _fresh_block(basis, block, draws)
            further = matrix @ block
            basis, image = torch.cat([basis, block], 1), torch.cat([image, further], 1)
            block = further
        small = basis.mT @ image
        values, turned = symmetric_eigen((small + small.mT) / 2)
        values, turned = values[:keep], turned[:, :keep]
        basis, image = basis @ turned, image @ turned
        residuals = image - basis * values
        lengths = torch.linalg.vector_norm(residuals, dim=0) / values.abs().max()
        if bool((lengths[:count] <= tolerance).all()):
            return Eigen(values[:count], basis[:, :count])
        worst = lengths[:count].argsort(descending=True)[:_BLOCK]
        block = residuals[:, worst]
    return None


def _fresh_block(
    basis: Float[Tensor, "d m"], block: Float[Tensor, "d b"], draws: torch.Generator
) -> Float[Tensor, "d b"]:
    """Orthonormal columns that span a block, orthogonal to the basis.

    Reflections are exact and slow on a GPU, so they are used once. Afterwards columns are nearly
    orthonormal, and the Cholesky factor of their products is enough.
    """
    before = torch.linalg.vector_norm(block, dim=0)
    block, triangle = torch.linalg.qr(block - basis @ (basis.mT @ block))
    lost = triangle.diagonal().abs() <= 1e-12 * before.max()
    random = torch.empty_like(block).normal_(generator=draws)
    block = torch.where(lost, random / len(block) ** 0.5, block)
    for _ in range(2):
        block = block - basis @ (basis.mT @ block)
        factor = torch.linalg.cholesky_ex(block.mT @ block).L
        block = torch.linalg.solve_triangular(factor.mT, block, upper=True, left=False)
    return block


def top_eigen_operator(
    product: Callable[[Tensor], Tensor],
    size: int,
    count: int,
    *,
    which: str = "LA",
    device: torch.device | str = "cpu",
    tolerance: float = 0.0,
) -> Eigen:
    """Leading eigenpairs of a symmetric operator given by its product with a float64 vector.

    Args:
        product: maps a float64 vector on ``device`` to the operator applied to it.
        size: dimension of the operator.
        count: number of pairs, below ``size``.
        which: ARPACK's choice, ``"LA"`` (largest) or ``"LM"`` (largest in absolute value).
        device: device of ``product``.
        tolerance: tolerance of residuals, relative to their eigenvalues; 0 for float64's own.

    Raises:
        DomainError: If ``count`` is not below ``size``.

    Returns:
        The eigenpairs, largest first.

    Examples:
        >>> weights = torch.arange(1.0, 6.0).double()
        >>> found = top_eigen_operator(lambda vector: weights * vector, size=5, count=2)
        >>> [round(value, 6) for value in found.values.tolist()]
        [5.0, 4.0]
    """
    if not 0 < count < size:
        raise DomainError(f"count: expected at least 1 and below size = {size}, got {count}")

    def matvec(vector: np.ndarray) -> np.ndarray:
        tensor = torch.from_numpy(np.ascontiguousarray(vector, dtype=np.float64)).to(device)
        return product(tensor.flatten()).detach().double().cpu().numpy()

    operator = LinearOperator((size, size), matvec=matvec, dtype=np.dtype(np.float64))
    start = np.random.default_rng(0).standard_normal(size)  # ARPACK's default start has no seed
    try:
        values, vectors = eigsh(operator, k=count, which=which, v0=start, tol=tolerance)
    except ArpackNoConvergence:
        wider = min(size - 1, max(4 * count + 20, 60))
        values, vectors = eigsh(
            operator, k=count, which=which, v0=start, ncv=wider, maxiter=50 * size, tol=tolerance
        )
    order = np.argsort(-np.abs(values) if which == "LM" else -values, kind="stable")
    ordered = torch.from_numpy(np.ascontiguousarray(vectors[:, order])).to(device)
    return Eigen(torch.from_numpy(values[order].copy()).to(device), ordered)
