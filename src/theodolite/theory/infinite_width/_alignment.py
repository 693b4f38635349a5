"""The layer alignments of an infinitely wide network at initialisation."""

import torch
from jaxtyping import Float
from torch import Tensor

from theodolite.checks import require_axes, require_count, require_finite, require_same_length
from theodolite.linalg.arrays import array_function, double, eps_of
from theodolite.linalg.centering import center_columns, double_center
from theodolite.linalg.ratios import ratio_or_nan
from theodolite.theory.infinite_width._kernels import first_layer
from theodolite.theory.infinite_width._relu import layers_backwards, one_minus_cosine

__all__ = ["infinite_alignment"]


@array_function
def infinite_alignment(
    inputs: Float[Tensor, "n d"],
    targets: Float[Tensor, "n c"],
    depth: int,
    bias_variance: float = 0.0,
) -> Float[Tensor, " depth"]:
    r"""Tangent alignment :math:`A_l` of every layer, at infinite width and initialisation.

    .. math:: A_l = \frac{\tilde Y^\top K_l \tilde Y}{\|C K_l C\|_F\,\|\tilde Y\|^2},
              \qquad K_l = (I^f_l \circ I^b_l) \otimes I_o

    With :math:`F = I^f_l \circ I^b_l` and :math:`o` outputs the norm is
    :math:`\|C K_l C\|_F^2 = (o-1)\|F\|_F^2 + \|C_n F C_n\|_F^2`; no matrix larger than n x n is
    formed, and the part of F that is constant is split off before centring, so that the values
    hold at depth 10,000.

    Range: [0, 1]; at most :math:`1/\sqrt{o(o-1)}` for class-balanced one-hot targets.
    Invariant to: affine maps of the targets; scaling all inputs (no bias).
    Undefined (``nan``): constant targets, or one output and inputs of one direction and norm.

    Args:
        inputs: :math:`x`, one row per example, none of them zero.
        targets: :math:`Y`, e.g. one-hot labels.
        depth: :math:`L`.
        bias_variance: :math:`\sigma_b^2` of a bias in the first layer (random, not trained).

    Returns:
        :math:`A_1, \dots, A_L`.

    Raises:
        DomainError: If an input is zero or anything is not finite.
        ShapeError: If inputs and targets differ in length.

    Example:
        >>> x = torch.tensor([[1.0, 0.0], [1.0, 0.2], [0.0, 1.0], [0.2, 1.0]])
        >>> infinite_alignment(x, torch.eye(2)[[0, 0, 1, 1]], depth=3)
        tensor([0.5398, 0.4352, 0.2573])

    References:
        [lou2022], the definition of A_l with the limits of Theorems 1 and 2.
    """
    require_axes(2, inputs=inputs, targets=targets)
    require_same_length(inputs=inputs, targets=targets)
    require_finite(targets=targets)
    require_count(1, depth=depth)
    scale, angle = first_layer(inputs, bias_variance)
    bare_scale, bare_angle = first_layer(inputs, 0.0)
    labels = double(targets) - double(targets).mean()
    alignments = []
    for layer, forward, log_backward in layers_backwards(angle, depth):
        s = bare_scale if layer == 1 else scale
        x = one_minus_cosine(bare_angle if layer == 1 else forward)
        b = -torch.expm1(log_backward)
        alignments.append(_alignment(s, x + b - x * b, labels))
    undefined = labels.norm() <= 8 * eps_of(targets) * double(targets).norm()
    values = torch.stack(alignments[::-1])
    return torch.where(undefined, torch.nan, values)


def _alignment(scale: Tensor, deficit: Tensor, labels: Tensor) -> Tensor:
    """``A`` of ``F ⊗ I`` for ``F = s sᵀ ∘ (1 - D)`` and labels that sum to zero."""
    outputs = labels.shape[1]
    lost = torch.outer(scale, scale) * deficit
    common = labels.mean(1, keepdim=True)  # the part of the labels shared by all outputs
    between = labels - common
    numerator = _form(between, scale, lost) + outputs * _form(center_columns(common), scale, lost)
    centered = scale - scale.mean()
    raw = torch.outer(scale, scale) - lost
    norm = (outputs - 1) * raw.square().sum()
    norm = norm + (torch.outer(centered, centered) - double_center(lost)).square().sum()
    return ratio_or_nan(numerator, norm.sqrt() * labels.square().sum())


def _form(columns: Tensor, scale: Tensor, lost: Tensor) -> Tensor:
    """``tr(Zᵀ F Z)``, the constant part and the loss apart."""
    return (scale @ columns).square().sum() - (columns * (lost @ columns)).sum()
