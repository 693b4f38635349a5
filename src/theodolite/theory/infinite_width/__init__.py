"""Signal propagation in infinitely wide, randomly initialised ReLU networks.

What two inputs have in common after ``l`` layers, what their gradients have in common on the way
back, the layer kernels and alignments that follow, and the layer where both losses balance.
"""

from theodolite.theory.infinite_width._kernels import (
    backward_information,
    forward_information,
    gradient_covariance,
    infinite_alignment,
    layer_kernel,
    nngp_covariance,
    relu_angles,
    relu_correlation,
    relu_correlation_derivative,
)
from theodolite.theory.infinite_width._losses import (
    asymptotic_backward_information,
    asymptotic_derivative,
    asymptotic_equilibrium_layer,
    asymptotic_forward_loss,
    backward_fraction_loss,
    backward_losses,
    equilibrium_layer,
    forward_losses,
    information_loss,
    is_separated,
)

__all__ = [
    "asymptotic_backward_information",
    "asymptotic_derivative",
    "asymptotic_equilibrium_layer",
    "asymptotic_forward_loss",
    "backward_fraction_loss",
    "backward_information",
    "backward_losses",
    "equilibrium_layer",
    "forward_information",
    "forward_losses",
    "gradient_covariance",
    "infinite_alignment",
    "information_loss",
    "is_separated",
    "layer_kernel",
    "nngp_covariance",
    "relu_angles",
    "relu_correlation",
    "relu_correlation_derivative",
]
