"""Squared norms of sums over classes, from vectors that arrive in class order.

Memory is twice the length of a vector, whatever the number of classes: the sum of the class that is
open, and the sum over all classes.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from theodolite.quantities._example_gradients import Segment

__all__ = ["ClassTally"]


class ClassTally:
    r"""Accumulates :math:`\|\sum_{i \in c} v_i\|^2` per class and of the sum over all classes.

    Args:
        classes: number of classes.
        device: where vectors lie.
        scales: per class, a factor of its sum in a second total (for means of class means); filled
            in by the owner no later than the class closes.
    """

    def __init__(
        self, classes: int, device: torch.device, scales: Float[Tensor, " k"] | None = None
    ) -> None:
        self.squares = torch.zeros(classes, dtype=torch.float64, device=device)
        self._scales = scales
        self._open: Tensor | None = None
        self._total: Tensor | None = None
        self._scaled: Tensor | None = None

    def add(self, parts: Sequence[Segment], sums: Float[Tensor, "s p"]) -> None:
        """Sums of consecutive segments; the first may continue the open class."""
        wide = sums.double()
        if self._open is not None:
            wide[0] += self._open
        closed = len(parts) if parts[-1].closes else len(parts) - 1
        self._open = None if closed == len(parts) else wide[-1]
        if closed:
            labels = torch.tensor([part.label for part in parts[:closed]], device=wide.device)
            self._close(labels, wide[:closed])

    def _close(self, labels: Tensor, sums: Tensor) -> None:
        self.squares[labels] = torch.linalg.vector_norm(sums, dim=1).square()
        self._total = _plus(self._total, sums.sum(0))
        if self._scales is not None:
            self._scaled = _plus(self._scaled, self._scales[labels] @ sums)

    @property
    def running_square(self) -> Float[Tensor, ""]:
        """Squared norm of the sum over everything so far, the open class included."""
        parts = [part for part in (self._total, self._open) if part is not None]
        return _square(torch.stack(parts).sum(0) if parts else None, self.squares)

    @property
    def total_square(self) -> Float[Tensor, ""]:
        """Squared norm of the sum over all classes."""
        return _square(self._total, self.squares)

    @property
    def scaled_square(self) -> Float[Tensor, ""]:
        """Squared norm of the sum of scaled class sums."""
        return _square(self._scaled, self.squares)


def _plus(before: Tensor | None, more: Tensor) -> Tensor:
    return more if before is None else before.add_(more)


def _square(vector: Tensor | None, like: Tensor) -> Tensor:
    return like.new_zeros(()) if vector is None else vector.square().sum()
