"""Every measure of the five families, as a pure function of arrays that hold all examples.

One folder for each family; its ``__init__`` says what is in which file (CKA to labels:
``kernel.target_cka``). ``theodolite.metrics`` has no other formulas: it takes some of these
measures batch by batch. ``theodolite.surveys`` applies them to the layers of a model.
"""

from theodolite.measures import covariance, gradient, kernel, registry, representation, tangent

__all__ = ["covariance", "gradient", "kernel", "registry", "representation", "tangent"]
