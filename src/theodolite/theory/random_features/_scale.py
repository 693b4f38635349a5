r"""What the scale of the first layer does to alignment, and how to undo it exactly."""

import math
from dataclasses import dataclass

from theodolite.checks import require_choice, require_count, require_positive
from theodolite.theory.random_features._losses import LOSSES

__all__ = [
    "Compensation",
    "compensate",
    "hinge_large_scale_alignment",
    "small_scale_alignment",
    "softmax_large_scale_alignment",
]


@dataclass(frozen=True)
class Compensation:
    """Factors under which a run from scaled first-layer weights retraces the unscaled run."""

    parameter: float  # on the temperature, the margin or the target scale
    first_rate: float  # on the learning rate of the first layer
    top_rate: float  # on the learning rate of the top layer


def compensate(loss: str, scale: float) -> Compensation:
    r"""How to retrain exactly after the first layer was multiplied by a scale.

    For a two-layer network with a positively homogeneous activation (ReLU, linear), started at
    :math:`\alpha W_1, W_2` with the loss parameter times :math:`\alpha`:

    ======= ============== ============= ===============
    loss    parameter      rate of W1    rate of W2
    ======= ============== ============= ===============
    softmax temperature    α² η          η
    hinge   margin         α η           η / α
    squared target scale   η             η / α²
    ======= ============== ============= ===============

    :math:`W_1(t)/\alpha` and :math:`W_2(t)` are those of the unscaled run at every step. With the
    rates unchanged only the alignments at the start are restored.

    Args:
        loss: ``"softmax"``, ``"hinge"`` or ``"squared"``.
        scale: :math:`\alpha > 0`.

    Raises:
        DomainError: If the loss is unknown or the scale not positive.

    Example:
        >>> compensate("hinge", 4.0)
        Compensation(parameter=4.0, first_rate=4.0, top_rate=0.25)

    References:
        [mehta2021], section 4.
        Differs from paper: the remedies there leave the rates alone, which restores the alignment
        but not the dynamics.
    """
    require_choice(LOSSES, loss=loss)
    require_positive(scale=scale)
    if loss == "softmax":
        return Compensation(scale, scale**2, 1.0)
    if loss == "hinge":
        return Compensation(scale, scale, 1 / scale)
    return Compensation(scale, 1.0, 1 / scale**2)


def small_scale_alignment(loss: str, num_classes: int, per_class: int) -> float:
    r"""Alignment over all pairs of logit gradients at vanishing scale, balanced classes.

    .. math:: -\frac1{n-1} \;\text{(softmax, hinge)}, \qquad
              \frac{m-1}{n-1} \;\text{(squared)}, \qquad n = km

    Within a class it is 1 for every loss.

    Args:
        loss: ``"softmax"``, ``"hinge"`` or ``"squared"``.
        num_classes: :math:`k`, at least 2.
        per_class: :math:`m`, examples in each class.

    Raises:
        DomainError: If the loss is unknown or a count too small.

    Example:
        >>> round(small_scale_alignment("squared", num_classes=10, per_class=10), 4)
        0.0909

    References:
        [mehta2021], section 4.
        Differs from paper: "all gradients the same, alignment 1" holds within a class only.
    """
    require_choice(LOSSES, loss=loss)
    require_count(2, num_classes=num_classes)
    require_count(1, per_class=per_class)
    pairs = num_classes * per_class - 1
    return (per_class - 1) / pairs if loss == "squared" else -1 / pairs


def softmax_large_scale_alignment(num_classes: int) -> float:
    r"""In-class alignment of softmax logit gradients at infinite scale, predictions uniform.

    .. math:: \Omega_c = \frac{k}{2(k-1)}

    Args:
        num_classes: :math:`k`, at least 2.

    Raises:
        DomainError: If there are fewer than two classes.

    Example:
        >>> round(softmax_large_scale_alignment(10), 4)
        0.5556

    References:
        [mehta2021], section 4.
    """
    require_count(2, num_classes=num_classes)
    return num_classes / (2 * (num_classes - 1))


def hinge_large_scale_alignment(num_classes: int, logits: str = "exchangeable") -> float:
    r"""In-class alignment of hinge logit gradients at infinite scale (margin 0).

    .. math:: \Omega_c = \frac{k(k-1)/4}{\bigl(E\sqrt{m^2+m}\bigr)^2}

    with m the number of wrong logits above the true one: uniform on 0..k-1 for exchangeable
    logits, binomial if the comparisons were independent fair coins.

    Args:
        num_classes: :math:`k`, at least 2.
        logits: ``"exchangeable"``, or ``"independent"`` for the paper's model.

    Raises:
        DomainError: If there are fewer than two classes or the model is unknown.

    Example:
        >>> round(hinge_large_scale_alignment(10), 4)
        0.929
        >>> round(hinge_large_scale_alignment(10, "independent"), 4)
        0.9105

    References:
        [mehta2021], section 4.
        Differs from paper: its comparisons are independent, though they share the true logit.
    """
    require_count(2, num_classes=num_classes)
    require_choice(("exchangeable", "independent"), logits=logits)
    others = num_classes - 1
    if logits == "independent":
        chances = [math.comb(others, m) / 2**others for m in range(num_classes)]
    else:
        chances = [1 / num_classes] * num_classes
    mean_norm = sum(chance * math.sqrt(m * m + m) for m, chance in enumerate(chances))
    return num_classes * others / 4 / mean_norm**2
