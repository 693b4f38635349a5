"""Random features of a wide first layer, and what its scale does to gradients and alignment."""

from theodolite.theory.random_features._kernels import (
    SinTheorem,
    check_sin_theorem,
    expected_alignment,
    sin_bound,
    sin_cosine,
    sin_energy,
    sin_kernel,
    wide_cosine,
    wide_kernel,
)
from theodolite.theory.random_features._losses import (
    Compensation,
    compensate,
    hinge_large_scale_alignment,
    hinge_logit_gradient,
    large_scale_gradient,
    sigmoid_logit_gradient,
    small_scale_alignment,
    small_scale_gradient,
    softmax_large_scale_alignment,
    softmax_logit_gradient,
    squared_logit_gradient,
)

__all__ = [
    "Compensation",
    "SinTheorem",
    "check_sin_theorem",
    "compensate",
    "expected_alignment",
    "hinge_large_scale_alignment",
    "hinge_logit_gradient",
    "large_scale_gradient",
    "sigmoid_logit_gradient",
    "sin_bound",
    "sin_cosine",
    "sin_energy",
    "sin_kernel",
    "small_scale_alignment",
    "small_scale_gradient",
    "softmax_large_scale_alignment",
    "softmax_logit_gradient",
    "squared_logit_gradient",
    "wide_cosine",
    "wide_kernel",
]
