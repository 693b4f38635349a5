"""Kernel alignment: angles between the kernels of layers, inputs and targets, and their spectra.

CKA, KTA and HSIC take kernels as matrices; ``linear_cka``, ``linear_kta`` and ``linear_hsic`` take
features. ``target_cka`` is CKA to labels, and ``cka_matrix`` compares many layers at once. Spectra
give the modes of a kernel and the share of a target that they explain.
"""

from theodolite.linalg import LeaveOneOut
from theodolite.measures.kernel._from_features import (
    CkaMatrix,
    cka_matrix,
    linear_cka,
    linear_hsic,
    linear_kta,
    target_cka,
)
from theodolite.measures.kernel._regression import (
    leave_one_out_regression,
    mean_gram,
)
from theodolite.measures.kernel.alignment import (
    CenteredGrams,
    centered_cka,
    cka,
    cka_from_products,
    gram,
    hsic,
    kta,
    permuted_cka,
    target_gram,
)
from theodolite.measures.kernel.spectrum import (
    CumulativePower,
    KernelSpectrum,
    cumulative_power,
    kernel_spectrum,
    linear_spectrum,
    modes_to_reach,
    participation_from_traces,
    participation_ratio,
    power_area,
)

__all__ = [
    "CenteredGrams",
    "CkaMatrix",
    "CumulativePower",
    "KernelSpectrum",
    "LeaveOneOut",
    "centered_cka",
    "cka",
    "cka_from_products",
    "cka_matrix",
    "cumulative_power",
    "gram",
    "hsic",
    "kernel_spectrum",
    "kta",
    "leave_one_out_regression",
    "linear_cka",
    "linear_hsic",
    "linear_kta",
    "linear_spectrum",
    "mean_gram",
    "modes_to_reach",
    "participation_from_traces",
    "participation_ratio",
    "permuted_cka",
    "power_area",
    "target_cka",
    "target_gram",
]
