"""Converts a model and data into the tensors that measures need, in bounded memory.

It computes features with their moments and Gram matrices, tangent kernels, sums of per-example
gradients, and covariances of weights and of the inputs that they multiply. It also exports the
parts that other packages use: batches, layers, readouts, hooks, state.
"""

from theodolite.engine.batches import IGNORED, Batch, iterate_batches, whole_batch
from theodolite.engine.calls import has_storage, tensors_in
from theodolite.engine.check import Cause, Check, Checked
from theodolite.engine.class_sums import LayerSums, UnitSums
from theodolite.engine.covariances import (
    PositionCovariance,
    input_moments,
    input_samples,
    patch_covariance,
    shared_moments,
    weight_covariance,
)
from theodolite.engine.features import (
    FeatureChunk,
    FeatureGrams,
    Features,
    OutputReader,
    feature_chunks,
    feature_grams,
    feature_moments,
    features,
)
from theodolite.engine.gradients import (
    GradientAlignment,
    GradientSums,
    LayerGradientAlignment,
    alignment_of_sums,
    gradient_alignment,
    gradient_sums,
)
from theodolite.engine.hooks import (
    Read,
    ReadPoint,
    capture_inputs,
    capture_outputs,
    first_tensor,
    follow_layers,
)
from theodolite.engine.inputs import (
    Cast,
    FittedBatch,
    fit_batch,
    fitted_batches,
    require_device,
    require_model,
)
from theodolite.engine.kernels import (
    Coverage,
    TangentFeatures,
    TangentKernels,
    backward_kernel,
    forward_backward_kernels,
    forward_kernel,
    shared_tangent_kernels,
    tangent_features,
    tangent_kernels,
)
from theodolite.engine.layers import (
    Layers,
    Ownership,
    Parameters,
    only_trainable,
    own_parameters,
    select_layers,
    unwrap,
)
from theodolite.engine.plan import ContractionSizes, contraction_costs
from theodolite.engine.pooling import (
    AtPositions,
    Pool,
    gives_channels_first,
    pooled,
    require_pool,
)
from theodolite.engine.positions import PositionLabels
from theodolite.engine.readouts import (
    Loss,
    Readout,
    first_output,
    main_tensor,
    per_example_cross_entropy,
    per_example_loss,
    read_outputs,
    resolve_readout,
)
from theodolite.engine.rules import RULES, register_rule
from theodolite.engine.sketch import (
    TangentAlignment,
    TangentAlignments,
    sketch_plan,
    tangent_alignments,
)
from theodolite.engine.state import (
    available_bytes,
    exact_arithmetic,
    limited_memory,
    model_device,
    require_fixed_mode,
    untouched,
)

__all__ = [
    "IGNORED",
    "RULES",
    "AtPositions",
    "Batch",
    "Cast",
    "Cause",
    "Check",
    "Checked",
    "ContractionSizes",
    "Coverage",
    "FeatureChunk",
    "FeatureGrams",
    "Features",
    "FittedBatch",
    "GradientAlignment",
    "GradientSums",
    "LayerGradientAlignment",
    "LayerSums",
    "Layers",
    "Loss",
    "OutputReader",
    "Ownership",
    "Parameters",
    "Pool",
    "PositionCovariance",
    "PositionLabels",
    "Read",
    "ReadPoint",
    "Readout",
    "TangentAlignment",
    "TangentAlignments",
    "TangentFeatures",
    "TangentKernels",
    "UnitSums",
    "alignment_of_sums",
    "available_bytes",
    "backward_kernel",
    "capture_inputs",
    "capture_outputs",
    "contraction_costs",
    "exact_arithmetic",
    "feature_chunks",
    "feature_grams",
    "feature_moments",
    "features",
    "first_output",
    "first_tensor",
    "fit_batch",
    "fitted_batches",
    "follow_layers",
    "forward_backward_kernels",
    "forward_kernel",
    "gives_channels_first",
    "gradient_alignment",
    "gradient_sums",
    "has_storage",
    "input_moments",
    "input_samples",
    "iterate_batches",
    "limited_memory",
    "main_tensor",
    "model_device",
    "only_trainable",
    "own_parameters",
    "patch_covariance",
    "per_example_cross_entropy",
    "per_example_loss",
    "pooled",
    "read_outputs",
    "register_rule",
    "require_device",
    "require_fixed_mode",
    "require_model",
    "require_pool",
    "resolve_readout",
    "select_layers",
    "shared_moments",
    "shared_tangent_kernels",
    "sketch_plan",
    "tangent_alignments",
    "tangent_features",
    "tangent_kernels",
    "tensors_in",
    "untouched",
    "unwrap",
    "weight_covariance",
    "whole_batch",
]
