"""Laws of the family ``representation``."""

import torch

from tests.conformance.laws.law import Law
from theodolite.linalg import double

_BASIS = (("rotate_columns", "features"), ("append_zero_columns", "features"))
_ROW_WISE = (
    *_BASIS,
    ("permute_rows", "features", "targets"),
    ("negate", "features"),
    ("negate", "targets"),
)
_COMMON = (*_ROW_WISE, ("rotate_rows", "features", "targets"))
_SCALE_FREE = (("scale", "features"), ("scale", "targets"))
_READ_OUT = (
    *_BASIS,
    ("permute_rows", "features", "labels"),
    ("scale", "features"),
    ("shift_rows", "features"),
)
_RENAMED = (("rename_classes", "labels"),)


def _energy(targets, **_others):
    """Squared norm of the targets."""
    return float(double(targets).square().sum())


def _largest(features):
    return float(torch.linalg.matrix_norm(double(features), 2))


def _area_scale(features, targets):
    return _largest(features) * _energy(targets)


def _second_moment_scale(features, targets):
    return _largest(features) ** 2 * _energy(targets)


def _spectrum(features):
    values = torch.linalg.svdvals(double(features))
    return values[values > 1e-06 * values.max()]


def _longest_way(features, targets):
    """The largest weight that a unit of label mass can ask for."""
    return _energy(targets) ** 0.5 / float(_spectrum(features).min())


def _closest_pair(features, targets):
    """One over the smallest relative gap between singular values that are not equal."""
    values = _spectrum(features)
    gaps = -values.diff() / values.max()
    apart = gaps[gaps > 1e-06]
    return 1 / float(apart.min()) if len(apart) else 1.0


LAWS = {
    "representation_alignment": Law(
        inputs={"features": "features", "targets": "targets", "threshold": "threshold"},
        invariances=_COMMON,
        scale=_energy,
    ),
    "alignment_curve": Law(
        inputs={"features": "features", "targets": "labels", "thresholds": "shares"},
        invariances=(
            *_BASIS,
            ("permute_rows", "features", "targets"),
            ("scale", "features"),
            ("rename_classes", "targets"),
        ),
    ),
    "alignment_curve.absolute": Law(
        inputs={"features": "features", "targets": "target_vector", "thresholds": "thresholds"},
        invariances=_COMMON,
        scale=_energy,
    ),
    "alignment_curve.relative": Law(
        inputs={"features": "features", "targets": "target_vector", "thresholds": "shares"},
        invariances=(*_COMMON, *_SCALE_FREE),
    ),
    "alignment_area": Law(
        inputs={"features": "features", "targets": "target_vector"},
        invariances=(*_ROW_WISE, *_SCALE_FREE),
    ),
    "alignment_area.absolute": Law(
        inputs={"features": "features", "targets": "targets"},
        invariances=_COMMON,
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
            *_BASIS,
            *_SCALE_FREE,
            ("permute_rows", "features", "targets"),
            ("shift_rows", "features"),
            ("shift_rows", "targets"),
            ("negate", "targets"),
        ),
    ),
    "alignment_second_moment": Law(
        inputs={"features": "features", "targets": "targets"},
        invariances=_COMMON,
        scale=_second_moment_scale,
    ),
    "top_share": Law(
        inputs={"features": "features", "targets": "target_vector"},
        invariances=(*_ROW_WISE, *_SCALE_FREE),
    ),
    "chance_curve": Law(
        inputs={"features": "features", "targets": "targets", "thresholds": "shares"},
        invariances=(
            *_BASIS,
            ("scale", "features"),
            ("permute_rows", "features"),
            ("permute_rows", "targets"),
            ("negate", "targets"),
        ),
    ),
    "one_vs_one_curve": Law(
        inputs={"features": "features", "labels": "labels", "thresholds": "thresholds"},
        invariances=(*_BASIS, *_RENAMED, ("permute_rows", "features", "labels")),
    ),
    "one_vs_one_difference": Law(
        inputs={
            "features": "features",
            "other_features": "other_features",
            "labels": "labels",
            "thresholds": "thresholds",
        },
        invariances=(*_BASIS, *_RENAMED, ("permute_rows", "features", "other_features", "labels")),
    ),
    "picard_ratios": Law(
        inputs={"features": "features", "targets": "target_vector"},
        invariances=(
            ("rotate_columns", "features"),
            ("permute_rows", "features", "targets"),
            ("negate", "targets"),
        ),
        scale=_longest_way,
        condition=_closest_pair,
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
