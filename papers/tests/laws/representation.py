"""Laws of the formulas of representation alignment."""

import torch

from tests.conformance.laws.law import Law
from tests.conformance.laws.representation import BASIS, COMMON, energy, largest
from theodolite.linalg import double

_RENAMED = (("rename_classes", "labels"),)


def _second_moment_scale(features, targets):
    return largest(features) ** 2 * energy(targets)


def _spectrum(features):
    values = torch.linalg.svdvals(double(features))
    return values[values > 1e-06 * values.max()]


def _longest_way(features, targets):
    """The largest weight that a unit of label mass can ask for."""
    return energy(targets) ** 0.5 / float(_spectrum(features).min())


def _closest_pair(features, targets):
    """One over the smallest relative gap between singular values that are not equal."""
    values = _spectrum(features)
    gaps = -values.diff() / values.max()
    apart = gaps[gaps > 1e-06]
    return 1 / float(apart.min()) if len(apart) else 1.0


LAWS = {
    "alignment_second_moment": Law(
        inputs={"features": "features", "targets": "targets"},
        invariances=COMMON,
        scale=_second_moment_scale,
    ),
    "chance_curve": Law(
        inputs={"features": "features", "targets": "targets", "thresholds": "shares"},
        invariances=(
            *BASIS,
            ("scale", "features"),
            ("permute_rows", "features"),
            ("permute_rows", "targets"),
            ("negate", "targets"),
        ),
    ),
    "one_vs_one_curve": Law(
        inputs={"features": "features", "labels": "labels", "thresholds": "thresholds"},
        invariances=(*BASIS, *_RENAMED, ("permute_rows", "features", "labels")),
    ),
    "one_vs_one_difference": Law(
        inputs={
            "features": "features",
            "other_features": "other_features",
            "labels": "labels",
            "thresholds": "thresholds",
        },
        invariances=(*BASIS, *_RENAMED, ("permute_rows", "features", "other_features", "labels")),
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
