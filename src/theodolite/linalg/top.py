"""Leading eigenpairs of a large symmetric operator without its full decomposition.

ARPACK (``scipy.sparse.linalg.eigsh``) drives; each product runs in torch on the device.
"""

from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh
from torch import Tensor

from theodolite.checks import require_count
from theodolite.errors import DomainError
from theodolite.linalg.arrays import double
from theodolite.linalg.spectra import Eigen, symmetric_eigen

__all__ = ["top_eigen", "top_eigen_operator"]

_DENSE_BELOW = 512  # a full eigh is faster than ARPACK's start-up below this size


def top_eigen(matrix: Float[Tensor, "d d"], count: int) -> Eigen:
    """The ``count`` algebraically largest eigenpairs of a symmetric matrix, largest first.

    Costs ``O(count d²)`` per ARPACK sweep; small problems, or a large share of the spectrum,
    take the dense route.
    """
    size = len(matrix)
    require_count(1, count=count)
    if size <= _DENSE_BELOW or 4 * count >= size:
        values, vectors = symmetric_eigen(matrix)
        return Eigen(values[:count], vectors[:, :count])
    wide = double(matrix)
    return top_eigen_operator(lambda vector: wide @ vector, size, count, device=wide.device)


def top_eigen_operator(
    product: Callable[[Tensor], Tensor],
    size: int,
    count: int,
    *,
    which: str = "LA",
    device: torch.device | str = "cpu",
) -> Eigen:
    """Leading eigenpairs of a symmetric operator given by its product with a float64 vector.

    Args:
        product: maps a float64 vector on ``device`` to the operator applied to it.
        size: dimension of the operator.
        count: number of pairs, below ``size``.
        which: ARPACK's choice, ``"LA"`` (largest) or ``"LM"`` (largest in absolute value).
        device: where ``product`` works.

    Raises:
        DomainError: If ``count`` is not below ``size``.
    """
    if not 0 < count < size:
        raise DomainError(f"count: expected at least 1 and below size = {size}, got {count}")

    def matvec(vector: np.ndarray) -> np.ndarray:
        tensor = torch.from_numpy(np.ascontiguousarray(vector, dtype=np.float64)).to(device)
        return product(tensor.flatten()).detach().double().cpu().numpy()

    operator = LinearOperator((size, size), matvec=matvec, dtype=np.dtype(np.float64))
    start = np.random.default_rng(0).standard_normal(size)  # ARPACK's own start is not seeded
    try:
        values, vectors = eigsh(operator, k=count, which=which, v0=start)
    except ArpackNoConvergence:
        wider = min(size - 1, max(4 * count + 20, 60))
        values, vectors = eigsh(
            operator, k=count, which=which, v0=start, ncv=wider, maxiter=50 * size
        )
    order = np.argsort(-np.abs(values) if which == "LM" else -values, kind="stable")
    ordered = torch.from_numpy(np.ascontiguousarray(vectors[:, order])).to(device)
    return Eigen(torch.from_numpy(values[order].copy()).to(device), ordered)
