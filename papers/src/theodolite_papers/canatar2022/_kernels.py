"""The record of a layer's kernel: CKA with its chance level, spectrum and cumulative power."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from theodolite.measures.kernel import KernelSpectrum, cumulative_power
from theodolite_papers.canatar2022.formulas.layers import layer_profile
from theodolite_papers.canatar2022.formulas.spectrum import power_evenness, spectral_gap

__all__ = [
    "BIASED",
    "DEBIASED",
    "NULL",
    "NULL_TOP",
    "ModeCurves",
    "mode_curves",
    "profile_rows",
    "rounded",
    "thinned",
]

# Rows of a recorded profile; columns are layers in order of depth.
BIASED, DEBIASED, NULL, NULL_TOP = range(4)


def profile_rows(
    layers: Sequence[Tensor],
    reference: Tensor,
    permutations: int,
    generator: torch.Generator,
) -> np.ndarray:
    """Biased and debiased CKA of every layer; mean and largest biased CKA of permuted references.

    The permuted labels show how large the paper's biased value is for any labels. This part grows
    with the rank of the layer and falls with the number of examples.
    """
    values = [layer_profile(layers, reference, debiased=kind) for kind in (False, True)]
    rows = [torch.randperm(len(reference), generator=generator) for _ in range(permutations)]
    chance = torch.stack([layer_profile(layers, reference[row], debiased=False) for row in rows])
    return rounded(torch.stack([*values, chance.mean(0), chance.amax(0)]))


def rounded(values: Tensor) -> np.ndarray:
    """Float32 on the CPU, for a record."""
    return values.detach().float().cpu().numpy()


@dataclass(frozen=True)
class ModeCurves:
    """The curves of a figure of a kernel's modes.

    Args:
        modes: numbers of the modes that are kept, from 1.
        eigenvalues: of those modes.
        power: cumulative power up to and with those modes.
        numbers: gap after the classes, power within them, evenness, rank at 1e-6.
    """

    modes: np.ndarray
    eigenvalues: np.ndarray
    power: np.ndarray
    numbers: dict[str, float]


def mode_curves(
    spectrum: KernelSpectrum, labels: Tensor, num_classes: int, points: int
) -> ModeCurves:
    """Eigenvalues, cumulative power of the labels, and the numbers computed from them."""
    eta = spectrum.eigenvalues
    curve = cumulative_power(spectrum, labels).curve
    modes = thinned(len(eta), points)
    rows = torch.as_tensor(modes, device=eta.device)
    numbers = {
        "gap": float(spectral_gap(eta, num_classes)),
        "power": float(curve[num_classes]) if len(curve) > num_classes else float("nan"),
        "evenness": float(power_evenness(curve, num_classes)),
        "rank": float((eta > 1e-6 * eta[0]).sum()),
    }
    return ModeCurves(modes.astype(np.int16), rounded(eta[rows - 1]), rounded(curve[rows]), numbers)


def thinned(count: int, points: int) -> np.ndarray:
    """At most ``points`` of the numbers 1 to ``count``, evenly in the log, both ends included.

    Example:
        >>> thinned(100, 8).tolist()
        [1, 2, 4, 7, 14, 27, 52, 100]
    """
    return np.unique(np.geomspace(1, count, points).round().astype(np.int64))
