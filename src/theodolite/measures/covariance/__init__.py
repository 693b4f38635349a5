"""Covariance alignment: do a layer's weights vary along the directions in which its data do?"""

from theodolite.measures.covariance._baseline import (
    MisalignmentComparison,
    compare_misalignment,
    compare_misalignment_along,
    random_basis_misalignment,
    relative_misalignment,
    subspace_size,
)
from theodolite.measures.covariance._misalignment import (
    misalignment,
    misalignment_floor,
)
from theodolite.measures.covariance._transfer import (
    TransferFunction,
    transfer_function,
)
from theodolite.measures.covariance.matrices import random_bases, subspace_overlap

__all__ = [
    "MisalignmentComparison",
    "TransferFunction",
    "compare_misalignment",
    "compare_misalignment_along",
    "misalignment",
    "misalignment_floor",
    "random_bases",
    "random_basis_misalignment",
    "relative_misalignment",
    "subspace_overlap",
    "subspace_size",
    "transfer_function",
]
