"""A centred kernel beside a centred unit label vector: what alignment and its parts share."""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.linalg import vector_norm

from theodolite.linalg import double, double_center, eps_of, unit_peak, vanishes_when_centered
from theodolite.measures.tangent._labels import centered_over_all
from theodolite.measures.tangent._stacking import stacked

__all__ = ["Centering", "KernelAndLabel", "kernel_and_label", "unit_vector"]

Centering = Literal["stacked", "examples", "none"]


@dataclass(frozen=True)
class KernelAndLabel:
    """Kernel (largest entry 1 before centring) and unit label vector, both centred alike."""

    kernel: Float[Tensor, "m m"]
    label: Float[Tensor, " m"]
    kernel_defined: Bool[Tensor, ""]  # not zero up to rounding
    label_defined: Bool[Tensor, ""]

    @property
    def defined(self) -> Bool[Tensor, ""]:
        """Whether an angle between the two exists."""
        return self.kernel_defined & self.label_defined

    @property
    def label_energy(self) -> Float[Tensor, ""]:
        """Of the unit label vector under the kernel."""
        return self.label @ self.kernel @ self.label


def kernel_and_label(kernel: Tensor, targets: Tensor, centering: Centering) -> KernelAndLabel:
    """Rescale, centre explicitly in float64, and note whether rounding is all that is left."""
    K = unit_peak(double(stacked(kernel)))
    Y = unit_peak(double(targets))
    Kc, Yc = _centered_kernel(K, kernel, centering), _centered_targets(Y, centering)
    return KernelAndLabel(
        kernel=Kc,
        label=unit_vector(Yc.flatten()),
        kernel_defined=~vanishes_when_centered(Kc, K, eps_of(kernel)),
        label_defined=~vanishes_when_centered(Yc, Y, eps_of(targets)),
    )


def unit_vector(vector: Tensor) -> Tensor:
    """The vector over its length; zero stays zero, with gradient zero."""
    length = vector_norm(vector)
    return vector / torch.where(length > 0, length, torch.ones_like(length))


def _centered_kernel(matrix: Tensor, kernel: Tensor, centering: Centering) -> Tensor:
    if centering == "stacked":
        return double_center(matrix)
    if centering == "none":
        return matrix
    rows = matrix.reshape(kernel.shape)
    rows = rows - rows.mean(2, keepdim=True)
    return stacked(rows - rows.mean(0, keepdim=True))


def _centered_targets(targets: Tensor, centering: Centering) -> Tensor:
    if centering == "stacked":
        return centered_over_all(targets)
    return targets - targets.mean(0) if centering == "examples" else targets
