"""Spectra and cumulative power of single layers, thinned for a record."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from theodolite.measures.kernel import (
    KernelSpectrum,
    cumulative_power,
    power_evenness,
    spectral_gap,
)

__all__ = ["ModeCurves", "mode_curves", "thinned"]


@dataclass(frozen=True)
class ModeCurves:
    """What a figure of a kernel's modes shows.

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
    """Eigenvalues, cumulative power of the labels, and the numbers read off them."""
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
    return ModeCurves(modes.astype(np.int16), _plain(eta[rows - 1]), _plain(curve[rows]), numbers)


def thinned(count: int, points: int) -> np.ndarray:
    """At most ``points`` of the numbers 1 to ``count``, evenly in the log, both ends included.

    Example:
        >>> thinned(100, 8).tolist()
        [1, 2, 4, 7, 14, 27, 52, 100]
    """
    return np.unique(np.geomspace(1, count, points).round().astype(np.int64))


def _plain(values: Tensor) -> np.ndarray:
    return values.detach().float().cpu().numpy()
