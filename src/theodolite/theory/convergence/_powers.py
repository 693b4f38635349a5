r"""Powers of a contraction ``q = 1 - rate``, accurate for any number of steps.

``rate`` is :math:`\eta\sigma^2`: one step of gradient descent multiplies the error along a singular
direction by ``q``. Between 1 and 2 the base is negative and odd powers keep its sign; close to 2
a power inherits the rounding of the rate times the number of steps.
"""

import torch
from torch import Tensor

__all__ = ["log_contraction", "one_minus_power", "power", "progress", "times"]


def log_contraction(rate: Tensor) -> Tensor:
    """``log|1 - rate|``, which is ``-inf`` at ``rate = 1``."""
    below = torch.log1p(-rate.clamp(max=1))  # log1p: a rate of 1e-24 would vanish in 1 - rate
    return torch.where(rate < 1, below, (rate - 1).clamp(min=0).log())


def power(rate: Tensor, steps: Tensor) -> Tensor:
    """``(1 - rate) ** steps``."""
    magnitude = torch.exp(steps * log_contraction(rate))
    signed = torch.where(_is_negative(rate, steps), -magnitude, magnitude)
    return torch.where(steps == 0, torch.ones_like(signed), signed)  # not nan for 0 * -inf


def one_minus_power(rate: Tensor, steps: Tensor) -> Tensor:
    """``1 - (1 - rate) ** steps`` without cancellation."""
    exponent = steps * log_contraction(rate)
    odd_and_negative = _is_negative(rate, steps)
    value = torch.where(odd_and_negative, 1 + exponent.exp(), -torch.expm1(exponent))
    return torch.where(steps == 0, torch.zeros_like(value), value)


def progress(rate: Tensor, steps: Tensor) -> Tensor:
    """``(1 - (1 - rate) ** steps) / rate``, which tends to ``steps`` as the rate vanishes."""
    safe = torch.where(rate > 0, rate, torch.ones_like(rate))
    return torch.where(
        rate > 0, one_minus_power(rate, steps) / safe, steps + torch.zeros_like(rate)
    )


def times(factor: Tensor, amount: Tensor) -> Tensor:
    """``factor * amount``, zero where the amount is, also where the factor has overflowed."""
    return torch.where(amount == 0, torch.zeros_like(factor * amount), factor * amount)


def _is_negative(rate: Tensor, steps: Tensor) -> Tensor:
    return (rate > 1) & (steps.remainder(2) == 1)
