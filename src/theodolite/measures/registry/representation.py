"""Rows of the family representation."""

from theodolite.measures.registry.measure import Measure

ROWS: tuple[Measure, ...] = ()
