"""Covariance alignment: do a layer's weights vary along the directions in which its data do?"""

from theodolite.measures.covariance._activation import (
    ActivationFractions,
    activation_fractions,
    activation_histogram,
    merge_activation_fractions,
    specialization_index,
)
from theodolite.measures.covariance._alignment import (
    CorrespondingEigenvalues,
    alignment_defect,
    corresponding_eigenvalues,
    is_aligned,
)
from theodolite.measures.covariance._basis import (
    basis_misalignment,
    basis_misalignment_terms,
    random_basis_misalignment,
)
from theodolite.measures.covariance._bounds import (
    haar_bound,
    kantorovich_bound,
    misalignment_floor,
)
from theodolite.measures.covariance._divergence import (
    fisher_information,
    fisher_rao_length,
    gaussian_kl,
    symmetric_kl,
)
from theodolite.measures.covariance._equivariance import (
    EquivarianceDeviation,
    rotation_equivariance_check,
)
from theodolite.measures.covariance._haar import random_bases
from theodolite.measures.covariance._matching import EigenvectorMatch, match_eigenvectors
from theodolite.measures.covariance._misalignment import (
    MisalignmentTerms,
    closest_aligned,
    misalignment,
    misalignment_terms,
)
from theodolite.measures.covariance._one_sided import one_sided_misalignment
from theodolite.measures.covariance._overlap import (
    EigenvectorOverlap,
    eigenvector_overlap,
    predicted_overlap_loss,
    subspace_overlap,
)
from theodolite.measures.covariance._relative import (
    MisalignmentComparison,
    compare_misalignment,
    compress_covariance,
    relative_misalignment,
    subspace_size,
)
from theodolite.measures.covariance._rotation import (
    rotation_angle_deviation,
    rotation_chain,
    rotation_information,
    rotation_length,
)
from theodolite.measures.covariance._symmetry import random_symmetry, symmetrize
from theodolite.measures.covariance._transfer import (
    MeanTransfer,
    TransferFunction,
    curve_deviation,
    mean_transfer,
    transfer_from_covariance,
    transfer_function,
)
from theodolite.measures.covariance._unimodality import unimodality_defect

__all__ = [
    "ActivationFractions",
    "CorrespondingEigenvalues",
    "EigenvectorMatch",
    "EigenvectorOverlap",
    "EquivarianceDeviation",
    "MeanTransfer",
    "MisalignmentComparison",
    "MisalignmentTerms",
    "TransferFunction",
    "activation_fractions",
    "activation_histogram",
    "alignment_defect",
    "basis_misalignment",
    "basis_misalignment_terms",
    "closest_aligned",
    "compare_misalignment",
    "compress_covariance",
    "corresponding_eigenvalues",
    "curve_deviation",
    "eigenvector_overlap",
    "fisher_information",
    "fisher_rao_length",
    "gaussian_kl",
    "haar_bound",
    "is_aligned",
    "kantorovich_bound",
    "match_eigenvectors",
    "mean_transfer",
    "merge_activation_fractions",
    "misalignment",
    "misalignment_floor",
    "misalignment_terms",
    "one_sided_misalignment",
    "predicted_overlap_loss",
    "random_bases",
    "random_basis_misalignment",
    "random_symmetry",
    "relative_misalignment",
    "rotation_angle_deviation",
    "rotation_chain",
    "rotation_equivariance_check",
    "rotation_information",
    "rotation_length",
    "specialization_index",
    "subspace_overlap",
    "subspace_size",
    "symmetric_kl",
    "symmetrize",
    "transfer_from_covariance",
    "transfer_function",
    "unimodality_defect",
]

HELPERS: tuple[str, ...] = (
    # results
    "ActivationFractions",
    "CorrespondingEigenvalues",
    "EigenvectorMatch",
    "EigenvectorOverlap",
    "EquivarianceDeviation",
    "MeanTransfer",
    "MisalignmentComparison",
    "MisalignmentTerms",
    "TransferFunction",
    # random draws, and what is built on them
    "compare_misalignment",
    "random_bases",
    "random_basis_misalignment",
    "random_symmetry",
    "rotation_equivariance_check",
    # matrices and tables
    "activation_histogram",
    "closest_aligned",
    "compress_covariance",
    "corresponding_eigenvalues",
    "mean_transfer",
    "merge_activation_fractions",
    "symmetrize",
    # predicates and functions of counts
    "is_aligned",
    "misalignment_floor",
    "rotation_chain",
    "subspace_size",
)
