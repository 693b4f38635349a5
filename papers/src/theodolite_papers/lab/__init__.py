"""Data, models and training: what the experiments of the papers need."""
