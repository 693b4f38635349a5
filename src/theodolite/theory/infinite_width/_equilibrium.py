"""Where forward and backward loss of information balance: the layer that the theory favours."""

import math

from theodolite.checks import require_count, require_positive
from theodolite.theory.infinite_width._losses import backward_losses, forward_losses

__all__ = ["asymptotic_equilibrium_layer", "equilibrium_layer"]


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
