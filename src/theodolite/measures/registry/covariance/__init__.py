"""Rows of the family covariance."""

from theodolite.measures.registry.covariance import (
    _activations,
    _eigenvectors,
    _gaussians,
    _misalignment,
    _transfer,
)
from theodolite.measures.registry.measure import Measure

__all__ = ["ROWS"]

ROWS: tuple[Measure, ...] = (
    *_misalignment.ROWS,
    *_transfer.ROWS,
    *_gaussians.ROWS,
    *_eigenvectors.ROWS,
    *_activations.ROWS,
)
