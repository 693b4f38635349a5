"""The measures of the five families, as pure functions on tensors."""

from theodolite.measures import covariance, gradient, kernel, registry, representation, tangent

__all__ = ["covariance", "gradient", "kernel", "registry", "representation", "tangent"]
