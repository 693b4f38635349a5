"""Rows of the family covariance."""

from theodolite.measures.registry.measure import Measure

ROWS: tuple[Measure, ...] = ()
