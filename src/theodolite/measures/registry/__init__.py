"""Every measure in one table: range, direction, invariances, scale, reference, meaning.

It drives the conformance tests and the page of measures in the documentation.
"""

from theodolite.measures.registry import covariance, gradient, kernel, representation, tangent
from theodolite.measures.registry.measure import Family, Invariance, Measure, Transformation

__all__ = ["MEASURES", "Family", "Invariance", "Measure", "Transformation"]

MEASURES: dict[str, Measure] = {
    row.name: row
    for rows in (
        representation.ROWS,
        covariance.ROWS,
        kernel.ROWS,
        tangent.ROWS,
        gradient.ROWS,
    )
    for row in rows
}
