"""Kernel alignment: angles between the kernels of layers, inputs and targets, and their spectra."""

from theodolite.linalg import LeaveOneOut
from theodolite.measures.kernel._alignment import (
    CenteredGrams,
    center_gram,
    centered_cka,
    cka,
    cka_from_products,
    gram,
    hsic,
    kta,
    optimal_kernel,
    permuted_cka,
    target_gram,
)
from theodolite.measures.kernel._correlation import (
    CorrelationTable,
    correlation_table,
    correlation_threshold,
)
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
    modes_to_reach,
    power_area,
    power_evenness,
    spectral_gap,
)
from theodolite.measures.kernel._regression import (
    MixedRegression,
    leave_one_out_regression,
    mixed_regression,
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
    "MixedRegression",
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
    "layer_profile",
    "leave_one_out_regression",
    "linear_cka",
    "linear_hsic",
    "linear_kta",
    "linear_spectrum",
    "mixed_regression",
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
