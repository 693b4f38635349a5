"""Output Hessians: blocks per example, their checks and their symmetric roots."""

import torch
from jaxtyping import Float
from torch import Tensor

from theodolite.checks import require_axes, require_finite, symmetry_tolerance
from theodolite.errors import DomainError, ShapeError
from theodolite.linalg import double, eps_of, symmetric_eigen

__all__ = ["first_order", "hessian_underflows", "require_hessian", "symmetric_root"]


def require_hessian(hessian: Tensor, examples: int, outputs: int) -> None:
    """One finite, symmetric, positive semi-definite block per example."""
    require_axes(3, hessian=hessian)
    if hessian.shape != (examples, outputs, outputs):
        raise ShapeError(
            f"hessian: expected shape {(examples, outputs, outputs)}, one block per example, got "
            f"{tuple(hessian.shape)}; cross_entropy_hessian(logits) has it"
        )
    require_finite(hessian=hessian)
    values = double(hessian.detach())
    peak = values.abs().max()
    asymmetry = (values - values.mT).abs().max()
    if asymmetry > symmetry_tolerance(hessian.dtype) * peak:
        raise DomainError(
            f"hessian: expected symmetric blocks, got a relative asymmetry of "
            f"{(asymmetry / peak).item():.1e}; if it is rounding, pass (h + h.mT) / 2"
        )
    lowest = _block_eigen(values)[0].min()
    if lowest < -8 * outputs * eps_of(hessian) * peak:
        raise DomainError(
            f"hessian: expected positive semi-definite blocks, got an eigenvalue of "
            f"{lowest.item():.4g} (largest entry {peak.item():.4g}); the loss must be convex in "
            "the outputs"
        )


def hessian_underflows(hessian: Tensor) -> Tensor:
    """Whether a saturated loss left nothing but zeros and denormal numbers."""
    floor = max(1e-300, torch.finfo(hessian.dtype).tiny)
    return double(hessian.detach()).abs().max() <= floor


def symmetric_root(blocks: Float[Tensor, "n c c"], eps: float) -> Float[Tensor, "n c c"]:
    """Symmetric positive semi-definite roots, block by block, without gradient.

    Eigenvalues below the rounding noise of their block count as zero: their roots would not be
    small (the root of 1e-16 is 1e-8).
    """
    values, vectors = _block_eigen(blocks.detach())
    noise = blocks.shape[1] * eps * values.amax(1, keepdim=True)
    roots = torch.where(values > noise, values, torch.zeros_like(values)).sqrt()
    return (vectors * roots.unsqueeze(1)) @ vectors.mT


def first_order(weights: Tensor, blocks: Tensor) -> Tensor:
    """Zero with gradient ``weights``: gives a value its known derivative in the Hessian.

    The derivative of a symmetric root does not exist where a block is singular, as those of the
    cross-entropy always are; that of a norm or an eigenvalue of the weighted kernel does.
    """
    return (weights.detach() * (blocks - blocks.detach())).sum()


def _block_eigen(blocks: Tensor) -> tuple[Tensor, Tensor]:
    try:
        values, vectors = torch.linalg.eigh(blocks)
    except RuntimeError:  # one block did not converge: each on its own, with fall-backs
        pairs = [symmetric_eigen(block) for block in blocks]
        return torch.stack([p.values for p in pairs]), torch.stack([p.vectors for p in pairs])
    return values, vectors
