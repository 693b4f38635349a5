"""Does the loss push the outputs along the labels?"""

from jaxtyping import Float
from torch import Tensor

from theodolite.checks import require_axes, require_finite, require_nonempty, require_same_shape
from theodolite.linalg import (
    array_function,
    double,
    eps_of,
    nan_unless,
    unit_peak,
    vanishes_when_centered,
)
from theodolite.measures.tangent._label_angle import unit_vector
from theodolite.measures.tangent._labels import centered_over_all

__all__ = ["label_gradient_correlation"]


@array_function
def label_gradient_correlation(
    targets: Float[Tensor, "n c"], loss_gradient: Float[Tensor, "n c"]
) -> Float[Tensor, ""]:
    r"""Pearson correlation between the labels and the loss gradient in output space.

    .. math:: \mathrm{corr}(\tilde Y, w), \qquad w = \partial\mathcal L/\partial F

    Both sum to zero for the cross-entropy, so that it is a cosine. It is -1 while all logits of
    each example are equal: the loss then pushes the outputs exactly along the labels.

    Range: [-1, 1]; [-1, 0] for the cross-entropy, whatever the logits.
    Invariant to: scaling of either by a positive number, constants added to either, a common
    permutation of the examples, swapping the arguments.
    Undefined (``nan``): constant targets, or a gradient of zero (every example fitted perfectly).

    Args:
        targets: :math:`Y`, e.g. one-hot labels.
        loss_gradient: :math:`w`, e.g. from :func:`cross_entropy_gradient`.

    Raises:
        ShapeError: If the shapes differ.
        DomainError: If an entry is not finite.

    Example:
        >>> y = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> round(label_gradient_correlation(y, torch.softmax(torch.zeros(2, 2), 1) - y).item(), 4)
        -1.0

    References:
        [lou2022], Figure 6.
    """
    require_axes(2, targets=targets, loss_gradient=loss_gradient)
    require_nonempty(targets=targets)
    require_same_shape(targets=targets, loss_gradient=loss_gradient)
    require_finite(targets=targets, loss_gradient=loss_gradient)
    Y, w = unit_peak(double(targets)), unit_peak(double(loss_gradient))
    Yc, wc = centered_over_all(Y), centered_over_all(w)
    constant = vanishes_when_centered(Yc, Y, eps_of(targets))
    constant = constant | vanishes_when_centered(wc, w, eps_of(loss_gradient))
    return nan_unless(~constant, unit_vector(Yc.flatten()) @ unit_vector(wc.flatten()))
