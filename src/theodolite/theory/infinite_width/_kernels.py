"""Covariances and layer kernels of an infinitely wide, randomly initialised ReLU network.

The network is ``z_1 = W_1 x``, ``z_l = W_l relu(z_{l-1})`` for ``l = 2 .. L``, weights of variance
2 / fan-in (He), no biases except, where asked for, one of the given variance in layer 1.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from theodolite.checks import (
    require_axes,
    require_between,
    require_count,
    require_finite,
    require_nonempty,
    require_same_length,
    require_symmetric,
)
from theodolite.errors import DomainError
from theodolite.linalg.arrays import array_function, double, eps_of
from theodolite.theory.infinite_width._relu import (
    angle_step,
    log_derivative,
    one_minus_cosine,
)

__all__ = [
    "backward_information",
    "forward_information",
    "gradient_covariance",
    "layer_kernel",
    "nngp_covariance",
]


@array_function
def nngp_covariance(
    inputs: Float[Tensor, "n d"], layer: int, bias_variance: float = 0.0
) -> Float[Tensor, "n n"]:
    r"""Covariance of one pre-activation of a layer between inputs (the NNGP kernel).

    .. math:: q_1(x, x') = \frac{2\,x\cdot x'}d + \sigma_b^2,\qquad
              q_l(x, x') = \sqrt{q_{l-1}(x)\,q_{l-1}(x')}\;g(c_{l-1})

    Range: symmetric positive semi-definite; the diagonal is the same for every layer.

    Args:
        inputs: :math:`x`, one row per example, none of them zero.
        layer: :math:`l \ge 1`.
        bias_variance: :math:`\sigma_b^2` of a bias in the first layer.

    Raises:
        DomainError: If an input is zero or not finite, or the layer is below 1.

    Example:
        >>> x = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
        >>> nngp_covariance(x, 2)
        tensor([[1.0000, 0.6366],
                [0.6366, 4.0000]])

    References:
        [lou2022], Appendix A.3; [lee2018].
    """
    require_count(1, layer=layer)
    scale, angle = first_layer(inputs, bias_variance)
    for _ in range(layer - 1):
        angle = angle_step(angle)
    return torch.outer(scale, scale) * torch.cos(angle)


@array_function
def gradient_covariance(
    inputs: Float[Tensor, "n d"],
    layer: int,
    output_covariance: Float[Tensor, "n n"],
    depth: int,
    bias_variance: float = 0.0,
) -> Float[Tensor, "n n"]:
    r"""Covariance between inputs of the gradient that arrives at a layer.

    .. math:: \tilde q_l = \tilde q_L \prod_{k=l}^{L-1} g'(c_k)

    Args:
        inputs: :math:`x`, one row per example, none of them zero.
        layer: :math:`l`, from 1 to the depth.
        output_covariance: :math:`\tilde q_L`, that of the gradient at the last layer.
        depth: :math:`L`.
        bias_variance: :math:`\sigma_b^2` of a bias in the first layer.

    Raises:
        DomainError: If an input is zero, or the layer lies outside 1 .. depth.

    Example:
        >>> gradient_covariance(torch.eye(2), 1, torch.ones(2, 2), 2)
        tensor([[1.0000, 0.5000],
                [0.5000, 1.0000]])

    References:
        [lou2022], Lemma 1.
    """
    require_symmetric(output_covariance=output_covariance)
    require_same_length(inputs=inputs, output_covariance=output_covariance)
    return double(output_covariance) * _backward(inputs, layer, depth, bias_variance)


@array_function
def forward_information(
    inputs: Float[Tensor, "n d"], layer: int, bias_variance: float = 0.0
) -> Float[Tensor, "n n"]:
    r"""What is left of the input geometry in front of layer ``l``, at infinite width.

    .. math:: I^f_l(x, x') = E_W[\phi(z_{l-1}(x))\,\phi(z_{l-1}(x'))] = \tfrac12 q_l(x, x'),
              \qquad I^f_1 = \frac{x\cdot x'}d

    Range: symmetric positive semi-definite; tends to a rank-one matrix with depth.

    Args:
        inputs: :math:`x`, one row per example, none of them zero.
        layer: :math:`l \ge 1`; layer 1 sees the inputs themselves.
        bias_variance: :math:`\sigma_b^2` of a bias in the first layer.

    Raises:
        DomainError: If an input is zero or not finite, or the layer is below 1.

    Example:
        >>> forward_information(torch.eye(2), 2)
        tensor([[0.5000, 0.1592],
                [0.1592, 0.5000]])

    References:
        [lou2022], Definition 1 and Theorem 1.

    Differs from paper:
        The paper takes :math:`q(x, x) = 1`; with its own initialisation and :math:`|x|^2 = d` the
        diagonal of :math:`I^f` is 1, not 1/2.
    """
    require_count(1, layer=layer)
    scale, deficit = forward_parts(inputs, layer, bias_variance)
    return torch.outer(scale, scale) * (1 - deficit)


@array_function
def backward_information(
    inputs: Float[Tensor, "n d"], layer: int, depth: int, bias_variance: float = 0.0
) -> Float[Tensor, "n n"]:
    r"""What is left of the input geometry in the gradient that reaches layer ``l``.

    .. math:: I^b_l(x, x') = \lim_{N\to\infty} N\,E_W\!\left[
              \frac{\partial f}{\partial z_l^1}(x)\frac{\partial f}{\partial z_l^1}(x')\right]
              = \prod_{k=l}^{L-1} g'(c_k)

    Range: [0, 1]; 1 on the diagonal and for ``layer == depth``; increasing with the layer.

    Args:
        inputs: :math:`x`, one row per example, none of them zero.
        layer: :math:`l`, from 1 to the depth.
        depth: :math:`L`, the number of weight matrices.
        bias_variance: :math:`\sigma_b^2` of a bias in the first layer.

    Raises:
        DomainError: If an input is zero, or the layer lies outside 1 .. depth.

    Example:
        >>> backward_information(torch.eye(2), layer=1, depth=3)
        tensor([[1.0000, 0.3016],
                [0.3016, 1.0000]])

    References:
        [lou2022], Definition 2 and Theorem 2.

    Differs from paper:
        The literal limit is 0, since one gradient entry has variance of order 1/N; the sum over
        the N units of the layer is meant.
    """
    return _backward(inputs, layer, depth, bias_variance)


@array_function
def layer_kernel(
    inputs: Float[Tensor, "n d"], layer: int, depth: int, bias_variance: float = 0.0
) -> Float[Tensor, "n n"]:
    r"""Tangent kernel of one layer's weights at infinite width, per output.

    .. math:: \frac{K_l}{N_{l-1}} \to (I^f_l \circ I^b_l) \otimes I_o

    Range: symmetric positive semi-definite.

    Args:
        inputs: :math:`x`, one row per example, none of them zero.
        layer: :math:`l`, from 1 to the depth.
        depth: :math:`L`.
        bias_variance: :math:`\sigma_b^2` of a bias in the first layer (random, not trained).

    Returns:
        The factor :math:`I^f_l \circ I^b_l`, the same for each of the outputs.

    Raises:
        DomainError: If an input is zero, or the layer lies outside 1 .. depth.

    Example:
        >>> layer_kernel(torch.eye(2), layer=2, depth=3)
        tensor([[0.5000, 0.0960],
                [0.0960, 0.5000]])

    References:
        [lou2022], Eq. (9) and Appendix A.
    """
    backward = _backward(inputs, layer, depth, bias_variance)
    scale, deficit = forward_parts(inputs, layer, bias_variance)
    return torch.outer(scale, scale) * (1 - deficit) * backward


def first_layer(inputs: Tensor, bias_variance: float) -> tuple[Tensor, Tensor]:
    """``sqrt(q_1(x, x))`` and the angles between inputs; the bias is one more input column."""
    require_axes(2, inputs=inputs)
    require_nonempty(inputs=inputs)
    require_finite(inputs=inputs)
    require_between(0.0, float("inf"), open_high=True, bias_variance=bias_variance)
    if bool((inputs == 0).all(1).any()):
        raise DomainError(
            "inputs: expected no zero row, since a zero input has no direction; "
            "remove such examples"
        )
    x = double(inputs) * (2 / inputs.shape[1]) ** 0.5
    x = torch.cat([x, x.new_full((len(x), 1), bias_variance**0.5)], dim=1)
    scale = torch.linalg.vector_norm(x, dim=1)
    return scale, _angles_between(x / scale.unsqueeze(1), 8 * eps_of(inputs))


def _angles_between(unit: Tensor, tolerance: float) -> Tensor:
    """Angles of all pairs of unit rows, accurate for equal and for opposite rows."""
    exact = "donot_use_mm_for_euclid_dist"
    apart = torch.cdist(unit, unit, compute_mode=exact)
    together = torch.cdist(unit, -unit, compute_mode=exact)
    angle = 2 * torch.atan2(apart, together)
    return torch.where(angle <= tolerance, 0.0, angle).fill_diagonal_(0.0)


def forward_parts(inputs: Tensor, layer: int, bias_variance: float) -> tuple[Tensor, Tensor]:
    """``s`` and ``D`` with forward information ``s s' (1 - D)``; D keeps the digits of 1 - c."""
    # What layer 1 multiplies is the input alone: its own bias comes later.
    scale, angle = first_layer(inputs, 0.0 if layer == 1 else bias_variance)
    for _ in range(layer - 1):
        angle = angle_step(angle)
    return scale / 2**0.5, one_minus_cosine(angle)


def _backward(inputs: Tensor, layer: int, depth: int, bias_variance: float) -> Tensor:
    require_count(1, depth=depth)
    require_count(1, layer=layer)
    require_between(1.0, float(depth), layer=float(layer))
    _, angle = first_layer(inputs, bias_variance)
    log_backward = torch.zeros_like(angle)
    for current in range(1, depth):
        if current >= layer:
            log_backward = log_backward + log_derivative(angle)
        angle = angle_step(angle)
    return torch.exp(log_backward)
