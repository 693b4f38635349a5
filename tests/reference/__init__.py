"""Literal, slow float64 references: loops and the definitions, nothing clever.

Each module maps names of the registry to functions with the same arguments, on NumPy arrays.
"""

from tests.reference import covariance, gradient, kernel, representation, tangent

REFERENCES = {
    **representation.REFERENCES,
    **covariance.REFERENCES,
    **kernel.REFERENCES,
    **tangent.REFERENCES,
    **gradient.REFERENCES,
}
