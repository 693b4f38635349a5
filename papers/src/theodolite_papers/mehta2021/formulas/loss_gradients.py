r"""Logit gradients of the losses, and the effect of the scale of the first layer on them.

Each loss has a parameter that undoes a scale: softmax its temperature, the hinge its margin, the
squared loss the length of its targets.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from theodolite.checks import (
    require_axes,
    require_between,
    require_choice,
    require_count,
    require_finite,
    require_labels,
    require_nonempty,
    require_positive,
    require_same_length,
)
from theodolite.linalg import array_function, double

LOSSES = ("softmax", "hinge", "squared")


@array_function
def softmax_logit_gradient(
    logits: Float[Tensor, "n k"], labels: Int[Tensor, " n"], temperature: float = 1.0
) -> Float[Tensor, "n k"]:
    r"""Gradient of the softmax cross-entropy with temperature, per example.

    .. math:: \delta = (p - e_y)/T, \qquad p = \mathrm{softmax}(z/T)

    Range: each row sums to 0.
    Invariant to: adding a constant to a row of logits; scaling logits and temperature by
    :math:`\alpha` divides it by :math:`\alpha`.

    Args:
        logits: :math:`z`.
        labels: :math:`y`.
        temperature: :math:`T > 0`.

    Raises:
        DomainError: If a label is out of range, a logit not finite or the temperature not positive.

    Examples:
        >>> softmax_logit_gradient(torch.zeros(1, 2), torch.tensor([0]), temperature=2.0)
        tensor([[-0.2500,  0.2500]])

    References:
        [mehta2021], Eq. (7).
        Differs from paper: the paper drops the factor 1/T.
    """
    y = _one_hot(logits, labels)
    require_positive(temperature=temperature)
    return (torch.softmax(double(logits) / temperature, dim=1) - y) / temperature


@array_function
def hinge_logit_gradient(
    logits: Float[Tensor, "n k"], labels: Int[Tensor, " n"], margin: float = 1.0
) -> Float[Tensor, "n k"]:
    r"""Gradient of the multi-class hinge loss, per example.

    .. math:: \ell = \sum_{i\ne y}\max(0, \Delta + z_i - z_y), \qquad
              \delta_i = 1[\Delta + z_i - z_y > 0], \quad \delta_y = -\sum_{i\ne y}\delta_i

    Strict: a constraint met exactly is inactive.

    Range: each row sums to 0.
    Invariant to: scaling logits and margin together.

    Args:
        logits: :math:`z`.
        labels: :math:`y`.
        margin: :math:`\Delta \ge 0`.

    Raises:
        DomainError: If a label is out of range, a logit not finite or the margin negative.

    Examples:
        >>> hinge_logit_gradient(torch.tensor([[1.0, 0.0, 0.5]]), torch.tensor([0]))
        tensor([[-1.,  0.,  1.]])

    References:
        [mehta2021], Eqs. (8) and (9).
    """
    y = _one_hot(logits, labels)
    require_between(0.0, float("inf"), open_high=True, margin=margin)
    return _hinge(double(logits), y, margin)


@array_function
def squared_logit_gradient(
    logits: Float[Tensor, "n k"],
    labels: Int[Tensor, " n"],
    target_scale: float = 1.0,
    reduction: str = "half_sum",
) -> Float[Tensor, "n k"]:
    r"""Gradient of the squared loss against scaled one-hot targets, per example.

    .. math:: \delta = z - \beta e_y \;\text{(half\_sum)}, \qquad
              \delta = \tfrac2k(z - \beta e_y) \;\text{(mean)}

    Args:
        logits: :math:`z`.
        labels: :math:`y`.
        target_scale: :math:`\beta > 0`.
        reduction: ``"half_sum"`` for :math:`\tfrac12\|z - \beta e_y\|^2` (the paper's text),
            ``"mean"`` for the mean over classes (its program and figures).

    Raises:
        DomainError: If a label is out of range, a logit not finite or the scale not positive.

    Examples:
        >>> squared_logit_gradient(torch.zeros(1, 2), torch.tensor([1]))
        tensor([[ 0., -1.]])

    References:
        [mehta2021], section 4.
    """
    y = _one_hot(logits, labels)
    require_positive(target_scale=target_scale)
    require_choice(("half_sum", "mean"), reduction=reduction)
    factor = 1.0 if reduction == "half_sum" else 2 / logits.shape[1]
    return factor * (double(logits) - target_scale * y)


@array_function
def sigmoid_logit_gradient(
    logits: Float[Tensor, " n"], labels: Int[Tensor, " n"]
) -> Float[Tensor, " n"]:
    r"""Gradient of the binary logistic loss, per example.

    .. math:: \delta = \frac1{1+e^{-z}} - t

    Within a class all have one sign at every scale, so two classes show no misalignment.

    Args:
        logits: :math:`z`.
        labels: :math:`t`, 0 or 1.

    Raises:
        DomainError: If a label is neither 0 nor 1 or a logit not finite.

    Examples:
        >>> sigmoid_logit_gradient(torch.zeros(2), torch.tensor([0, 1]))
        tensor([ 0.5000, -0.5000])

    References:
        [mehta2021], section 4.
        Differs from paper: its softmax argument does not carry over to in-class logit gradients.
    """
    require_axes(1, logits=logits)
    require_same_length(logits=logits, labels=labels)
    require_labels(labels, 2)
    require_finite(logits=logits)
    z = double(logits)
    return torch.where(labels == 1, -torch.sigmoid(-z), torch.sigmoid(z))


@array_function
def small_scale_gradient(
    loss: str, labels: Int[Tensor, " n"], num_classes: int
) -> Float[Tensor, "n k"]:
    r"""Logit gradients as the scale of the logits vanishes: the same for a whole class.

    .. math:: \text{softmax: } \tfrac1k 1 - e_y, \qquad \text{hinge: } 1 - k e_y, \qquad
              \text{squared: } -e_y

    Their alignment within a class is 1 (at unit temperature, margin and target scale).

    Args:
        loss: ``"softmax"``, ``"hinge"`` or ``"squared"`` (half the sum of squares).
        labels: :math:`y`.
        num_classes: :math:`k`.

    Raises:
        DomainError: If the loss is unknown or a label out of range.

    Examples:
        >>> small_scale_gradient("hinge", torch.tensor([0]), 3)
        tensor([[-2.,  1.,  1.]], dtype=torch.float64)

    References:
        [mehta2021], section 4.
    """
    require_choice(LOSSES, loss=loss)
    require_labels(labels, num_classes)
    y = torch.nn.functional.one_hot(labels.long(), num_classes).double()
    if loss == "softmax":
        return 1 / num_classes - y
    return 1 - num_classes * y if loss == "hinge" else -y


@array_function
def large_scale_gradient(
    loss: str, logits: Float[Tensor, "n k"], labels: Int[Tensor, " n"]
) -> Float[Tensor, "n k"]:
    r"""Limit of the logit gradients at :math:`\alpha z` as :math:`\alpha \to \infty`.

    .. math:: \text{softmax: } e_{\arg\max z} - e_y, \qquad
              \text{hinge: } \delta_i = 1[z_i > z_y], \qquad
              \text{squared: } \delta/\alpha \to z

    Tied largest logits share the 1 equally. Wrong predictions differ within a class, and the
    alignment falls.

    Args:
        loss: ``"softmax"``, ``"hinge"`` or ``"squared"`` (half the sum of squares).
        logits: :math:`z`, at any scale.
        labels: :math:`y`.

    Raises:
        DomainError: If the loss is unknown, a label out of range or a logit not finite.

    Examples:
        >>> large_scale_gradient("softmax", torch.tensor([[1.0, 3.0, 2.0]]), torch.tensor([0]))
        tensor([[-1.,  1.,  0.]])

    References:
        [mehta2021], section 4.
    """
    require_choice(LOSSES, loss=loss)
    y = _one_hot(logits, labels)
    z = double(logits)
    if loss == "squared":
        return z
    if loss == "hinge":
        return _hinge(z, y, 0.0)
    top = (z == z.amax(1, keepdim=True)).double()
    return top / top.sum(1, keepdim=True) - y


def _hinge(z: Tensor, y: Tensor, margin: float) -> Tensor:
    own = (z * y).sum(1, keepdim=True)
    active = (margin + z - own > 0).double() * (1 - y)
    return active - y * active.sum(1, keepdim=True)


def _one_hot(logits: Tensor, labels: Tensor) -> Tensor:
    require_axes(2, logits=logits)
    require_nonempty(logits=logits)
    require_same_length(logits=logits, labels=labels)
    require_labels(labels, logits.shape[1])
    require_finite(logits=logits)
    return torch.nn.functional.one_hot(labels.long(), logits.shape[1]).to(double(logits))


@dataclass(frozen=True)
class Compensation:
    """Factors under which a run from scaled first-layer weights retraces the unscaled run."""

    parameter: float  # on the temperature, the margin or the target scale
    first_rate: float  # on the learning rate of the first layer
    top_rate: float  # on the learning rate of the top layer


def compensate(loss: str, scale: float) -> Compensation:
    r"""Learning rates and loss parameter that undo a scaling of the first layer.

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

    Examples:
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

    Examples:
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

    Examples:
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

    Examples:
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
