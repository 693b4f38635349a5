"""How one wide random ReLU layer maps the correlation of two inputs, and the map iterated.

With He initialisation (weight variance 2 / fan-in) the correlation of two pre-activations obeys
``c_{l+1} = g(c_l)``. It tends to 1 like ``1 / l²``, so that iterating ``c`` itself loses every
digit of ``1 - c``. All iterations here therefore run on the angle ``t = arccos c``.
"""

import math
from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from theodolite.checks import require_count, require_finite
from theodolite.errors import DomainError
from theodolite.linalg.arrays import array_function, double, eps_of

__all__ = [
    "angle_sequence",
    "angle_step",
    "layers_backwards",
    "log_derivative",
    "one_minus_cosine",
    "relu_angles",
    "relu_correlation",
    "relu_correlation_derivative",
]

_SERIES_BELOW = 1e-2  # sin t - t cos t loses digits here; three terms of its series lose none


@array_function
def relu_correlation(correlation: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    r"""Correlation of two pre-activations one layer further on.

    .. math:: g(c) = \frac{c\arcsin c + \sqrt{1-c^2}}{\pi} + \frac c2 = 2\,E[\phi(u)\phi(v)],
              \qquad \operatorname{corr}(u, v) = c,\; \phi = \text{ReLU}

    Range: [0, 1], increasing, :math:`g(c) > c` below 1.

    Args:
        correlation: :math:`c_l`, any shape; values past ±1 by rounding are clipped.

    Raises:
        DomainError: If a value lies outside [-1, 1] by more than rounding.

    Example:
        >>> relu_correlation(torch.tensor([-1.0, 0.0, 0.5, 1.0]))
        tensor([0.0000, 0.3183, 0.6090, 1.0000])

    References:
        [lou2022], Appendix A.3; [hayou2019].
    """
    c = _clipped(correlation)
    root = ((1 - c) * (1 + c)).sqrt()
    return ((c * torch.arcsin(c) + root) / math.pi + c / 2).clamp(0, 1)


@array_function
def relu_correlation_derivative(correlation: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    r"""Derivative of :func:`relu_correlation`: the factor of a gradient covariance per layer.

    .. math:: g'(c) = \frac{\arcsin c}{\pi} + \frac12 = 1 - \frac{\arccos c}{\pi}
              = 2\,P(u > 0,\, v > 0)

    Range: [0, 1], increasing.

    Args:
        correlation: :math:`c_l`, any shape; values past ±1 by rounding are clipped.

    Raises:
        DomainError: If a value lies outside [-1, 1] by more than rounding.

    Example:
        >>> relu_correlation_derivative(torch.tensor([-1.0, 0.0, 1.0])).tolist()
        [0.0, 0.5, 1.0]

    References:
        [lou2022], Appendix A.3.
    """
    return 1 - torch.arccos(_clipped(correlation)) / math.pi


@array_function
def relu_angles(correlation: Float[Tensor, "*shape"], depth: int) -> Float[Tensor, "depth *shape"]:
    r"""Angles :math:`t_l = \arccos c_l` of layers 1 to ``depth``, accurate at any depth.

    .. math:: 1 - c_{l+1} = 2\sin^2\tfrac{t_l}2 - \frac{\sin t_l - t_l\cos t_l}{\pi},
              \qquad t_{l+1} = 2\arcsin\sqrt{(1 - c_{l+1})/2}

    Args:
        correlation: :math:`c_1`, the cosine of the two inputs; any shape.
        depth: Number of layers :math:`L`.

    Raises:
        DomainError: If a correlation lies outside [-1, 1] or the depth is below 1.

    Example:
        >>> relu_angles(torch.tensor(0.0, dtype=torch.float64), 6).cos()[1:].mul(1e4).round()
        tensor([3183., 4937., 6048., 6810., 7359.], dtype=torch.float64)

    References:
        [lou2022], Appendix A.3.

    Differs from paper:
        The paper iterates the correlation, which is exhausted in float64 after some 10,000 layers.
    """
    require_count(1, depth=depth)
    angles = [torch.arccos(_clipped(correlation))]
    for _ in range(depth - 1):
        angles.append(angle_step(angles[-1]))
    return torch.stack(angles)


def _clipped(correlation: Tensor) -> Tensor:
    """Checked correlations in float64."""
    require_finite(correlation=correlation)
    excess = float(correlation.detach().abs().max()) - 1 if correlation.numel() else 0.0
    if excess > max(1e-9, 8 * eps_of(correlation)):
        raise DomainError(
            f"correlation: expected values in [-1, 1], got one of magnitude {1 + excess:.6g}; "
            "divide the inner product by both norms"
        )
    return double(correlation).clamp(-1, 1)


def one_minus_cosine(angle: Tensor) -> Tensor:
    """``1 - cos t`` without cancellation."""
    return 2 * torch.sin(angle / 2).square()


def log_derivative(angle: Tensor) -> Tensor:
    """``log g'(cos t)``; minus infinity for opposite directions."""
    return torch.log1p(-angle / math.pi)


def angle_step(angle: Tensor) -> Tensor:
    """The next layer's angle."""
    square = angle.square()
    series = angle * square * (1 / 3 - square / 30 + square.square() / 840)
    direct = torch.sin(angle) - angle * torch.cos(angle)
    lost = torch.where(angle < _SERIES_BELOW, series, direct)
    deficit = one_minus_cosine(angle) - lost / math.pi
    return 2 * torch.arcsin((deficit.clamp(0, 1) / 2).sqrt())


def angle_sequence(correlation: float, depth: int) -> list[float]:
    """The angles of one pair of inputs in plain floats, a hundred times faster than 0-d tensors."""
    angle = math.acos(correlation)
    angles = [angle]
    for _ in range(depth - 1):
        square = angle * angle
        if angle < _SERIES_BELOW:
            lost = angle * square * (1 / 3 - square / 30 + square * square / 840)
        else:
            lost = math.sin(angle) - angle * math.cos(angle)
        deficit = 2 * math.sin(angle / 2) ** 2 - lost / math.pi
        angle = 2 * math.asin(math.sqrt(min(max(deficit, 0.0), 1.0) / 2))
        angles.append(angle)
    return angles


def layers_backwards(angle: Tensor, depth: int) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Layer, its angles and the log of its backward information, from the last layer to the first.

    The logs are summed from the end, where they are small. Every ``sqrt(depth)``-th set of angles
    is kept and the others are computed twice, so that memory grows with the root of the depth.
    """
    stride = max(1, math.isqrt(depth))
    kept = [angle]
    for layer in range(2, depth + 1):
        angle = angle_step(angle)
        if (layer - 1) % stride == 0:
            kept.append(angle)
    log_backward = torch.zeros_like(angle)
    for index in reversed(range(len(kept))):
        first = index * stride + 1
        segment = [kept[index]]
        for _ in range(min(stride, depth - first + 1) - 1):
            segment.append(angle_step(segment[-1]))
        for offset in reversed(range(len(segment))):
            layer = first + offset
            if layer < depth:
                log_backward = log_backward + log_derivative(segment[offset])
            yield layer, segment[offset], log_backward
