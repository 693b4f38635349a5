"""Alignment of a layer's features with the labels, by singular directions."""

from theodolite.linalg import LabelProjections, LeaveOneOut
from theodolite.measures.representation._probes import (
    leave_one_out_probe,
    neighbour_accuracy,
    neighbour_accuracy_of_gram,
    probe_accuracy,
)
from theodolite.measures.representation._summaries import (
    alignment_area,
    area_from_projections,
    top_share,
    top_share_from_projections,
)
from theodolite.measures.representation.curve import (
    AlignmentCurve,
    alignment_curve,
    curve_from_projections,
    representation_alignment,
)
from theodolite.measures.representation.projections import (
    PreparedFeatures,
    ScaledTargets,
    label_projections,
    prepare_features,
    scaled_targets,
)

__all__ = [
    "AlignmentCurve",
    "LabelProjections",
    "LeaveOneOut",
    "PreparedFeatures",
    "ScaledTargets",
    "alignment_area",
    "alignment_curve",
    "area_from_projections",
    "curve_from_projections",
    "label_projections",
    "leave_one_out_probe",
    "neighbour_accuracy",
    "neighbour_accuracy_of_gram",
    "prepare_features",
    "probe_accuracy",
    "representation_alignment",
    "scaled_targets",
    "top_share",
    "top_share_from_projections",
]
