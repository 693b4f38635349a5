"""Fisher information in output space: the tangent kernel, weighted by the curvature of the loss.

This is the model Fisher (labels drawn from the predictions) on the given inputs, which equals the
generalised Gauss-Newton matrix. It is not the matrix of outer products of observed gradients.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.linalg import matrix_norm, vector_norm

from theodolite.checks import require_axes, require_finite, symmetry_tolerance
from theodolite.errors import DomainError, ShapeError
from theodolite.linalg import (
    array_function,
    center_all,
    double,
    eps_of,
    ratio_or_nan,
    symmetric_eigen,
    unit_peak,
    vanishes_when_centered,
)
from theodolite.measures.tangent.alignment import (
    leading_vector,
    require_kernel,
    require_kernel_and_targets,
    stacked,
    unit_vector,
)
from theodolite_papers.lou2022.formulas.feature_evolution import require_tangent_features


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
    """Zero, with gradient ``weights`` in the Hessian: added to a constant, it gives a derivative.

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


@array_function
def fisher_information(
    tangent_features: Float[Tensor, "n c p"], hessian: Float[Tensor, "n c c"]
) -> Float[Tensor, "p p"]:
    r"""Fisher information matrix of one layer, in parameter space.

    .. math:: I_l = \Psi_l\,S\,\Psi_l^\top

    It shares its non-zero eigenvalues with :func:`fisher_gram`; take the smaller of the two.

    Args:
        tangent_features: :math:`\Psi_l`; entry ``[x, i]`` is the gradient of output i at example x.
        hessian: :math:`S`, one block per example, e.g. from :func:`cross_entropy_hessian`.

    Raises:
        ShapeError: If the shapes do not match.
        DomainError: If an entry is not finite, or a block not symmetric positive semi-definite.

    Examples:
        >>> fisher_information(torch.ones(1, 1, 1), 2 * torch.ones(1, 1, 1)).item()
        2.0

    References:
        [lou2022], Appendix G.
        Differs from paper: it speaks of the empirical Fisher; labels are the model's here.
    """
    require_tangent_features(tangent_features)
    require_hessian(hessian, *tangent_features.shape[:2])
    features = double(tangent_features)
    weighted = double(hessian) @ features
    return features.flatten(0, 1).mT @ weighted.flatten(0, 1)


@array_function
def fisher_gram(
    kernel: Float[Tensor, "n c n c"], hessian: Float[Tensor, "n c c"]
) -> Float[Tensor, "n c n c"]:
    r"""Fisher information of one layer, in output space.

    .. math:: G_l = S^{1/2} K_l\,S^{1/2}

    with the symmetric root, block by block. The Hessian is treated as a constant: its root has no
    derivative where a block is singular.

    Args:
        kernel: :math:`K_l`.
        hessian: :math:`S`, one block per example, e.g. from :func:`cross_entropy_hessian`.

    Raises:
        ShapeError: If the shapes do not match.
        DomainError: If the kernel is not symmetric, an entry not finite, or a block not symmetric
            positive semi-definite.

    Examples:
        >>> fisher_gram(torch.ones(1, 1, 1, 1), 2 * torch.ones(1, 1, 1)).item()
        2.0

    References:
        [lou2022], Appendix G.
    """
    require_kernel(kernel)
    require_hessian(hessian, *kernel.shape[:2])
    return _weighted(double(kernel), symmetric_root(double(hessian), eps_of(hessian)))


@array_function
def fisher_stable_rank(
    kernel: Float[Tensor, "n c n c"], hessian: Float[Tensor, "n c c"]
) -> Float[Tensor, ""]:
    r"""Stable rank of the Fisher information of one layer, not centred.

    .. math:: R(G_l) = \|G_l\|_F^2 / \|G_l\|_2^2, \qquad G_l = S^{1/2} K_l\,S^{1/2}

    Range: [1, rank].
    Invariant to: positive scaling of kernel or Hessian, a common permutation of the examples.
    Undefined (``nan``): the Hessian underflows (saturated softmax; see ``normalize`` of
    :func:`cross_entropy_hessian`), or :math:`G_l` is zero up to rounding.

    Args:
        kernel: :math:`K_l`. With few parameters, ``stable_rank(fisher_information(...))`` is the
            same number at less cost.
        hessian: :math:`S`, one block per example, e.g. from :func:`cross_entropy_hessian`.

    Raises:
        ShapeError: If the shapes do not match.
        DomainError: If the kernel is not symmetric, an entry not finite, or a block not symmetric
            positive semi-definite.

    Examples:
        >>> kernel, hessian = torch.eye(2).reshape(2, 1, 2, 1), torch.ones(2, 1, 1)
        >>> round(fisher_stable_rank(kernel, hessian).item(), 4)
        2.0

    References:
        [lou2022], Appendix G.
    """
    require_kernel(kernel)
    require_hessian(hessian, *kernel.shape[:2])
    fisher = _scaled_fisher(kernel, hessian)
    frobenius, spectral = _norms(fisher)
    return ratio_or_nan(frobenius, spectral, fisher.defined).square()


@array_function
def fisher_correlation(
    kernel: Float[Tensor, "n c n c"],
    hessian: Float[Tensor, "n c c"],
    targets: Float[Tensor, "n c"],
) -> Float[Tensor, ""]:
    r"""How much of the labels lies in the leading output directions of the Fisher information.

    .. math:: \sum_i \frac{\lambda_i}{\lambda_1}\langle\mu_i, \hat y\rangle^2
              = \frac{\hat y^\top G_l\,\hat y}{\lambda_1(G_l)}, \qquad G_l = S^{1/2} K_l\,S^{1/2}

    with :math:`\mu_i` the left singular vectors of :math:`S^{1/2}\Psi_l^\top`. The value depends on
    the choice of root; it is the symmetric one here. The Hessian is treated as a constant.

    Range: [0, 1] for positive semi-definite kernels.
    Invariant to: positive scaling of kernel or Hessian, scaling and shifting all targets, a common
    permutation of the examples.
    Undefined (``nan``): as :func:`fisher_stable_rank`, or constant targets.

    Args:
        kernel: :math:`K_l`.
        hessian: :math:`S`, one block per example, e.g. from :func:`cross_entropy_hessian`.
        targets: :math:`Y`, e.g. one-hot labels.

    Raises:
        ShapeError: If the shapes do not match.
        DomainError: If the kernel is not symmetric, an entry not finite, or a block not symmetric
            positive semi-definite.

    Examples:
        >>> kernel, hessian = torch.eye(2).reshape(2, 1, 2, 1), torch.ones(2, 1, 1)
        >>> round(fisher_correlation(kernel, hessian, torch.tensor([[1.0], [0.0]])).item(), 4)
        1.0

    References:
        [lou2022], Appendix G.
        Differs from paper: the printed product lacks a transpose.
    """
    require_kernel_and_targets(kernel, targets=targets)
    require_hessian(hessian, *kernel.shape[:2])
    fisher = _scaled_fisher(kernel, hessian)
    Y = unit_peak(double(targets))
    y = center_all(Y)
    defined = fisher.defined & ~vanishes_when_centered(y, Y, eps_of(targets))
    label, G = unit_vector(y.flatten()), stacked(fisher.gram)
    return ratio_or_nan(label @ G @ label, vector_norm(G @ leading_vector(G.detach())), defined)


@dataclass(frozen=True)
class _ScaledFisher:
    """Kernel and Hessian with largest entry 1, the root of the latter, and both combined."""

    kernel: Float[Tensor, "n c n c"]
    hessian: Float[Tensor, "n c c"]
    root: Float[Tensor, "n c c"]
    gram: Float[Tensor, "n c n c"]
    defined: Bool[Tensor, ""]


def _scaled_fisher(kernel: Tensor, hessian: Tensor) -> _ScaledFisher:
    K = unit_peak(double(stacked(kernel))).reshape(kernel.shape)
    S = unit_peak(double(hessian).flatten(0, 1)).reshape(hessian.shape)
    root = symmetric_root(S, eps_of(hessian))
    G = _weighted(K, root)
    noise = eps_of(kernel, hessian)
    defined = ~hessian_underflows(hessian) & ~vanishes_when_centered(G, K, noise)
    return _ScaledFisher(K, S, root, G, defined)


def _weighted(kernel: Tensor, root: Tensor) -> Tensor:
    half = torch.einsum("xia,xayj->xiyj", root, kernel)
    return torch.einsum("xiyb,yjb->xiyj", half, root)


def _norms(fisher: _ScaledFisher) -> tuple[Tensor, Tensor]:
    """Frobenius and spectral norm, differentiable in kernel and Hessian, also where S is singular.

    With respect to S the derivatives are ``K S K / |G|_F`` and ``z z^T / |G|_2``, z = K S^(1/2) u.
    """
    G, K, S = stacked(fisher.gram), fisher.kernel, fisher.hessian
    u = leading_vector(G.detach())
    frobenius, spectral = matrix_norm(G), vector_norm(G @ u)
    if S.requires_grad:
        z = torch.einsum("xiyj,yjk,yk->xi", K, fisher.root, u.reshape(S.shape[:2]))
        sandwich = torch.einsum("xiyj,yjk,xlyk->xil", K, S, K)
        frobenius = frobenius + first_order(_over(sandwich, frobenius), S)
        spectral = spectral + first_order(_over(torch.einsum("xi,xj->xij", z, z), spectral), S)
    return frobenius, spectral


def _over(weights: Tensor, norm: Tensor) -> Tensor:
    return weights / torch.where(norm > 0, norm, torch.ones_like(norm))
