"""How strong a filter is along each data direction: the curves f1, f2, f3, or one of your own."""

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from theodolite.checks import require_count, require_nonnegative
from theodolite.errors import ShapeError, UnknownNameError

__all__ = ["TAU_CURVES", "Tau", "tau_curve", "tau_values"]

TAU_CURVES = ("f1", "f2", "f3")
Tau = Literal["f1", "f2", "f3"] | Sequence[float] | Callable[[Tensor], Tensor]

# First two positions; from the third on the curves fall linearly from 4 to 1.
_STARTS = {"f1": (1.0, 2.5), "f3": (3.0, 3.5)}


def tau_curve(name: str, count: int) -> Float[Tensor, " count"]:
    """The curves of the paper for ``count`` directions, most important first.

    ``f2`` is 1 everywhere; ``f1`` damps the leading direction strongly and ``f3`` less, then both
    fall linearly from 4 in third place to 1 in the last.

    Args:
        name: ``"f1"``, ``"f2"`` or ``"f3"``.
        count: number of directions, 16 in the paper.

    Raises:
        UnknownNameError: If there is no such curve.

    Example:
        >>> tau_curve("f1", 6).tolist()
        [1.0, 2.5, 4.0, 3.0, 2.0, 1.0]

    References:
        [maennel2020], figure 23. Differs from paper: it shows f1 and f3 only as a drawing.
    """
    require_count(1, count=count)
    if name not in TAU_CURVES:
        raise UnknownNameError("tau curve", name, TAU_CURVES)
    if name == "f2":
        return torch.ones(count, dtype=torch.float64)
    fall = torch.linspace(4.0, 1.0, max(count - 2, 1), dtype=torch.float64)
    return torch.cat([fall.new_tensor(_STARTS[name]), fall])[:count]


def tau_values(
    tau: Tau, eigenvalues: Float[Tensor, " k"], *, exact: bool = True
) -> Float[Tensor, " k"]:
    r"""One strength per chosen direction.

    Args:
        tau: a curve by name; numbers, one per direction; or a function of
            :math:`\sigma = \sqrt\lambda`, the data's standard deviations along the directions.
        eigenvalues: :math:`\lambda` of the chosen directions.
        exact: numbers must be as many as directions; otherwise fewer leave the rest out.

    Raises:
        ShapeError: If the number of strengths does not fit.
        DomainError: If one is negative or not finite.
    """
    count = len(eigenvalues)
    if isinstance(tau, str):
        return tau_curve(tau, count).to(eigenvalues)
    if callable(tau):
        values = tau(eigenvalues.clamp(min=0).sqrt())
    else:
        values = torch.as_tensor(list(tau), dtype=eigenvalues.dtype)
    short = not exact and 0 < len(values) < count
    if values.ndim != 1 or (len(values) != count and not short):
        raise ShapeError(
            f"tau: expected one strength per direction ({count}), got shape {tuple(values.shape)}; "
            "a named curve ('f1', 'f2', 'f3') or a function fits layers of every width"
        )
    require_nonnegative(tau=values)
    padded = values.new_zeros(count)
    padded[: len(values)] = values
    return padded.to(eigenvalues)
