"""Alignment of a layer's features with the labels, by singular directions."""

from theodolite.linalg import LabelProjections, LeaveOneOut
from theodolite.measures.representation._comparison import (
    CurveAverage,
    chance_curve,
    curve_average,
    curve_difference,
    dominance_fraction,
    one_vs_one_curve,
    one_vs_one_difference,
)
from theodolite.measures.representation._curve import (
    AlignmentCurve,
    AlignmentSteps,
    alignment_curve,
    alignment_steps,
    curve_from_projections,
    representation_alignment,
)
from theodolite.measures.representation._projections import (
    PreparedFeatures,
    ScaledTargets,
    label_projections,
    prepare_features,
    scaled_targets,
)
from theodolite.measures.representation._readouts import (
    leave_one_out_readout,
    neighbour_accuracy,
    neighbour_accuracy_of_gram,
    readout_accuracy,
    readout_error,
)
from theodolite.measures.representation._summaries import (
    alignment_area,
    alignment_second_moment,
    area_from_projections,
    picard_ratios,
    top_share,
    top_share_from_projections,
)
from theodolite.measures.representation._transferability import (
    gbc,
    h_score,
    leep,
    logme,
    n_leep,
    sfda,
    transrate,
)

__all__ = [
    "AlignmentCurve",
    "AlignmentSteps",
    "CurveAverage",
    "LabelProjections",
    "LeaveOneOut",
    "PreparedFeatures",
    "ScaledTargets",
    "alignment_area",
    "alignment_curve",
    "alignment_second_moment",
    "alignment_steps",
    "area_from_projections",
    "chance_curve",
    "curve_average",
    "curve_difference",
    "curve_from_projections",
    "dominance_fraction",
    "gbc",
    "h_score",
    "label_projections",
    "leave_one_out_readout",
    "leep",
    "logme",
    "n_leep",
    "neighbour_accuracy",
    "neighbour_accuracy_of_gram",
    "one_vs_one_curve",
    "one_vs_one_difference",
    "picard_ratios",
    "prepare_features",
    "readout_accuracy",
    "readout_error",
    "representation_alignment",
    "scaled_targets",
    "sfda",
    "top_share",
    "top_share_from_projections",
    "transrate",
]
