"""Predictions from formulas: numbers in, numbers out, each with the domain where it holds.

One module per theory; functions are reached through it, e.g.
``theory.infinite_width.equilibrium_layer``.
"""

from theodolite.theory import convergence, infinite_width, kernel_regression, learning

__all__ = ["convergence", "infinite_width", "kernel_regression", "learning"]
