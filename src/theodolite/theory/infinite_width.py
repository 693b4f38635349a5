"""The layer of a deep ReLU network where forward and backward information loss balance.

Infinitely wide networks at He initialisation; the rest of the theory is in
``theodolite_papers.lou2022.formulas.infinite_width``.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from theodolite.checks import require_between, require_count, require_positive

__all__ = ["backward_losses", "equilibrium_layer", "forward_losses"]

SERIES_BELOW = 1e-2  # sin t - t cos t loses digits here; three terms of its series lose none


def angle_sequence(correlation: float, depth: int) -> list[float]:
    """The angles of one pair of inputs in plain floats, a hundred times faster than 0-d tensors."""
    angle = math.acos(correlation)
    angles = [angle]
    for _ in range(depth - 1):
        square = angle * angle
        if angle < SERIES_BELOW:
            lost = angle * square * (1 / 3 - square / 30 + square * square / 840)
        else:
            lost = math.sin(angle) - angle * math.cos(angle)
        deficit = 2 * math.sin(angle / 2) ** 2 - lost / math.pi
        angle = 2 * math.asin(math.sqrt(min(max(deficit, 0.0), 1.0) / 2))
        angles.append(angle)
    return angles


def forward_losses(
    depth: int, correlation: float = -1.0, q_star: float = 1.0
) -> Float[Tensor, " depth"]:
    r"""Distance of the forward information from its limit, layers 1 to ``depth``.

    .. math:: \tfrac{q_*}2 - I^f_l = \tfrac{q_*}2 (1 - c_l) \sim \frac{9\pi^2 q_*}{4\,l^2}

    The forward information :math:`I^f_l` of the paper is the mean product of the features of two
    inputs before layer l. The correlation of their pre-activations in layer l is :math:`c_l`. Once
    it is 1, the layer no longer distinguishes the inputs. Opposite inputs, the default, give the
    largest distance of all pairs of inputs.

    Range: decreasing from at most :math:`q_*` towards 0.

    Args:
        depth: Number of layers.
        correlation: :math:`c_1`, the cosine of the two inputs.
        q_star: :math:`q_* = 2|x|^2/d`, the variance of a pre-activation.

    Returns:
        One float64 loss per layer.

    Raises:
        DomainError: If the depth is below 1, the cosine outside [-1, 1] or q_star not positive.

    Examples:
        >>> [round(loss, 4) for loss in forward_losses(4).tolist()]
        [1.0, 0.5, 0.3408, 0.2531]

    References:
        [lou2022], Theorem 1.

    Differs from paper:
        The paper gives the order :math:`l^{-2}`; the value and the constant are ours.
    """
    require_pair(depth, correlation)
    require_positive(q_star=q_star)
    angles = torch.tensor(angle_sequence(correlation, depth), dtype=torch.float64)
    return q_star * torch.sin(angles / 2).square()


def backward_losses(depth: int, correlation: float) -> Float[Tensor, " depth"]:
    r"""Backward information of layers 1 to ``depth``: its distance from the limit 0.

    .. math:: I^b_l = \prod_{k=l}^{L-1} g'(c_k) \sim (l/L)^3 \qquad (l/L \to 0)

    The backward information :math:`I^b_l` of the paper is the correlation of the gradients of two
    inputs at layer l. Each layer multiplies it by :math:`g'(c) = \arcsin(c)/\pi + 1/2`. The value
    increases with the cosine. So its supremum over pairs of inputs with a cosine below
    :math:`1 - \epsilon` is the value at :math:`c_1 = 1 - \epsilon`.

    Range: [0, 1], increasing with the layer; 1 at the last.

    Args:
        depth: :math:`L`.
        correlation: :math:`c_1`, the cosine of the two inputs.

    Returns:
        One float64 value per layer.

    Raises:
        DomainError: If the depth is below 1 or the cosine outside [-1, 1].

    Examples:
        >>> [round(value, 4) for value in backward_losses(3, correlation=0.0).tolist()]
        [0.3016, 0.6031, 1.0]

    References:
        [lou2022], Theorem 2 (ii).
    """
    require_pair(depth, correlation)
    angles = torch.tensor(angle_sequence(correlation, depth), dtype=torch.float64)
    logs = torch.log1p(-angles[:-1] / math.pi)
    from_the_end = torch.cat([logs.new_zeros(1), logs.flip(0)]).cumsum(0)
    return from_the_end.flip(0).exp()


def require_pair(depth: int, correlation: float) -> None:
    """Check the depth of a network and the cosine of two inputs."""
    require_count(1, depth=depth)
    require_between(-1.0, 1.0, correlation=correlation)


def equilibrium_layer(depth: int, correlation: float = 0.0, q_star: float = 1.0) -> float:
    r"""Layer at which :func:`forward_losses` and :func:`backward_losses` are equal.

    .. math:: \tfrac{q_*}2 (1 - c_l) = \prod_{k=l}^{L-1} g'(c_k)

    The left side falls and the right side rises with the layer, so they cross once. The crossing is
    interpolated between layers on the logarithms of both sides.

    Range: [1, L]; 1 if the right side is larger in layer 1 already.
    Undefined (``nan``): the left side is still larger in layer L (few layers, large ``q_star``).

    Args:
        depth: :math:`L`.
        correlation: :math:`c_1`, the cosine of two typical inputs.
        q_star: :math:`q_* = 2|x|^2/d`; the paper uses 1.

    Returns:
        The depth of the layer, counted from 1; not an integer in general.

    Raises:
        DomainError: If the depth is below 1, the cosine outside [-1, 1] or q_star not positive.

    Examples:
        >>> [round(equilibrium_layer(depth), 2) for depth in (10, 50, 100)]
        [3.96, 13.94, 23.05]

    References:
        [lou2022], Corollary 1 and the equilibrium hypothesis.

    Differs from paper:
        The paper states only the asymptotic order :math:`L^{3/5}`; see
        ``theodolite_papers.lou2022.formulas.infinite_width.asymptotic_equilibrium_layer``. The
        exact layer grows with exponents of 0.7 to 1 over depths 10 to 100. The exponent reaches 3/5
        only beyond depth 10,000.
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
