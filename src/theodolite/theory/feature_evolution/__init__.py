"""How tangent features evolve in training: optimal feature evolution and what it predicts.

Steps of OFE and GOFE on tensors, Theorem A checked on a given network, predictions of the layer
alignments one step ahead, and the measured change of features next to its prediction.
"""

from theodolite.theory.feature_evolution._steps import (
    AlignmentStages,
    gofe_step,
    gofe_velocity,
    loss_gradient_step,
    ofe_features,
    ofe_step,
    parameter_step,
    predict_alignments,
)
from theodolite.theory.feature_evolution._tangent_map import (
    HomogeneityCheck,
    check_homogeneity,
    homogeneous_step,
)
from theodolite.theory.feature_evolution._updates import (
    FeatureChange,
    FeatureUpdate,
    feature_change,
    feature_update_correlation,
)

__all__ = [
    "AlignmentStages",
    "FeatureChange",
    "FeatureUpdate",
    "HomogeneityCheck",
    "check_homogeneity",
    "feature_change",
    "feature_update_correlation",
    "gofe_step",
    "gofe_velocity",
    "homogeneous_step",
    "loss_gradient_step",
    "ofe_features",
    "ofe_step",
    "parameter_step",
    "predict_alignments",
]
