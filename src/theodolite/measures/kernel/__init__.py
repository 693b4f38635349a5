"""Kernel alignment: angles between the kernels of layers, inputs and targets, and their spectra."""

from theodolite.linalg import LeaveOneOut
from theodolite.measures.kernel._alignment import (
    CenteredGrams,
    centered_cka,
    cka,
    cka_from_products,
    hsic,
    kta,
    permuted_cka,
)
from theodolite.measures.kernel._correlation import (
    CorrelationTable,
    correlation_table,
    correlation_threshold,
)
from theodolite.measures.kernel._grams import center_gram, gram, optimal_kernel, target_gram
from theodolite.measures.kernel._layers import (
    CkaMatrix,
    LayerProfile,
    cka_matrix,
    gram_cka_matrix,
    layer_profile,
)
from theodolite.measures.kernel._linear import (
    linear_cka,
    linear_hsic,
    linear_kta,
    target_cka,
)
from theodolite.measures.kernel._power import (
    CumulativePower,
    cumulative_power,
    kta_from_power,
    kta_from_spectrum,
    modes_to_reach,
    power_area,
    power_evenness,
    spectral_gap,
)
from theodolite.measures.kernel._regression import (
    leave_one_out_regression,
    regression_accuracy,
    regression_error,
)
from theodolite.measures.kernel._spectrum import (
    KernelSpectrum,
    kernel_spectrum,
    linear_spectrum,
    participation_from_traces,
    participation_ratio,
)

__all__ = [
    "CenteredGrams",
    "CkaMatrix",
    "CorrelationTable",
    "CumulativePower",
    "KernelSpectrum",
    "LayerProfile",
    "LeaveOneOut",
    "center_gram",
    "centered_cka",
    "cka",
    "cka_from_products",
    "cka_matrix",
    "correlation_table",
    "correlation_threshold",
    "cumulative_power",
    "gram",
    "gram_cka_matrix",
    "hsic",
    "kernel_spectrum",
    "kta",
    "kta_from_power",
    "kta_from_spectrum",
    "layer_profile",
    "leave_one_out_regression",
    "linear_cka",
    "linear_hsic",
    "linear_kta",
    "linear_spectrum",
    "modes_to_reach",
    "optimal_kernel",
    "participation_from_traces",
    "participation_ratio",
    "permuted_cka",
    "power_area",
    "power_evenness",
    "regression_accuracy",
    "regression_error",
    "spectral_gap",
    "target_cka",
    "target_gram",
]

HELPERS = (
    "participation_from_traces",
    "permuted_cka",
    "cka_from_products",
    "centered_cka",
    "CenteredGrams",
    "CkaMatrix",
    "CorrelationTable",
    "CumulativePower",
    "KernelSpectrum",
    "LayerProfile",
    "LeaveOneOut",
    "center_gram",
    "cka_matrix",
    "correlation_threshold",
    "gram",
    "gram_cka_matrix",
    "kta_from_power",
    "kta_from_spectrum",
    "layer_profile",
    "leave_one_out_regression",
    "optimal_kernel",
    "target_gram",
)
