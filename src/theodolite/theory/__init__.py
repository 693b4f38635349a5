"""Predictions from formulas. Each says for which arguments it holds.

Each theory is a module. Call its functions through it, e.g.
``theory.infinite_width.equilibrium_layer``.
"""

from theodolite.theory import convergence, infinite_width, kernel_regression, learning

__all__ = ["convergence", "infinite_width", "kernel_regression", "learning"]
