"""A loss that is not finite stops the run, with the step and the likely cause."""

import math
from collections.abc import Sequence

from theodolite.errors import TheodoliteError
from theodolite.workbench.training.recipe import Recipe

__all__ = ["DivergenceError", "require_finite_losses"]


class DivergenceError(TheodoliteError, ArithmeticError):
    """The loss became nan or infinite; ``step`` says where."""

    def __init__(self, message: str, step: int) -> None:
        super().__init__(message)
        self.step = step


def require_finite_losses(
    losses: Sequence[float], first_step: int, recipe: Recipe, network: int | None = None
) -> None:
    """Each loss of consecutive steps is finite.

    Raises:
        DivergenceError: Naming the first step that is not, and why that usually happens.
    """
    for offset, loss in enumerate(losses):
        if not math.isfinite(loss):
            step = first_step + offset
            whose = "" if network is None else f" of network {network}"
            cause = _likely_cause(losses[:offset], step, recipe)
            raise DivergenceError(
                f"training diverged: expected finite losses, got {loss}{whose} at step {step} "
                f"(counted from 0); {cause}",
                step,
            )


def _likely_cause(before: Sequence[float], step: int, recipe: Recipe) -> str:
    if step == 0:
        return (
            "the likely cause is the initial network: its outputs overflow before any update; "
            "initialise with a smaller scale or standardise the inputs"
        )
    rate = recipe.learning_rate
    grew = len(before) > 1 and before[-1] > before[0]
    how = (
        f"the loss had grown from {before[0]:.3g} to {before[-1]:.3g}"
        if grew
        else ("one update was enough" if step <= 2 else "the loss jumped without growing first")
    )
    return (
        f"{how}, so the likely cause is a learning rate that is too large ({rate:g}); "
        f"try {rate / 10:g}"
    )
