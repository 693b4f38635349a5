"""The answer of :func:`tangent_alignments`: one number per layer, with what it is made of."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from theodolite.errors import UnknownNameError

__all__ = ["TangentAlignment", "TangentAlignments"]

Method = Literal["exact", "sketch"]


@dataclass(frozen=True)
class TangentAlignment:
    r"""Alignment of one layer's tangent kernel with the labels, in float64 on the CPU.

    Args:
        alignment: :math:`A_l`, nan where the centred kernel or the labels are zero.
        energy: :math:`\|\Psi_l \tilde Y\|^2`, the numerator before normalisation.
        norm: :math:`\|C K_l C\|_F`, or its estimate.
        error: Standard error of the alignment; zero where it is exact.
    """

    alignment: Float[Tensor, ""]
    energy: Float[Tensor, ""]
    norm: Float[Tensor, ""]
    error: Float[Tensor, ""]


@dataclass(frozen=True)
class TangentAlignments(Mapping[str, TangentAlignment]):
    """Layer -> alignment, in order of execution.

    Args:
        layers: The alignments.
        method: ``"exact"`` or ``"sketch"``.
        covariance: Covariance of the errors of all layers. Probes are common to them, so that
            differences between layers are known better than the layers themselves.
    """

    layers: dict[str, TangentAlignment]
    method: Method
    covariance: Float[Tensor, "layers layers"] = field(repr=False)

    def __getitem__(self, layer: str) -> TangentAlignment:
        if layer not in self.layers:
            raise UnknownNameError("layer", layer, self.layers)
        return self.layers[layer]

    def __contains__(self, layer: object) -> bool:
        return layer in self.layers

    def __iter__(self) -> Iterator[str]:
        return iter(self.layers)

    def __len__(self) -> int:
        return len(self.layers)

    @property
    def curve(self) -> Float[Tensor, " layers"]:
        """Alignments of all layers, one after the other."""
        return torch.stack([entry.alignment for entry in self.layers.values()])

    def difference_error(self, first: str, second: str) -> Float[Tensor, ""]:
        """Standard error of the difference between two layers' alignments."""
        names = list(self.layers)
        i, j = names.index(first), names.index(second)
        S = self.covariance
        return (S[i, i] + S[j, j] - 2 * S[i, j]).clamp(min=0.0).sqrt()

    def peak(self, errors: float = 2.0) -> str | None:
        """The layer with the largest alignment, or None if it is not resolved.

        Args:
            errors: By how many standard errors of the difference it must exceed every other layer.
        """
        curve = self.curve.nan_to_num(nan=-torch.inf)
        if curve.max() == -torch.inf:
            return None
        best = list(self.layers)[int(curve.argmax())]
        for other in self.layers:
            gap = self[best].alignment - self[other].alignment
            if other != best and gap <= errors * self.difference_error(best, other):
                return best if self.method == "exact" and gap == 0 else None
        return best
