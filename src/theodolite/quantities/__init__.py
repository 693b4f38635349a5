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
from theodolite.quantities._grams import FeatureGrams, feature_grams

__all__ = [
    "FeatureChunk",
    "FeatureGrams",
    "Features",
    "LayerEnergy",
    "LayerMoments",
    "OutputHessian",
    "PositionCovariance",
    "feature_chunks",
    "feature_grams",
    "feature_moments",
    "features",
    "output_hessian",
    "patch_covariance",
    "weight_covariance",
]
