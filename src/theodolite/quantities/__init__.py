"""From a model and data to the tensors that measures need, in bounded memory."""

from theodolite.quantities._covariances import (
    PositionCovariance,
    patch_covariance,
    weight_covariance,
)
from theodolite.quantities._curvature import (
    LayerEnergy,
    LayerMoments,
    OutputHessian,
    output_hessian,
)
from theodolite.quantities._features import (
    FeatureChunk,
    Features,
    feature_chunks,
    feature_moments,
    features,
)
from theodolite.quantities._gradient_alignment import (
    GradientAlignment,
    LayerAlignment,
    gradient_alignment,
)
from theodolite.quantities._gradients import GradientSums, gradient_sums
from theodolite.quantities._grams import FeatureGrams, feature_grams
from theodolite.quantities._kernel_set import Coverage, TangentKernels
from theodolite.quantities._layer_sums import LayerSums, UnitSums
from theodolite.quantities._tangents import tangent_kernels

__all__ = [
    "Coverage",
    "FeatureChunk",
    "FeatureGrams",
    "Features",
    "GradientAlignment",
    "GradientSums",
    "LayerAlignment",
    "LayerEnergy",
    "LayerMoments",
    "LayerSums",
    "OutputHessian",
    "PositionCovariance",
    "TangentKernels",
    "UnitSums",
    "feature_chunks",
    "feature_grams",
    "feature_moments",
    "features",
    "gradient_alignment",
    "gradient_sums",
    "output_hessian",
    "patch_covariance",
    "tangent_kernels",
    "weight_covariance",
]
