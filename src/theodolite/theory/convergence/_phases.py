"""Fast and slow processes: which part of the loss goes early, and what it costs in weight norm."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from theodolite.checks import require_between, require_positive
from theodolite.linalg import LabelProjections, array_function, double
from theodolite.theory.convergence._counts import first_step
from theodolite.theory.convergence._powers import power, progress, times
from theodolite.theory.convergence._setting import Steps, initial_mass, rates, require_convergence

__all__ = ["Phases", "phases"]


@dataclass(frozen=True)
class Phases:
    """The loss and the weight norm, split at a threshold on singular values."""

    fast_loss: Float[Tensor, "*t"]
    slow_loss: Float[Tensor, "*t"]
    floor: Float[Tensor, ""]
    fast_weight_norm: Float[Tensor, "*t"]
    slow_weight_norm: Float[Tensor, "*t"]
    fast_share: Float[Tensor, ""]  # fast loss at step 0: the alignment at the threshold
    slow_share: Float[Tensor, ""]
    fast_end: Float[Tensor, ""]  # first step with at most ``remaining`` of the fast share left


@array_function
def phases(
    projections: LabelProjections,
    step_size: float,
    steps: Steps,
    threshold: float,
    remaining: float = 0.05,
) -> Phases:
    r"""Gradient descent from zero, split into fast, slow and irreducible parts.

    Fast: :math:`\sigma_i \ge \tau`; slow: :math:`0 < \sigma_i < \tau`; floor: :math:`\sigma_i = 0`.

    .. math:: L_\text{fast}(t) = \sum_\text{fast} (1-\eta\sigma_i^2)^{2t} c_i^2, \qquad
              \|w_\text{fast}(t)\|^2 = \sum_\text{fast}
              \Bigl(\frac{1-(1-\eta\sigma_i^2)^t}{\sigma_i}\Bigr)^2 c_i^2 \le A(\tau)/\tau^2

    Stopping at the end of the fast phase keeps the weights below that bound, up to the little that
    the slow processes have moved. (The inequality needs :math:`\eta\sigma_1^2 \le 1`.)

    Args:
        projections: :math:`\sigma_i, c_i`, the result of ``label_projections``.
        step_size: :math:`\eta`, for half the sum of squares.
        steps: :math:`t`, one number or many.
        threshold: :math:`\tau > 0`.
        remaining: Share of the fast loss that ends the fast phase, in (0, 1).

    Raises:
        DomainError: If an argument is out of range or gradient descent diverges.

    Example:
        >>> two = LabelProjections(torch.tensor([1.0, 0.1]), torch.ones(2, 1), torch.ones(1), 3)
        >>> split = phases(two, 0.5, torch.tensor([0, 3]), threshold=0.5)
        >>> split.fast_loss, split.slow_loss, split.floor, split.fast_end
        (tensor([1.0000, 0.0156]), tensor([1.0000, 0.9704]), tensor(1.), tensor(3.))

    References:
        [imani2022], section 6.1 and Figure 8.
    """
    require_positive(threshold=threshold)
    require_between(0.0, 1.0, open_low=True, open_high=True, remaining=remaining)
    require_convergence(projections, step_size)
    rate, t = rates(projections, step_size, steps)
    sigma, mass = double(projections.singular_values), initial_mass(projections, None)
    fast = sigma >= threshold
    losses = times(power(rate, 2 * t), mass)
    squares = times(progress(rate, t), step_size * sigma * mass.sqrt()).square()
    shape = tuple(steps.shape) if isinstance(steps, Tensor) else ()
    fast_mass = torch.where(fast, mass, torch.zeros_like(mass))
    return Phases(
        fast_loss=losses[:, fast].sum(1).reshape(shape),
        slow_loss=losses[:, ~fast].sum(1).reshape(shape),
        floor=double(projections.residual).sum(),
        fast_weight_norm=squares[:, fast].sum(1).sqrt().reshape(shape),
        slow_weight_norm=squares[:, ~fast].sum(1).sqrt().reshape(shape),
        fast_share=mass[fast].sum(),
        slow_share=mass[~fast].sum(),
        fast_end=first_step(rate, fast_mass, (1 - remaining) * fast_mass.sum()),
    )
