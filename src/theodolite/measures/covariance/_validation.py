"""Checks of covariances, one matrix or a stack of them (checkpoints along the leading axes)."""

import torch
from torch import Tensor

from theodolite.checks import require_finite, require_nonempty, symmetry_tolerance
from theodolite.errors import DomainError, ShapeError
from theodolite.linalg import double, eps_of, symmetric_eigenvalues

__all__ = [
    "positive_definite_factor",
    "require_dimension",
    "require_orthonormal",
    "require_square_stack",
    "require_symmetric_stack",
    "stacked_eigenvalues",
    "symmetrized",
]


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
