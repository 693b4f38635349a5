"""Kernel alignment: angles between the kernels of layers, inputs and targets, and their spectra."""

from theodolite.measures.kernel._alignment import (
    CenteredGrams,
    centered_cka,
    cka,
    cka_from_products,
    kta,
    permuted_cka,
)
from theodolite.measures.kernel._correlation import (
    CorrelationTable,
    correlation_table,
    correlation_threshold,
)
from theodolite.measures.kernel._grams import center_gram, gram, optimal_kernel, target_gram
from theodolite.measures.kernel._hsic import hsic, linear_hsic
from theodolite.measures.kernel._layers import (
    CkaMatrix,
    LayerProfile,
    cka_matrix,
    gram_cka_matrix,
    layer_profile,
)
from theodolite.measures.kernel._linear import linear_cka, linear_kta
from theodolite.measures.kernel._minibatch import MinibatchHsic, minibatch_cka
from theodolite.measures.kernel._participation import participation_from_traces, participation_ratio
from theodolite.measures.kernel._power import CumulativePower, cumulative_power
from theodolite.measures.kernel._power_summaries import (
    kta_from_power,
    kta_from_spectrum,
    modes_to_reach,
    power_area,
    power_evenness,
    spectral_gap,
)
from theodolite.measures.kernel._spectrum import KernelSpectrum, kernel_spectrum, linear_spectrum
from theodolite.measures.kernel._target import target_cka

__all__ = [
    "CenteredGrams",
    "CkaMatrix",
    "CorrelationTable",
    "CumulativePower",
    "KernelSpectrum",
    "LayerProfile",
    "MinibatchHsic",
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
    "linear_cka",
    "linear_hsic",
    "linear_kta",
    "linear_spectrum",
    "minibatch_cka",
    "modes_to_reach",
    "optimal_kernel",
    "participation_from_traces",
    "participation_ratio",
    "permuted_cka",
    "power_area",
    "power_evenness",
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
    "MinibatchHsic",
    "center_gram",
    "cka_matrix",
    "correlation_threshold",
    "gram",
    "gram_cka_matrix",
    "kta_from_power",
    "kta_from_spectrum",
    "layer_profile",
    "optimal_kernel",
    "target_gram",
)
