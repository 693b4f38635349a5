"""From a model and data to the tensors that measures need, in bounded memory."""

from theodolite.engine._alignment_set import TangentAlignment, TangentAlignments
from theodolite.engine._covariances import (
    PositionCovariance,
    patch_covariance,
    weight_covariance,
)
from theodolite.engine._curvature import OutputHessian, output_hessian
from theodolite.engine._features import (
    FeatureChunk,
    Features,
    feature_chunks,
    feature_moments,
    features,
)
from theodolite.engine._fisher import (
    Fisher,
    GaussNewton,
    LayerFisher,
    fisher,
    gauss_newton,
)
from theodolite.engine._gradient_alignment import (
    GradientAlignment,
    LayerGradientAlignment,
    gradient_alignment,
)
from theodolite.engine._gradients import GradientSums, gradient_sums
from theodolite.engine._grams import FeatureGrams, feature_grams
from theodolite.engine._input_covariances import input_moments
from theodolite.engine._kernel_set import Coverage, TangentKernels
from theodolite.engine._layer_sums import LayerSums, UnitSums
from theodolite.engine._operators import LayerMoments
from theodolite.engine._signal_kernels import backward_kernel, forward_kernel
from theodolite.engine._tangent_alignments import tangent_alignments
from theodolite.engine._tangents import tangent_kernels

__all__ = [
    "Coverage",
    "FeatureChunk",
    "FeatureGrams",
    "Features",
    "Fisher",
    "GaussNewton",
    "GradientAlignment",
    "GradientSums",
    "LayerFisher",
    "LayerGradientAlignment",
    "LayerMoments",
    "LayerSums",
    "OutputHessian",
    "PositionCovariance",
    "TangentAlignment",
    "TangentAlignments",
    "TangentKernels",
    "UnitSums",
    "backward_kernel",
    "feature_chunks",
    "feature_grams",
    "feature_moments",
    "features",
    "fisher",
    "forward_kernel",
    "gauss_newton",
    "gradient_alignment",
    "gradient_sums",
    "input_moments",
    "output_hessian",
    "patch_covariance",
    "tangent_alignments",
    "tangent_kernels",
    "weight_covariance",
]
