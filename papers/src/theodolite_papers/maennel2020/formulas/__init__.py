"""Formulas of maennel2020: what the paper states and its studies compare with measured numbers."""
