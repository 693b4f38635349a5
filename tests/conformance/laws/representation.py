"""Laws of the family ``representation``."""

import torch

from tests.conformance.laws.law import Law
from theodolite.linalg import double

BASIS = (("rotate_columns", "features"), ("append_zero_columns", "features"))
ROW_WISE = (
    *BASIS,
    ("permute_rows", "features", "targets"),
    ("negate", "features"),
    ("negate", "targets"),
)
COMMON = (*ROW_WISE, ("rotate_rows", "features", "targets"))
_SCALE_FREE = (("scale", "features"), ("scale", "targets"))
_READ_OUT = (
    *BASIS,
    ("permute_rows", "features", "labels"),
    ("scale", "features"),
    ("shift_rows", "features"),
)


def energy(targets, **_others):
    """Squared norm of the targets."""
    return float(double(targets).square().sum())


def largest(features):
    return float(torch.linalg.matrix_norm(double(features), 2))


def _area_scale(features, targets):
    return largest(features) * energy(targets)


LAWS = {
    "representation_alignment": Law(
        inputs={"features": "features", "targets": "targets", "threshold": "threshold"},
        invariances=COMMON,
        scale=energy,
    ),
    "alignment_curve": Law(
        inputs={"features": "features", "targets": "target_vector", "thresholds": "shares"},
        invariances=(*ROW_WISE, *_SCALE_FREE),
    ),
    "alignment_curve.absolute": Law(
        inputs={"features": "features", "targets": "target_vector", "thresholds": "thresholds"},
        invariances=COMMON,
        scale=energy,
    ),
    "alignment_curve.relative": Law(
        inputs={"features": "features", "targets": "target_vector", "thresholds": "shares"},
        invariances=(*COMMON, *_SCALE_FREE),
    ),
    "alignment_area": Law(
        inputs={"features": "features", "targets": "target_vector"},
        invariances=(*ROW_WISE, *_SCALE_FREE),
    ),
    "alignment_area.absolute": Law(
        inputs={"features": "features", "targets": "targets"},
        invariances=COMMON,
        scale=_area_scale,
    ),
    "neighbour_accuracy": Law(
        inputs={"features": "features", "labels": "labels"}, invariances=_READ_OUT
    ),
    "probe_accuracy": Law(
        inputs={"features": "features", "labels": "labels"}, invariances=_READ_OUT
    ),
    "leave_one_out_probe.error": Law(
        inputs={"features": "features", "targets": "targets"},
        invariances=(
            *BASIS,
            *_SCALE_FREE,
            ("permute_rows", "features", "targets"),
            ("shift_rows", "features"),
            ("shift_rows", "targets"),
            ("negate", "targets"),
        ),
    ),
    "top_share": Law(
        inputs={"features": "features", "targets": "target_vector"},
        invariances=(*ROW_WISE, *_SCALE_FREE),
    ),
}

# Exported names that are no measures of arrays.
HELPERS = {
    "AlignmentCurve",
    "LabelProjections",
    "LeaveOneOut",
    "PreparedFeatures",
    "ScaledTargets",
    "area_from_projections",
    "curve_from_projections",
    "label_projections",
    "neighbour_accuracy_of_gram",
    "prepare_features",
    "scaled_targets",
    "top_share_from_projections",
}
