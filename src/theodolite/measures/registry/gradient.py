"""Rows of the family gradient."""

from theodolite.measures.registry.measure import Measure

ROWS: tuple[Measure, ...] = ()
