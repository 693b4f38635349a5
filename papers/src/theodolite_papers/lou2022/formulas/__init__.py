"""Formulas of lou2022: what the paper states and its studies compare with measured numbers.

Theorems 1 and 2 and Corollary 1 are in ``infinite_width``, Theorem A in ``homogeneity``; their
studies are ``theorems1_2_corollary1`` and ``theorem_a``. The losses of Theorem 1 and the layer
where they balance are in ``theodolite.theory.infinite_width``, the layer where tangent alignment
peaks in ``theodolite.measures.tangent``. docs/formulas.md lists every function.
"""
