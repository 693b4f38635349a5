"""Random features of a wide first layer, and what its scale does to gradients and alignment."""

from theodolite.theory.random_features._activations import (
    expected_alignment,
    wide_cosine,
    wide_kernel,
)
from theodolite.theory.random_features._losses import (
    hinge_logit_gradient,
    large_scale_gradient,
    sigmoid_logit_gradient,
    small_scale_gradient,
    softmax_logit_gradient,
    squared_logit_gradient,
)
from theodolite.theory.random_features._scale import (
    Compensation,
    compensate,
    hinge_large_scale_alignment,
    small_scale_alignment,
    softmax_large_scale_alignment,
)
from theodolite.theory.random_features._sin import (
    sin_bound,
    sin_cosine,
    sin_energy,
    sin_kernel,
)
from theodolite.theory.random_features._theorem import SinTheorem, check_sin_theorem

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
