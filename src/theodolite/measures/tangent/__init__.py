"""Alignment of tangent kernels with the labels, layer by layer, and where it is largest."""

from theodolite.linalg import alignment_from_norms
from theodolite.measures.tangent.alignment import (
    AlignmentDecomposition,
    alignment_decomposition,
    centered_labels,
    permuted_alignments,
    stacked_kernel,
    tangent_alignment,
)
from theodolite.measures.tangent.spectrum import peak_layer, stable_rank

__all__ = [
    "AlignmentDecomposition",
    "alignment_decomposition",
    "alignment_from_norms",
    "centered_labels",
    "peak_layer",
    "permuted_alignments",
    "stable_rank",
    "stacked_kernel",
    "tangent_alignment",
]
