"""Signal propagation in infinitely wide, randomly initialised ReLU networks.

The network is ``z_1 = W_1 x``, ``z_l = W_l relu(z_{l-1})`` for ``l = 2 .. L``. Its weights have
variance 2 / fan-in (He). There are no biases except, if a variance is given, one in layer 1. The
correlation of two pre-activations obeys ``c_{l+1} = g(c_l)``. Its distance from 1 falls like
``1 / l²``, so iterating ``c`` itself would lose every digit of ``1 - c``. All iterations therefore
run on the angle ``t = arccos c``.

The paper calls the distance of a kernel from its constant limit a loss of information. A *small*
loss means that little information about the inputs is left. The layer where both losses balance is
:func:`theodolite.theory.infinite_width.equilibrium_layer`.
"""

import math
from collections.abc import Iterator

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from theodolite.checks import (
    require_axes,
    require_between,
    require_count,
    require_finite,
    require_nonempty,
    require_positive,
    require_same_length,
    require_same_shape,
    require_symmetric,
)
from theodolite.errors import DomainError
from theodolite.linalg import (
    alignment_from_norms,
    array_function,
    center_all,
    center_columns,
    double,
    double_center,
    eps_of,
    vanishes_when_centered,
)
from theodolite.theory.infinite_width import SERIES_BELOW, backward_losses


@array_function
def relu_correlation(correlation: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    r"""Correlation of two pre-activations in the next layer.

    .. math:: g(c) = \frac{c\arcsin c + \sqrt{1-c^2}}{\pi} + \frac c2 = 2\,E[\phi(u)\phi(v)],
              \qquad \operatorname{corr}(u, v) = c,\; \phi = \text{ReLU}

    Range: [0, 1], increasing, :math:`g(c) > c` below 1.

    Args:
        correlation: :math:`c_l`, any shape; values past ±1 by rounding are clipped.

    Raises:
        DomainError: If a value lies outside [-1, 1] by more than rounding.

    Examples:
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

    Examples:
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

    Examples:
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
    lost = torch.where(angle < SERIES_BELOW, series, direct)
    deficit = one_minus_cosine(angle) - lost / math.pi
    return 2 * torch.arcsin((deficit.clamp(0, 1) / 2).sqrt())


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

    Examples:
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

    Examples:
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
    r"""Information about the inputs before layer ``l``, at infinite width.

    .. math:: I^f_l(x, x') = E_W[\phi(z_{l-1}(x))\,\phi(z_{l-1}(x'))] = \tfrac12 q_l(x, x'),
              \qquad I^f_1 = \frac{x\cdot x'}d

    Range: symmetric positive semi-definite; tends to a rank-one matrix with depth.

    Args:
        inputs: :math:`x`, one row per example, none of them zero.
        layer: :math:`l \ge 1`; layer 1 sees the inputs themselves.
        bias_variance: :math:`\sigma_b^2` of a bias in the first layer.

    Raises:
        DomainError: If an input is zero or not finite, or the layer is below 1.

    Examples:
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
    r"""Information about the inputs in the gradient at layer ``l``, at infinite width.

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

    Examples:
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

    Examples:
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
    # Layer 1 multiplies the input; its own bias is added afterwards.
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

    Examples:
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
    labels = center_all(double(targets))
    alignments = []
    for layer, forward, log_backward in layers_backwards(angle, depth):
        s = bare_scale if layer == 1 else scale
        x = one_minus_cosine(bare_angle if layer == 1 else forward)
        b = -torch.expm1(log_backward)
        alignments.append(_alignment(s, x + b - x * b, labels))
    undefined = vanishes_when_centered(labels, double(targets), eps_of(targets))
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
    return alignment_from_norms(numerator, norm.sqrt(), labels.square().sum())


def _form(columns: Tensor, scale: Tensor, lost: Tensor) -> Tensor:
    """``tr(Zᵀ F Z)``, the constant part and the loss apart."""
    return (scale @ columns).square().sum() - (columns * (lost @ columns)).sum()


@array_function
def information_loss(values: Float[Tensor, "*shape"], limit: float) -> Float[Tensor, ""]:
    r"""Largest distance of a kernel from its constant limit.

    .. math:: \sup_{(x, x')} |k(x, x') - \kappa|

    Range: at least 0; 0 for a kernel that is the constant.

    Args:
        values: :math:`k(x, x')` over the pairs of a domain, e.g. those of :func:`is_separated`.
        limit: :math:`\kappa`.

    Raises:
        DomainError: If anything is not finite.

    Examples:
        >>> information_loss(torch.tensor([0.5, 0.25]), limit=0.5).item()
        0.25

    References:
        [lou2022], Definition 3.
    """
    require_nonempty(values=values)
    require_finite(values=values)
    require_between(-math.inf, math.inf, open_low=True, open_high=True, limit=limit)
    return (double(values) - limit).abs().max()


@array_function
def is_separated(
    inputs_a: Float[Tensor, "n d"], inputs_b: Float[Tensor, "n d"], margin: float
) -> Bool[Tensor, " n"]:
    r"""Whether pairs of inputs belong to the domain of the uniform statements.

    .. math:: E_\epsilon = \{(x, x') : |x|^2 = |x'|^2 = d,\; x\cdot x'/d < 1 - \epsilon\}

    The inequality is strict; the norms are compared up to rounding.

    Args:
        inputs_a: :math:`x`, one row per pair.
        inputs_b: :math:`x'`.
        margin: :math:`\epsilon` in (0, 1).

    Raises:
        DomainError: If the margin lies outside (0, 1) or an input is not finite.
        ShapeError: If the shapes differ.

    Examples:
        >>> x = torch.tensor([[1.0, 1.0], [1.0, 1.0]])
        >>> is_separated(x, torch.tensor([[1.0, -1.0], [1.0, 1.0]]), margin=0.5).tolist()
        [True, False]

    References:
        [lou2022], the domain of Theorems 1 and 2 (the sphere of radius sqrt(d) is S^{d-1}).
    """
    require_axes(2, inputs_a=inputs_a, inputs_b=inputs_b)
    require_same_shape(inputs_a=inputs_a, inputs_b=inputs_b)
    require_nonempty(inputs_a=inputs_a)
    require_finite(inputs_a=inputs_a, inputs_b=inputs_b)
    require_between(0.0, 1.0, open_low=True, open_high=True, margin=margin)
    a, b = double(inputs_a), double(inputs_b)
    d = a.shape[1]
    tolerance = 8 * d * eps_of(inputs_a, inputs_b)
    on_sphere = [(x.square().sum(1) - d).abs() <= tolerance for x in (a, b)]
    return on_sphere[0] & on_sphere[1] & ((a * b).sum(1) / d < 1 - margin)


def backward_fraction_loss(fraction: float, depth: int, margin: float) -> float:
    r"""Distance of the backward information at a fixed fraction of the depth from its limit.

    .. math:: \sup_{E_\epsilon} |I^b_{\lfloor\alpha L\rfloor} - \alpha^3|
              = \Theta\!\left(\frac{\log L}L\right)

    Args:
        fraction: :math:`\alpha` in (0, 1), with :math:`\lfloor\alpha L\rfloor \ge 2`: in layer 1
            the information of opposite inputs is 0 at every depth.
        depth: :math:`L`.
        margin: :math:`\epsilon` in (0, 1).

    Raises:
        DomainError: If an argument lies outside its domain.

    Examples:
        >>> round(backward_fraction_loss(0.5, 1000, margin=0.5), 4)
        0.005

    References:
        [lou2022], Theorem 2 (i).
    """
    require_between(0.0, 1.0, open_low=True, open_high=True, fraction=fraction, margin=margin)
    require_count(1, depth=depth)
    layer = math.floor(fraction * depth)
    require_count(2, **{"floor(fraction * depth)": layer})
    # Increasing in the cosine, so that one end of the domain is the farthest from the limit.
    ends = (float(backward_losses(depth, cosine)[layer - 1]) for cosine in (-1.0, 1 - margin))
    return max(abs(value - fraction**3) for value in ends)


def asymptotic_forward_loss(layer: int, q_star: float = 1.0) -> float:
    r"""Leading term of :func:`forward_losses`, the same for every pair of inputs.

    .. math:: \frac{q_*}2 \cdot \frac{9\pi^2}{2\,l^2}

    Args:
        layer: :math:`l \ge 1`.
        q_star: :math:`q_*`.

    Raises:
        DomainError: If the layer is below 1 or q_star not positive.

    Examples:
        >>> round(asymptotic_forward_loss(100), 6)
        0.002221

    References:
        [lou2022], Theorem 1, with the constant worked out here.
    """
    require_count(1, layer=layer)
    require_positive(q_star=q_star)
    return q_star / 2 * 4.5 * (math.pi / layer) ** 2


def asymptotic_derivative(layer: int) -> float:
    r"""Expansion of the factor :math:`g'(c_l)` that a gradient covariance gains per layer.

    .. math:: g'(c_l) = 1 - \frac3l + \frac92\frac{\log l}{l^2} + O(l^{-2})

    Args:
        layer: :math:`l \ge 1`.

    Raises:
        DomainError: If the layer is below 1.

    Examples:
        >>> round(asymptotic_derivative(1000), 6)
        0.997031

    References:
        [lou2022], Lemma 2 and its use in Theorem 2.

    Differs from paper:
        In Lemma 2 an additive constant is missing and the sign of the logarithm is wrong.
    """
    require_count(1, layer=layer)
    return 1 - 3 / layer + 4.5 * math.log(layer) / layer**2


def asymptotic_backward_information(fraction: float, depth: int) -> float:
    r"""Expansion of the backward information at a fraction of the depth.

    .. math:: \alpha^3 + \frac92\,\alpha^2(1-\alpha)\,\frac{\log L}L

    Args:
        fraction: :math:`\alpha = l/L` in (0, 1].
        depth: :math:`L`.

    Raises:
        DomainError: If the fraction lies outside (0, 1] or the depth is below 1.

    Examples:
        >>> round(asymptotic_backward_information(0.5, 1000), 4)
        0.1289

    References:
        [lou2022], Theorem 2 (i), with the constant worked out here.
    """
    require_between(0.0, 1.0, open_low=True, fraction=fraction)
    require_count(1, depth=depth)
    return fraction**3 + 4.5 * fraction**2 * (1 - fraction) * math.log(depth) / depth


def asymptotic_equilibrium_layer(depth: int, q_star: float = 1.0) -> float:
    r"""Leading term of the equilibrium layer of very deep networks: the 3/5 law.

    .. math:: l \sim \left(\tfrac{9\pi^2 q_*}4\right)^{1/5} L^{3/5}

    Args:
        depth: :math:`L`.
        q_star: :math:`q_*`.

    Raises:
        DomainError: If the depth is below 1 or q_star is not positive.

    Examples:
        >>> round(asymptotic_equilibrium_layer(100), 2)
        29.46

    References:
        [lou2022], Corollary 1, with the constant worked out here.
    """
    require_count(1, depth=depth)
    require_positive(q_star=q_star)
    return (2.25 * math.pi**2 * q_star) ** 0.2 * depth**0.6
