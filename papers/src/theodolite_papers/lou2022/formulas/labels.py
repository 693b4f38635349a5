"""Correlation of labels and loss gradients, and the largest alignment of an uncoupled kernel."""

from jaxtyping import Float
from torch import Tensor

from theodolite.checks import require_axes, require_finite, require_nonempty, require_same_shape
from theodolite.linalg import (
    array_function,
    center_all,
    double,
    eps_of,
    nan_unless,
    ratio_or_nan,
    safe_sqrt,
    unit_peak,
    vanishes_when_centered,
)
from theodolite.measures.tangent.alignment import unit_vector


@array_function
def uncoupled_bound(targets: Float[Tensor, "n c"]) -> Float[Tensor, ""]:
    r"""Largest tangent alignment of any kernel of the form :math:`F \otimes I_c`.

    .. math:: \max_F A(F \otimes I_c, Y) = \frac{1}{\|\tilde Y\|^2}
              \sqrt{\frac{\|HGH\|_F^2}{c} + \frac{2\|HG1\|^2/n + (1^\top G1/n)^2}{c - 1}},
              \qquad G = \tilde Y\tilde Y^\top

    Last layers have that form always, and every layer has it at infinite width or in the lazy
    regime. A layer whose alignment exceeds the bound has coupled the tangent features of different
    outputs: it has learned features. On balanced one-hot labels of k classes the bound is
    :math:`1/\sqrt{k(k-1)}` (0.1054 for ten), attained at the centred label Gram; a forward kernel
    of perfect class blocks reaches :math:`1/\sqrt{k^2-1}`.

    Range: (0, 1]; 1 for a single output, where nothing can be coupled.
    Invariant to: scaling and shifting all targets, permutation of the examples.
    Undefined (``nan``): constant targets.

    Args:
        targets: :math:`Y`, e.g. one-hot labels.

    Raises:
        ShapeError: If the targets have not two axes, or no entries.
        DomainError: If they are not finite.

    Examples:
        >>> round(uncoupled_bound(torch.eye(10).repeat(3, 1)).item(), 4)
        0.1054

    References:
        Ours, for the alignment of [lou2022], Eq. (7). It is Cauchy-Schwarz, component by component
        of :math:`F` along and across the constant vector.
    """
    require_axes(2, targets=targets)
    require_nonempty(targets=targets)
    require_finite(targets=targets)
    Y = unit_peak(double(targets))
    Yt = center_all(Y)
    defined = ~vanishes_when_centered(Yt, Y, eps_of(targets))
    return ratio_or_nan(_largest_overlap(Yt), Yt.square().sum(), defined)


def _largest_overlap(Yt: Tensor) -> Tensor:
    """The root in the bound, from c x c products instead of the n x n Gram."""
    n, c = Yt.shape
    mean = Yt.mean(0)
    across = Yt - mean
    squared = (across.mT @ across).square().sum() / c
    if c > 1:  # for one output the mean is zero, and so are these terms
        cross = (across @ mean).square().sum() * n
        along = (n * mean.square().sum()).square()
        squared = squared + (2 * cross + along) / (c - 1)
    return safe_sqrt(squared)


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

    Examples:
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
    Yc, wc = center_all(Y), center_all(w)
    constant = vanishes_when_centered(Yc, Y, eps_of(targets))
    constant = constant | vanishes_when_centered(wc, w, eps_of(loss_gradient))
    return nan_unless(~constant, unit_vector(Yc.flatten()) @ unit_vector(wc.flatten()))
