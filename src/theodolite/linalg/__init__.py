"""Linear algebra that every layer above shares: centring, spectra, mergeable statistics."""

from theodolite.linalg.arrays import array_function, double, eps_of
from theodolite.linalg.centering import (
    center_columns,
    centered_square_sum,
    double_center,
    gram_cosine,
    unit_peak,
    vanishes_when_centered,
)
from theodolite.linalg.class_grams import ClassGrams
from theodolite.linalg.hsic import HsicSums, KernelProducts, centered_products, debiased_product
from theodolite.linalg.losses import (
    cross_entropy_gradient,
    cross_entropy_hessian,
    squared_error_gradient,
    squared_error_hessian,
)
from theodolite.linalg.moments import ClassSums, CrossMoments, Moments, row_chunks
from theodolite.linalg.precision import full_precision
from theodolite.linalg.projections import (
    GRAM_ACCURATE_ABOVE,
    GramSums,
    LabelProjections,
    Route,
    dual_gram,
    gram_sums,
    projections_from_gram,
    projections_from_kernel,
    projections_from_moments,
    projections_from_triangle,
    qr_projections,
    svd_projections,
    target_columns,
)
from theodolite.linalg.ratios import nan_unless, ratio_or_nan, safe_sqrt
from theodolite.linalg.set_sums import SetSums
from theodolite.linalg.spectra import (
    Eigen,
    Singular,
    eigenvalue_groups,
    equality_tolerance,
    numerical_rank,
    rank_tolerance,
    singular_values,
    symmetric_eigen,
    symmetric_eigenvalues,
    thin_svd,
)
from theodolite.linalg.streaming_qr import TriangularState
from theodolite.linalg.top import top_eigen, top_eigen_operator

__all__ = [
    "GRAM_ACCURATE_ABOVE",
    "ClassGrams",
    "ClassSums",
    "CrossMoments",
    "Eigen",
    "GramSums",
    "HsicSums",
    "KernelProducts",
    "LabelProjections",
    "Moments",
    "Route",
    "SetSums",
    "Singular",
    "TriangularState",
    "array_function",
    "center_columns",
    "centered_products",
    "centered_square_sum",
    "cross_entropy_gradient",
    "cross_entropy_hessian",
    "debiased_product",
    "double",
    "double_center",
    "dual_gram",
    "eigenvalue_groups",
    "eps_of",
    "equality_tolerance",
    "full_precision",
    "gram_cosine",
    "gram_sums",
    "nan_unless",
    "numerical_rank",
    "projections_from_gram",
    "projections_from_kernel",
    "projections_from_moments",
    "projections_from_triangle",
    "qr_projections",
    "rank_tolerance",
    "ratio_or_nan",
    "row_chunks",
    "safe_sqrt",
    "singular_values",
    "squared_error_gradient",
    "squared_error_hessian",
    "svd_projections",
    "symmetric_eigen",
    "symmetric_eigenvalues",
    "target_columns",
    "thin_svd",
    "top_eigen",
    "top_eigen_operator",
    "unit_peak",
    "vanishes_when_centered",
]
