"""Formulas of canatar2022: what the paper states and its studies compare with measured numbers."""
