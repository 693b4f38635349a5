"""Rows of the family tangent."""

from theodolite.measures.registry.measure import Measure

ROWS: tuple[Measure, ...] = ()
