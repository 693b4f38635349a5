"""Alignment as correlation over the root of a rank."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor
from torch.linalg import matrix_norm

from theodolite.linalg import array_function, ratio_or_nan
from theodolite.measures.tangent._label_angle import Centering, KernelAndLabel, kernel_and_label
from theodolite.measures.tangent._leading import spectral_norm
from theodolite.measures.tangent._stacking import require_kernel_and_targets
from theodolite.measures.tangent._streamed import alignment_from_norms

__all__ = ["AlignmentDecomposition", "alignment_decomposition", "correlation_term"]


@dataclass(frozen=True)
class AlignmentDecomposition:
    """Exactly ``alignment = correlation / sqrt(stable_rank)``."""

    alignment: Float[Tensor, ""]
    correlation: Float[Tensor, ""]
    stable_rank: Float[Tensor, ""]


@array_function
def correlation_term(
    kernel: Float[Tensor, "n c n c"], targets: Float[Tensor, "n c"], *, center: bool = True
) -> Float[Tensor, ""]:
    r"""How much of the labels lies in the leading directions of a tangent kernel.

    .. math:: \sum_i \frac{\lambda_i}{\lambda_1} \langle u_i, \hat y\rangle^2
              = \frac{\hat y^\top C_m K C_m \hat y}{\lambda_1}

    with :math:`(\lambda_i, u_i)` of :math:`C_m K C_m` and the unit vector :math:`\hat y` of the
    centred targets. The closed form needs no eigenvectors, so ties are harmless.

    Range: [0, 1] for positive semi-definite kernels, 1 if the labels lie in the top eigenspace.
    Invariant to: as :func:`tangent_alignment`.
    Undefined (``nan``): kernel or targets are zero after centring, up to rounding.

    Args:
        kernel: :math:`K`; where it is not positive semi-definite, :math:`\lambda_1` is the largest
            absolute eigenvalue.
        targets: :math:`Y`, e.g. one-hot labels.
        center: ``False`` takes kernel and targets as they are.

    Raises:
        ShapeError: If the shapes do not match.
        DomainError: If the kernel is not symmetric, or either is not finite.

    Example:
        >>> y = torch.tensor([[1.0], [-1.0], [0.0]])
        >>> round(correlation_term(torch.eye(3).reshape(3, 1, 3, 1), y).item(), 4)
        1.0

    References:
        [lou2022], Appendix G.
    """
    require_kernel_and_targets(kernel, targets=targets)
    return _decomposition(kernel_and_label(kernel, targets, _centering(center))).correlation


@array_function
def alignment_decomposition(
    kernel: Float[Tensor, "n c n c"], targets: Float[Tensor, "n c"], *, center: bool = True
) -> AlignmentDecomposition:
    r"""Tangent alignment split into a correlation with the labels and a stable rank.

    .. math:: A = \mathrm{corr} / \sqrt{R}, \qquad R = \|C_m K C_m\|_F^2 / \lambda_1^2

    Range: alignment and correlation in [0, 1], stable rank in [1, rank], for positive semi-definite
    kernels.
    Invariant to: as :func:`tangent_alignment`.
    Undefined (``nan``): kernel or targets are zero after centring, up to rounding.

    Args:
        kernel: :math:`K`.
        targets: :math:`Y`, e.g. one-hot labels.
        center: ``False`` takes kernel and targets as they are.

    Raises:
        ShapeError: If the shapes do not match.
        DomainError: If the kernel is not symmetric, or either is not finite.

    Example:
        >>> y = torch.tensor([[1.0], [-1.0], [0.0]])
        >>> parts = alignment_decomposition(torch.eye(3).reshape(3, 1, 3, 1), y)
        >>> round(parts.alignment.item(), 4), round(parts.stable_rank.item(), 4)
        (0.7071, 2.0)

    References:
        [lou2022], Appendix G.
    """
    require_kernel_and_targets(kernel, targets=targets)
    return _decomposition(kernel_and_label(kernel, targets, _centering(center)))


def _centering(center: bool) -> Centering:
    return "stacked" if center else "none"


def _decomposition(pair: KernelAndLabel) -> AlignmentDecomposition:
    frobenius, spectral = matrix_norm(pair.kernel), spectral_norm(pair.kernel)
    energy = pair.label_energy
    return AlignmentDecomposition(
        alignment=alignment_from_norms(energy, frobenius, 1.0, pair.defined),
        correlation=ratio_or_nan(energy, spectral, pair.defined),
        stable_rank=ratio_or_nan(frobenius, spectral, pair.kernel_defined).square(),
    )
