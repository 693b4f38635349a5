"""Linear algebra that every layer above shares: centring, spectra, mergeable statistics."""

from theodolite.linalg.arrays import array_function, double, eps_of
from theodolite.linalg.centering import (
    center_columns,
    double_center,
    gram_cosine,
    unit_peak,
    vanishes_when_centered,
)
from theodolite.linalg.moments import ClassSums, CrossMoments, Moments, row_chunks
from theodolite.linalg.projections import (
    LabelProjections,
    projections_from_gram,
    projections_from_moments,
)
from theodolite.linalg.precision import full_precision
from theodolite.linalg.ratios import nan_unless, ratio_or_nan, safe_sqrt
from theodolite.linalg.spectra import (
    Eigen,
    Singular,
    eigenvalue_groups,
    equality_tolerance,
    numerical_rank,
    singular_values,
    symmetric_eigen,
    symmetric_eigenvalues,
    thin_svd,
)
from theodolite.linalg.streaming_qr import TriangularState
from theodolite.linalg.top import top_eigen, top_eigen_operator

__all__ = [
    "ClassSums",
    "CrossMoments",
    "Eigen",
    "LabelProjections",
    "Moments",
    "Singular",
    "TriangularState",
    "array_function",
    "center_columns",
    "double",
    "double_center",
    "eigenvalue_groups",
    "eps_of",
    "equality_tolerance",
    "full_precision",
    "gram_cosine",
    "nan_unless",
    "numerical_rank",
    "projections_from_gram",
    "projections_from_moments",
    "ratio_or_nan",
    "row_chunks",
    "safe_sqrt",
    "singular_values",
    "symmetric_eigen",
    "symmetric_eigenvalues",
    "thin_svd",
    "top_eigen",
    "top_eigen_operator",
    "unit_peak",
    "vanishes_when_centered",
]
