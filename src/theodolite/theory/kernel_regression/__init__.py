"""Linear probes and kernel regression: the predictors, and their average test error from theory."""

from theodolite.theory.kernel_regression._average_error import (
    PowerShortcut,
    effective_ridge,
    generalization_error,
    power_shortcut,
    spectral_alignment,
)
from theodolite.theory.kernel_regression._regression import (
    gradient_flow_predictions,
    kernel_regression,
    linear_probe,
)

__all__ = [
    "PowerShortcut",
    "effective_ridge",
    "generalization_error",
    "gradient_flow_predictions",
    "kernel_regression",
    "linear_probe",
    "power_shortcut",
    "spectral_alignment",
]
