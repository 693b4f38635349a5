"""Data, models and training for the experiments of the papers."""
