"""Formulas of mehta2021: what the paper states and its studies compare with measured numbers."""
