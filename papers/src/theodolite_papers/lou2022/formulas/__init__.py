"""Formulas of lou2022: what the paper states and its studies compare with measured numbers."""
