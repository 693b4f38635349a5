"""How fast input geometry is forgotten, forward and backward, and where the two balance.

A *small* loss of order ``r_n`` means that much was forgotten: it is the distance from the limit
that is left. Exact values and the rates that they follow.
"""

import math

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
    require_same_shape,
)
from theodolite.linalg import array_function, double, eps_of
from theodolite.theory.infinite_width._kernels import angle_sequence


@array_function
def information_loss(values: Float[Tensor, "*shape"], limit: float) -> Float[Tensor, ""]:
    r"""Largest distance of a kernel from the constant that it tends to.

    .. math:: \sup_{(x, x')} |k(x, x') - \kappa|

    Range: at least 0; 0 for a kernel that is the constant.

    Args:
        values: :math:`k(x, x')` over the pairs of a domain, e.g. those of :func:`is_separated`.
        limit: :math:`\kappa`.

    Raises:
        DomainError: If anything is not finite.

    Example:
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

    Example:
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


def forward_losses(
    depth: int, correlation: float = -1.0, q_star: float = 1.0
) -> Float[Tensor, " depth"]:
    r"""Distance of the forward information from its limit, layers 1 to ``depth``.

    .. math:: \tfrac{q_*}2 - I^f_l = \tfrac{q_*}2 (1 - c_l) \sim \frac{9\pi^2 q_*}{4\,l^2}

    The supremum over all pairs of inputs is taken by opposite inputs, the default.

    Range: decreasing from at most :math:`q_*` towards 0.

    Args:
        depth: Number of layers.
        correlation: :math:`c_1`, the cosine of the two inputs.
        q_star: :math:`q_* = 2|x|^2/d`, the variance of a pre-activation.

    Returns:
        One float64 loss per layer.

    Raises:
        DomainError: If the depth is below 1, the cosine outside [-1, 1] or q_star not positive.

    Example:
        >>> [round(loss, 4) for loss in forward_losses(4).tolist()]
        [1.0, 0.5, 0.3408, 0.2531]

    References:
        [lou2022], Theorem 1.

    Differs from paper:
        The paper gives the order :math:`l^{-2}`; value and constant are worked out here.
    """
    _require_pair(depth, correlation)
    require_positive(q_star=q_star)
    angles = torch.tensor(angle_sequence(correlation, depth), dtype=torch.float64)
    return q_star * torch.sin(angles / 2).square()


def backward_losses(depth: int, correlation: float) -> Float[Tensor, " depth"]:
    r"""Backward information of layers 1 to ``depth``: its distance from the limit 0.

    .. math:: I^b_l = \prod_{k=l}^{L-1} g'(c_k) \sim (l/L)^3 \qquad (l/L \to 0)

    It increases with the cosine: the supremum over :math:`E_\epsilon` is the value at
    :math:`c_1 = 1 - \epsilon`.

    Range: [0, 1], increasing with the layer; 1 at the last.

    Args:
        depth: :math:`L`.
        correlation: :math:`c_1`, the cosine of the two inputs.

    Returns:
        One float64 value per layer.

    Raises:
        DomainError: If the depth is below 1 or the cosine outside [-1, 1].

    Example:
        >>> [round(value, 4) for value in backward_losses(3, correlation=0.0).tolist()]
        [0.3016, 0.6031, 1.0]

    References:
        [lou2022], Theorem 2 (ii).
    """
    _require_pair(depth, correlation)
    angles = torch.tensor(angle_sequence(correlation, depth), dtype=torch.float64)
    logs = torch.log1p(-angles[:-1] / math.pi)
    from_the_end = torch.cat([logs.new_zeros(1), logs.flip(0)]).cumsum(0)
    return from_the_end.flip(0).exp()


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

    Example:
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

    Example:
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

    Example:
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

    Example:
        >>> round(asymptotic_backward_information(0.5, 1000), 4)
        0.1289

    References:
        [lou2022], Theorem 2 (i), with the constant worked out here.
    """
    require_between(0.0, 1.0, open_low=True, fraction=fraction)
    require_count(1, depth=depth)
    return fraction**3 + 4.5 * fraction**2 * (1 - fraction) * math.log(depth) / depth


def _require_pair(depth: int, correlation: float) -> None:
    require_count(1, depth=depth)
    require_between(-1.0, 1.0, correlation=correlation)


def equilibrium_layer(depth: int, correlation: float = 0.0, q_star: float = 1.0) -> float:
    r"""Layer at which the two losses of a network of finite depth are equal.

    .. math:: \tfrac{q_*}2 (1 - c_l) = \prod_{k=l}^{L-1} g'(c_k)

    The left side falls and the right side rises with the layer, so that there is one crossing,
    interpolated between layers on the logarithms of both.

    Range: [1, L]; 1 where the right side is the larger one already in layer 1.
    Undefined (``nan``): the left side is still larger in layer L (few layers, large ``q_star``).

    Args:
        depth: :math:`L`.
        correlation: :math:`c_1`, the cosine of two typical inputs.
        q_star: :math:`q_* = 2|x|^2/d`; the paper uses 1.

    Raises:
        DomainError: If the depth is below 1, the cosine outside [-1, 1] or q_star not positive.

    Example:
        >>> [round(equilibrium_layer(depth), 2) for depth in (10, 50, 100)]
        [3.96, 13.94, 23.05]

    References:
        [lou2022], Corollary 1 and the equilibrium hypothesis.

    Differs from paper:
        The paper states the asymptotic order :math:`L^{3/5}` alone, see
        :func:`asymptotic_equilibrium_layer`; the exact balance grows with exponents of 0.7 to 1
        over depths 10 to 100 and reaches 3/5 only beyond depth 10,000.
    """
    falling = forward_losses(depth, correlation, q_star).log()
    rising = backward_losses(depth, correlation).log()
    excess = (falling - rising).tolist()  # decreasing; -inf for equal, +inf for opposite inputs
    crossed = next((index for index, value in enumerate(excess) if value <= 0), None)
    if crossed is None:
        return math.nan
    if crossed == 0:
        return 1.0
    before, after = excess[crossed - 1], excess[crossed]
    share = 1.0 if math.isinf(before) else before / (before - after)
    return crossed + share


def asymptotic_equilibrium_layer(depth: int, q_star: float = 1.0) -> float:
    r"""Leading term of the balance for very deep networks: the 3/5 law.

    .. math:: l \sim \left(\tfrac{9\pi^2 q_*}4\right)^{1/5} L^{3/5}

    Args:
        depth: :math:`L`.
        q_star: :math:`q_*`.

    Raises:
        DomainError: If the depth is below 1 or q_star is not positive.

    Example:
        >>> round(asymptotic_equilibrium_layer(100), 2)
        29.46

    References:
        [lou2022], Corollary 1, with the constant worked out here.
    """
    require_count(1, depth=depth)
    require_positive(q_star=q_star)
    return (2.25 * math.pi**2 * q_star) ** 0.2 * depth**0.6
