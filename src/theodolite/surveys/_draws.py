"""Permutations and half-samples: drawn once, the same for every layer and family."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

__all__ = ["Draws"]


@dataclass(frozen=True)
class Draws:
    """Random numbers behind nulls and errors.

    Any number of leading examples can be permuted with the same numbers.

    Args:
        permuted: a number per permutation and example; their order is the permutation.
        halved: a number per half-sample and example.
    """

    permuted: Float[Tensor, "b n"]
    halved: Float[Tensor, "h n"]

    @classmethod
    def of(cls, examples: int, nulls: int, halves: int, generator: torch.Generator) -> "Draws":
        """Draw them all."""
        device = generator.device
        permuted = torch.rand(nulls, examples, generator=generator, device=device).cpu()
        return cls(permuted, torch.rand(halves, examples, generator=generator, device=device).cpu())

    def orders(self, count: int) -> Int[Tensor, "b m"]:
        """Permutations of the first examples."""
        return self.permuted[:, :count].argsort(1)

    def halves(self, count: int) -> Int[Tensor, "h k"]:
        """Halves of the first examples, without repetition, each in increasing order.

        The spread over halves estimates the standard error itself: a sample of n of which half is
        deleted has the jackknife's factor (n - d) / d = 1. Bootstrap samples repeat examples,
        which measures that leave out an example's pairing with itself cannot bear.
        """
        return self.halved[:, :count].argsort(1)[:, : count // 2].sort(1).values

    def shuffled(self, columns: Float[Tensor, "m c"]) -> Float[Tensor, "b m c"]:
        """Targets in the order of every permutation."""
        return columns[self.orders(len(columns)).to(columns.device)]
