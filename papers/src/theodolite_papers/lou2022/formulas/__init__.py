"""Formulas of lou2022: what the paper states and its studies compare with measured numbers.

Theorems 1 and 2 and Corollary 1 are in ``infinite_width``, Theorem A in ``homogeneity``; their
studies are ``theorems1_2_corollary1`` and ``theorem_a``. docs/formulas.md lists every function.
"""
