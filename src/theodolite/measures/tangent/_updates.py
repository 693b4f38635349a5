"""What one gradient step on a single layer does to the outputs, to first order."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor
from torch.linalg import vector_norm

from theodolite.checks import require_positive
from theodolite.linalg import array_function, double, unit_peak
from theodolite.measures.tangent._labels import centered_over_all
from theodolite.measures.tangent._leading import spectral_norm
from theodolite.measures.tangent._stacking import require_kernel_and_targets, stacked

__all__ = ["UpdateBounds", "frozen_update", "frozen_update_bounds", "label_contribution"]


@dataclass(frozen=True)
class UpdateBounds:
    """Bounds on the length of a frozen-layer update: ``|update| <= spectral <= trace``."""

    spectral: Float[Tensor, ""]
    trace: Float[Tensor, ""]


@array_function
def frozen_update(
    kernel: Float[Tensor, "n c n c"], loss_gradient: Float[Tensor, "n c"], learning_rate: float
) -> Float[Tensor, "n c"]:
    r"""Change of the outputs, to first order, when one layer alone takes a gradient step.

    .. math:: \Delta F = -\eta\,K_l\,w, \qquad w = \partial\mathcal L/\partial F

    With the cross-entropy and equal logits, :math:`w = -\tilde Y/n` and the outputs move by
    :math:`(\eta/n) K_l\tilde Y` exactly.

    Args:
        kernel: :math:`K_l` of the layer that moves.
        loss_gradient: :math:`w` of the mean loss, e.g. from :func:`cross_entropy_gradient`.
        learning_rate: :math:`\eta`.

    Raises:
        ShapeError: If the shapes do not match.
        DomainError: If the kernel is not symmetric, an entry not finite, or the rate not positive.

    Example:
        >>> kernel = torch.eye(2).reshape(2, 1, 2, 1)
        >>> frozen_update(kernel, torch.tensor([[1.0], [-2.0]]), 0.5).tolist()
        [[-0.5], [1.0]]

    References:
        [lou2022], Section 2.1.
        Differs from paper: the mean loss with the raw learning rate, not the sum with LR/n.
    """
    require_kernel_and_targets(kernel, loss_gradient=loss_gradient)
    require_positive(learning_rate=learning_rate)
    step = double(stacked(kernel)) @ double(loss_gradient).flatten()
    return -learning_rate * step.reshape(loss_gradient.shape)


@array_function
def frozen_update_bounds(
    kernel: Float[Tensor, "n c n c"], loss_gradient: Float[Tensor, "n c"], learning_rate: float
) -> UpdateBounds:
    r"""How far a step on one layer can move the outputs at most.

    .. math:: \|\Delta F\| \le \eta\,\rho(K_l)\,\|w\| \le \eta\,\mathrm{Tr}(K_l)\,\|w\|

    Both are equalities exactly when :math:`K_l` is a multiple of :math:`ww^\top`.

    Args:
        kernel: :math:`K_l`, positive semi-definite.
        loss_gradient: :math:`w` of the mean loss.
        learning_rate: :math:`\eta`.

    Raises:
        ShapeError: If the shapes do not match.
        DomainError: If the kernel is not symmetric, an entry not finite, or the rate not positive.

    Example:
        >>> bounds = frozen_update_bounds(torch.eye(2).reshape(2, 1, 2, 1), torch.ones(2, 1), 0.5)
        >>> round(bounds.spectral.item(), 4), round(bounds.trace.item(), 4)
        (0.7071, 1.4142)

    References:
        [lou2022], Section 2.1.
    """
    require_kernel_and_targets(kernel, loss_gradient=loss_gradient)
    require_positive(learning_rate=learning_rate)
    K = double(stacked(kernel))
    length = learning_rate * vector_norm(double(loss_gradient))
    peak = K.detach().abs().max()
    return UpdateBounds(spectral_norm(unit_peak(K)) * peak * length, K.trace() * length)


@array_function
def label_contribution(
    kernel: Float[Tensor, "n c n c"], targets: Float[Tensor, "n c"]
) -> Float[Tensor, ""]:
    r"""How much a layer moves the outputs along the labels; layers add up to the network.

    .. math:: \mathrm{Tr}(K_l\tilde y\tilde y^\top) = \tilde y^\top K_l\,\tilde y

    Range: [0, :math:`\rho(K_l)\|\tilde y\|^2`] for positive semi-definite kernels.
    Invariant to: a constant added to all targets or to all entries of the kernel; a common
    permutation of the examples.
    Undefined: never.

    Args:
        kernel: :math:`K_l` of one layer.
        targets: :math:`Y`; centred over all entries here.

    Raises:
        ShapeError: If the shapes do not match.
        DomainError: If the kernel is not symmetric, or either is not finite.

    Example:
        >>> y = torch.tensor([[1.0], [0.0]])
        >>> label_contribution(torch.eye(2).reshape(2, 1, 2, 1), y).item()
        0.5

    References:
        [lou2022], Section 2.1 and Appendix C.
    """
    require_kernel_and_targets(kernel, targets=targets)
    y = centered_over_all(double(targets)).flatten()
    return y @ double(stacked(kernel)) @ y
