"""Labels as the tangent measures see them: stacked over examples and outputs, and centred."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from theodolite.checks import require_axes, require_finite, require_labels, require_nonempty
from theodolite.errors import DomainError
from theodolite.linalg import array_function, double

__all__ = ["centered_labels", "centered_over_all"]


@array_function
def centered_labels(
    labels: Int[Tensor, " n"] | Float[Tensor, "n c"], num_classes: int | None = None
) -> Float[Tensor, "n k"]:
    r"""Targets minus their mean over all examples and outputs.

    .. math:: \tilde Y = Y - \tfrac1m \textstyle\sum_{x,i} Y_{xi}, \qquad m = nk

    For class labels that is :math:`Y - 1/k` whatever the balance of the classes, with
    :math:`\|\tilde Y\|^2 = n(k-1)/k`. Constant targets (one class in all) give zeros, for which
    every alignment is undefined.

    Args:
        labels: class labels, one-hot encoded here, or targets :math:`Y` with one column per output.
        num_classes: :math:`k`, for class labels; by default one more than the largest of them.

    Raises:
        DomainError: If a label lies outside ``0 .. num_classes - 1``, or targets are not finite.
        ShapeError: If there are no examples.

    Example:
        >>> centered_labels(torch.tensor([0, 1, 1])).tolist()
        [[0.5, -0.5], [-0.5, 0.5], [-0.5, 0.5]]

    References:
        [lou2022], Section 2.
        Differs from paper: balanced classes are not needed, the mean of one-hot labels is 1/k.
    """
    if not labels.is_floating_point():
        count = require_labels(labels, num_classes)
        one_hot = torch.nn.functional.one_hot(labels.long(), count).double()
        return one_hot - 1 / count
    require_axes(2, labels=labels)
    require_nonempty(labels=labels)
    require_finite(labels=labels)
    if num_classes not in (None, labels.shape[1]):
        raise DomainError(
            f"num_classes: expected {labels.shape[1]}, the columns of the targets, or none, "
            f"got {num_classes}"
        )
    return centered_over_all(double(labels))


def centered_over_all(targets: Tensor) -> Tensor:
    """Targets minus the mean of all their entries."""
    return targets - targets.mean()
