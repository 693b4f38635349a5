"""A loss that is not finite stops the run, with the step and the likely cause."""

import math
from collections.abc import Sequence

from theodolite.errors import TheodoliteError
from theodolite_papers.lab.training.recipe import Recipe

__all__ = ["DivergenceError", "require_finite_losses"]


class DivergenceError(TheodoliteError, ArithmeticError):
    """The loss became nan or infinite; ``step`` says where."""

    def __init__(self, message: str, step: int) -> None:
        super().__init__(message)
        self.step = step


def require_finite_losses(
    losses: Sequence[float],
    first_step: int,
    recipe: Recipe,
    earlier: Sequence[float] = (),
    network: int | None = None,
) -> None:
    """Each loss of consecutive steps is finite.

    Args:
        losses: of the steps from ``first_step`` on.
        first_step: counted from 0.
        recipe: of the run.
        earlier: losses before that, for the message.
        network: which of an ensemble.

    Raises:
        DivergenceError: Naming the first step that is not finite, and why that usually happens.
    """
    for offset, loss in enumerate(losses):
        if not math.isfinite(loss):
            step = first_step + offset
            whose = "" if network is None else f" of network {network}"
            cause = _likely_cause([*earlier, *losses[:offset]], recipe)
            raise DivergenceError(
                f"training diverged: expected finite losses, got {loss}{whose} at step {step} "
                f"(counted from 0); {cause}",
                step,
            )


def _likely_cause(before: Sequence[float], recipe: Recipe) -> str:
    if not before:
        return (
            "the likely cause is the initial network: its outputs overflow before any update; "
            "initialise with a smaller scale or standardise the inputs"
        )
    rate = recipe.learning_rate
    if before[-1] > before[0]:
        how = f"the loss had grown from {before[0]:.3g} to {before[-1]:.3g}"
    else:
        how = "one update was enough" if len(before) == 1 else "the loss jumped within one step"
    return (
        f"{how}, so the likely cause is a learning rate that is too large ({rate:g}); "
        f"try {rate / 10:g}"
    )
