"""Alignment of tangent kernels with the labels, layer by layer, and the shape of that curve."""

from theodolite.linalg import (
    cross_entropy_gradient,
    cross_entropy_hessian,
    squared_error_gradient,
    squared_error_hessian,
)
from theodolite.measures.tangent._alignment import operator_alignment, tangent_alignment
from theodolite.measures.tangent._decomposition import (
    AlignmentDecomposition,
    alignment_decomposition,
    correlation_term,
)
from theodolite.measures.tangent._energy import LayerEnergy, layer_energy
from theodolite.measures.tangent._equilibrium import EquilibriumFit, fit_equilibrium
from theodolite.measures.tangent._fisher import (
    fisher_correlation,
    fisher_gram,
    fisher_information,
    fisher_stable_rank,
)
from theodolite.measures.tangent._hierarchy import (
    alignment_centroid,
    is_ascent_descent,
    peak_layer,
    prominence,
    relative_alignment,
)
from theodolite.measures.tangent._label_gradient import label_gradient_correlation
from theodolite.measures.tangent._labels import centered_labels
from theodolite.measures.tangent._rank_one import RankOneModel, rank_one_model
from theodolite.measures.tangent._spectrum import effective_rank, normalized_spectrum, stable_rank
from theodolite.measures.tangent._stacking import feature_kernel, stacked_kernel
from theodolite.measures.tangent._streamed import alignment_from_norms, alignment_from_sums
from theodolite.measures.tangent._uncoupled import uncoupled_bound
from theodolite.measures.tangent._updates import (
    UpdateBounds,
    frozen_update,
    frozen_update_bounds,
    label_contribution,
)

__all__ = [
    "AlignmentDecomposition",
    "EquilibriumFit",
    "LayerEnergy",
    "RankOneModel",
    "UpdateBounds",
    "alignment_centroid",
    "alignment_decomposition",
    "alignment_from_norms",
    "alignment_from_sums",
    "centered_labels",
    "correlation_term",
    "cross_entropy_gradient",
    "cross_entropy_hessian",
    "effective_rank",
    "feature_kernel",
    "fisher_correlation",
    "fisher_gram",
    "fisher_information",
    "fisher_stable_rank",
    "fit_equilibrium",
    "frozen_update",
    "frozen_update_bounds",
    "is_ascent_descent",
    "label_contribution",
    "label_gradient_correlation",
    "layer_energy",
    "normalized_spectrum",
    "operator_alignment",
    "peak_layer",
    "prominence",
    "rank_one_model",
    "relative_alignment",
    "squared_error_gradient",
    "squared_error_hessian",
    "stable_rank",
    "stacked_kernel",
    "tangent_alignment",
    "uncoupled_bound",
]

HELPERS: tuple[str, ...] = (
    "AlignmentDecomposition",
    "EquilibriumFit",
    "LayerEnergy",
    "RankOneModel",
    "UpdateBounds",
    "alignment_centroid",
    "alignment_from_norms",
    "alignment_from_sums",
    "centered_labels",
    "cross_entropy_gradient",
    "cross_entropy_hessian",
    "feature_kernel",
    "fisher_gram",
    "fisher_information",
    "frozen_update",
    "frozen_update_bounds",
    "is_ascent_descent",
    "peak_layer",
    "prominence",
    "relative_alignment",
    "squared_error_gradient",
    "squared_error_hessian",
    "stacked_kernel",
)
