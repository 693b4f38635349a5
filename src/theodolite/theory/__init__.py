"""Predictions from formulas: numbers in, numbers out, each with the domain where it holds.

One module per theory; functions are reached through it, e.g.
``theory.infinite_width.equilibrium_layer``.
"""

from theodolite.theory import (
    convergence,
    feature_evolution,
    infinite_width,
    kernel_regression,
    random_features,
)

__all__ = [
    "convergence",
    "feature_evolution",
    "infinite_width",
    "kernel_regression",
    "random_features",
]
