"""Symmetric eigen-decompositions and singular values that do not fail to converge.

All work is done in float64 on the device of the input; where a driver does not converge, the next
one is tried, then the CPU, then LAPACK's slowest and most robust routine.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import scipy.linalg
import torch
from jaxtyping import Float
from torch import Tensor

from theodolite.linalg.arrays import double

__all__ = [
    "Eigen",
    "Singular",
    "eigenvalue_groups",
    "equality_tolerance",
    "numerical_rank",
    "rank_tolerance",
    "singular_values",
    "symmetric_eigen",
    "symmetric_eigenvalues",
    "thin_svd",
]


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
    """All eigenpairs of a symmetric matrix (its lower triangle), largest value first."""

    def torch_eigh(a: Tensor) -> Sequence[Tensor]:
        return torch.linalg.eigh(a)

    def on_cpu(a: Tensor) -> Sequence[Tensor]:
        return [part.to(a.device) for part in torch.linalg.eigh(a.cpu())]

    def lapack(a: Tensor) -> Sequence[Tensor]:
        parts = scipy.linalg.eigh(a.detach().cpu().numpy(), driver="ev")
        return [torch.from_numpy(np.ascontiguousarray(part)).to(a.device) for part in parts]

    scaled, peak = _scaled(matrix)
    values, vectors = _first_that_converges(scaled, [torch_eigh, on_cpu, lapack])
    return Eigen(values.flip(-1) * peak, vectors.flip(-1))


def symmetric_eigenvalues(matrix: Float[Tensor, "d d"]) -> Float[Tensor, " d"]:
    """Eigenvalues alone, largest first; differentiable at ties as well."""

    def torch_eigvalsh(a: Tensor) -> Sequence[Tensor]:
        return [torch.linalg.eigvalsh(a)]

    def on_cpu(a: Tensor) -> Sequence[Tensor]:
        return [torch.linalg.eigvalsh(a.cpu()).to(a.device)]

    def lapack(a: Tensor) -> Sequence[Tensor]:
        values = scipy.linalg.eigvalsh(a.detach().cpu().numpy(), driver="ev")
        return [torch.from_numpy(values).to(a.device)]

    scaled, peak = _scaled(matrix)
    (values,) = _first_that_converges(scaled, [torch_eigvalsh, on_cpu, lapack])
    return values.flip(-1) * peak


def thin_svd(matrix: Float[Tensor, "n d"]) -> Singular:
    """Thin singular value decomposition, accurate to ``eps`` of the largest singular value."""

    def device_default(a: Tensor) -> Sequence[Tensor]:
        return torch.linalg.svd(a, full_matrices=False)

    def device_qr(a: Tensor) -> Sequence[Tensor]:
        driver = "gesvd" if a.is_cuda else None
        return torch.linalg.svd(a, full_matrices=False, driver=driver)

    def on_cpu(a: Tensor) -> Sequence[Tensor]:
        return [part.to(a.device) for part in torch.linalg.svd(a.cpu(), full_matrices=False)]

    def lapack(a: Tensor) -> Sequence[Tensor]:
        array = a.detach().cpu().numpy()
        parts = scipy.linalg.svd(array, full_matrices=False, lapack_driver="gesvd")
        return [torch.from_numpy(np.ascontiguousarray(part)).to(a.device) for part in parts]

    scaled, peak = _scaled(matrix)
    drivers = [device_default, device_qr, on_cpu, lapack]
    left, values, right = _first_that_converges(scaled, drivers)
    return Singular(left, values * peak, right.mT)


def singular_values(matrix: Float[Tensor, "n d"]) -> Float[Tensor, " r"]:
    """Singular values alone, largest first."""
    return thin_svd(matrix).values


def rank_tolerance(shape: tuple[int, ...], eps: float) -> float:
    r"""Share of the largest singular value below which those of an n x d matrix count as zero.

    ``max(n, d)`` times float64's rounding, for the decomposition; and :math:`\sqrt{\min(n, d)}`
    times ``eps``, the rounding of the dtype the matrix came in: entries rounded to it move a
    singular value by at most :math:`\frac\varepsilon2\|A\|_F`. Were it ``max(n, d) * eps``, a
    million float32 rows would lose every direction below 12 % of the largest.
    """
    rounding = torch.finfo(torch.float64).eps
    return max(max(shape) * rounding, min(shape) ** 0.5 * eps)


def numerical_rank(values: Float[Tensor, " r"], shape: tuple[int, ...], eps: float) -> int:
    """How many singular values of a matrix of this shape do not count as zero."""
    if len(values) == 0:
        return 0
    return int((values > rank_tolerance(shape, eps) * values.max()).sum())


def equality_tolerance(size: int, eps: float) -> float:
    """Relative gap below which two eigenvalues of a d x d matrix count as equal."""
    return max(1e-10, 8 * size * eps)


def eigenvalue_groups(values: Float[Tensor, " d"], rtol: float) -> list[slice]:
    """Runs of sorted neighbours with gaps of at most ``rtol * max|value|``, chained."""
    if len(values) == 0:
        return []
    gaps = (values[:-1] - values[1:]).abs()
    cuts = (gaps > rtol * values.abs().max()).nonzero().flatten() + 1
    edges = [0, *cuts.tolist(), len(values)]
    return [slice(low, high) for low, high in pairwise(edges)]


def _scaled(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """The matrix in float64 with largest entry 1, so that no square inside LAPACK overflows."""
    wide = double(matrix)
    peak = wide.detach().abs().max() if wide.numel() else wide.new_ones(())
    peak = torch.where(peak > 0, peak, torch.ones_like(peak))
    return wide / peak, peak


def _first_that_converges(
    matrix: Tensor, drivers: Sequence[Callable[[Tensor], Sequence[Tensor]]]
) -> Sequence[Tensor]:
    failure: Exception | None = None
    for driver in drivers:
        try:
            parts = driver(matrix)
        except RuntimeError as error:  # torch.linalg.LinAlgError and cuSOLVER's internal errors
            failure = error
            continue
        if all(bool(part.detach().isfinite().all()) for part in parts):
            return parts
    raise RuntimeError("no eigenvalue driver converged, not even LAPACK's") from failure
