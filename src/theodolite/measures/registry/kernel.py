"""Rows of the family kernel."""

from theodolite.measures.registry.measure import Measure

ROWS: tuple[Measure, ...] = ()
