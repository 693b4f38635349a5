"""Rows of the family ``representation``."""

from functools import partial
from math import inf
from typing import Any

import torch
from torch import Tensor

from theodolite.linalg import double
from theodolite.measures.registry.measure import Invariance, Measure
from theodolite.measures.representation import (
    alignment_area,
    alignment_curve,
    alignment_second_moment,
    chance_curve,
    gbc,
    h_score,
    leep,
    logme,
    n_leep,
    neighbour_accuracy,
    one_vs_one_curve,
    one_vs_one_difference,
    picard_ratios,
    readout_accuracy,
    readout_error,
    representation_alignment,
    sfda,
    top_share,
    transrate,
)

_row = partial(Measure, family="representation")
_SMOOTH = {"features": True, "targets": True}
_CURVE = {**_SMOOTH, "thresholds": False}
_BASIS = (
    Invariance("rotate_columns", ("features",)),
    Invariance("append_zero_columns", ("features",)),
)
_ROW_WISE = (
    *_BASIS,
    Invariance("permute_rows", ("features", "targets")),
    Invariance("negate", ("features",)),
    Invariance("negate", ("targets",)),
)
_COMMON = (*_ROW_WISE, Invariance("rotate_rows", ("features", "targets")))
_SCALE_FREE = (Invariance("scale", ("features",)), Invariance("scale", ("targets",)))
_READ_OUT = (
    *_BASIS,
    Invariance("permute_rows", ("features", "labels")),
    Invariance("scale", ("features",)),
    Invariance("shift_rows", ("features",)),
)
_RENAMED = (Invariance("rename_classes", ("labels",)),)
_SHIFTED = (
    *_BASIS,
    *_RENAMED,
    Invariance("permute_rows", ("features", "labels")),
    Invariance("shift_rows", ("features",)),
)
_FEATURES_AND_LABELS = {"features": "features", "labels": "labels"}


def _energy(targets: Tensor, **_others: Any) -> float:
    """Squared norm of the targets."""
    return float(double(targets).square().sum())


def _largest(features: Tensor) -> float:
    return float(torch.linalg.matrix_norm(double(features), 2))


def _area_scale(features: Tensor, targets: Tensor) -> float:
    return _largest(features) * _energy(targets)


def _second_moment_scale(features: Tensor, targets: Tensor) -> float:
    return _largest(features) ** 2 * _energy(targets)


def _spectrum(features: Tensor) -> Tensor:
    values = torch.linalg.svdvals(double(features))
    return values[values > 1e-6 * values.max()]


def _longest_way(features: Tensor, targets: Tensor) -> float:
    """The largest weight that a unit of label mass can ask for."""
    return _energy(targets) ** 0.5 / float(_spectrum(features).min())


def _closest_pair(features: Tensor, targets: Tensor) -> float:
    """One over the smallest relative gap between singular values that are not equal."""
    values = _spectrum(features)
    gaps = -values.diff() / values.max()
    apart = gaps[gaps > 1e-6]
    return 1 / float(apart.min()) if len(apart) else 1.0


def _within_condition(features: Tensor, labels: Tensor) -> float:
    """Of the shrunk covariance within classes that the discriminant inverts."""
    wide = double(features)
    means = torch.stack([wide[labels == name].mean(0) for name in torch.unique(labels)])
    centred = wide - means[torch.unique(labels, return_inverse=True)[1]]
    values = torch.linalg.svdvals(centred).square() / len(wide)
    if len(values) < features.shape[1] or values[-1] <= 1e-10 * values[0]:
        strength = max(float((-5 * values[0]).exp()), 1e-10)
        return float(values[0] / (strength * values.mean())) if values[0] > 0 else 1.0
    return float(values[0] / values[-1])


ROWS: tuple[Measure, ...] = (
    _row(
        name="representation_alignment",
        function=representation_alignment,
        inputs={"features": "features", "targets": "targets", "threshold": "threshold"},
        meaning="Label mass that a linear read-out learns fast: on directions of large variance.",
        reference="[imani2022], Eq. (2)",
        range=(0.0, inf),
        larger_is_more_aligned=True,
        invariances=_COMMON,
        differentiable=_SMOOTH,
        scale=_energy,
    ),
    _row(
        name="alignment_curve",
        function=alignment_curve,
        inputs={"features": "features", "targets": "labels", "thresholds": "shares"},
        meaning="Share of the label mass at or above each singular value over the root of n.",
        reference="[imani2022], Eq. (2)",
        range=(0.0, 1.0),
        larger_is_more_aligned=True,
        invariances=(
            *_BASIS,
            Invariance("permute_rows", ("features", "targets")),
            Invariance("scale", ("features",)),
            Invariance("rename_classes", ("targets",)),
        ),
        differentiable={"features": True, "thresholds": False},
        values=lambda curve: curve.values,
    ),
    _row(
        name="alignment_curve.absolute",
        function=alignment_curve,
        inputs={"features": "features", "targets": "target_vector", "thresholds": "thresholds"},
        meaning="Label mass at or above each singular value: the later it drops, the better.",
        reference="[imani2022], Eq. (2)",
        range=(0.0, inf),
        larger_is_more_aligned=True,
        invariances=_COMMON,
        differentiable=_CURVE,
        options={"rows": "none", "scale": "absolute"},
        scale=_energy,
        values=lambda curve: curve.values,
    ),
    _row(
        name="alignment_curve.relative",
        function=alignment_curve,
        inputs={"features": "features", "targets": "target_vector", "thresholds": "shares"},
        meaning="Share of the label mass over singular values in units of the largest.",
        reference="[imani2022], Eq. (2)",
        range=(0.0, 1.0),
        larger_is_more_aligned=True,
        invariances=(*_COMMON, *_SCALE_FREE),
        differentiable=_CURVE,
        options={"rows": "none", "scale": "relative"},
        values=lambda curve: curve.values,
    ),
    _row(
        name="alignment_area",
        function=alignment_area,
        inputs={"features": "features", "targets": "target_vector"},
        meaning="Label alignment: area under the curve, 1 if one direction explains everything.",
        reference="[imani2022], Eq. (2)",
        range=(0.0, 1.0),
        larger_is_more_aligned=True,
        invariances=(*_ROW_WISE, *_SCALE_FREE),
        differentiable=_SMOOTH,
    ),
    _row(
        name="alignment_area.absolute",
        function=alignment_area,
        inputs={"features": "features", "targets": "targets"},
        meaning="Area under the absolute curve of features as they are.",
        reference="[imani2022], Eq. (2)",
        range=(0.0, inf),
        larger_is_more_aligned=True,
        invariances=_COMMON,
        differentiable=_SMOOTH,
        options={"rows": "none", "normalized": False},
        scale=_area_scale,
    ),
    _row(
        name="neighbour_accuracy",
        function=neighbour_accuracy,
        inputs={"features": "features", "labels": "labels"},
        meaning="Share of examples whose nearest neighbours have their class.",
        reference="[cover1967nearest]",
        range=(0.0, 1.0),
        larger_is_more_aligned=True,
        invariances=_READ_OUT,
        differentiable={"features": False},
    ),
    _row(
        name="readout_accuracy",
        function=readout_accuracy,
        inputs={"features": "features", "labels": "labels"},
        meaning="Share of examples that a linear read-out of all the others gets right.",
        reference="[allen1974prediction]",
        range=(0.0, 1.0),
        larger_is_more_aligned=True,
        invariances=_READ_OUT,
        differentiable={"features": False},
    ),
    _row(
        name="readout_error",
        function=readout_error,
        inputs={"features": "features", "targets": "targets"},
        meaning="Error of a linear read-out of all other examples; 1: no better than the mean.",
        reference="[allen1974prediction]",
        range=(0.0, inf),
        larger_is_more_aligned=False,
        invariances=(
            *_BASIS,
            *_SCALE_FREE,
            Invariance("permute_rows", ("features", "targets")),
            Invariance("shift_rows", ("features",)),
            Invariance("shift_rows", ("targets",)),
            Invariance("negate", ("targets",)),
        ),
        differentiable={"features": False, "targets": False},
    ),
    _row(
        name="logme",
        function=logme,
        inputs={"features": "features", "targets": "labels"},
        meaning="Evidence of a Bayesian linear model of the labels, as the published code has it.",
        reference="[you2022ranking]",
        larger_is_more_aligned=True,
        invariances=(
            Invariance("rotate_columns", ("features",)),
            Invariance("permute_rows", ("features", "targets")),
            Invariance("rename_classes", ("targets",)),
        ),
        differentiable={"features": False},
    ),
    _row(
        name="logme.complete",
        function=logme,
        inputs={"features": "features", "targets": "targets"},
        meaning="Evidence of a Bayesian linear model of the targets, all its terms included.",
        reference="[you2021logme]",
        larger_is_more_aligned=True,
        invariances=(*_BASIS, Invariance("permute_rows", ("features", "targets"))),
        differentiable={"features": False, "targets": False},
        options={"complete": True},
    ),
    _row(
        name="h_score",
        function=h_score,
        inputs=_FEATURES_AND_LABELS,
        meaning="Variance of the class means in units of the variance of the features.",
        reference="[bao2019hscore]",
        range=(0.0, inf),
        larger_is_more_aligned=True,
        invariances=(*_SHIFTED, Invariance("scale", ("features",))),
        differentiable={"features": False},
    ),
    _row(
        name="h_score.shrinkage",
        function=h_score,
        inputs=_FEATURES_AND_LABELS,
        meaning="The same with a covariance that can be trusted from few examples.",
        reference="[ibrahim2021newer]",
        range=(0.0, inf),
        larger_is_more_aligned=True,
        invariances=(
            *(row for row in _SHIFTED if row.transformation != "append_zero_columns"),
            Invariance("scale", ("features",)),
        ),
        differentiable={"features": False},
        options={"shrinkage": True},
    ),
    _row(
        name="leep",
        function=leep,
        inputs={"probabilities": "probabilities", "labels": "labels"},
        meaning="Likelihood of the labels given the probabilities of a model's own classes.",
        reference="[nguyen2020leep]",
        range=(-inf, 0.0),
        larger_is_more_aligned=True,
        invariances=(*_RENAMED, Invariance("permute_rows", ("probabilities", "labels"))),
        differentiable={"probabilities": False},
    ),
    _row(
        name="n_leep",
        function=n_leep,
        inputs=_FEATURES_AND_LABELS,
        meaning="Likelihood of the labels given the clusters of the features.",
        reference="[li2021ranking]",
        range=(-inf, 0.0),
        larger_is_more_aligned=True,
        invariances=_RENAMED,
        differentiable={"features": False},
    ),
    _row(
        name="transrate",
        function=transrate,
        inputs=_FEATURES_AND_LABELS,
        meaning="How much less room the features of a class take than those of all.",
        reference="[huang2022transrate]",
        larger_is_more_aligned=True,
        invariances=_SHIFTED,
        differentiable={"features": False},
    ),
    *(
        _row(
            name=f"gbc{suffix}",
            function=gbc,
            inputs=_FEATURES_AND_LABELS,
            meaning=f"How little the classes overlap as {shape} Gaussians; 0: not at all.",
            reference="[pandy2022gbc]",
            range=(-inf, 0.0),
            larger_is_more_aligned=True,
            invariances=(
                *_RENAMED,
                Invariance("permute_rows", ("features", "labels")),
                Invariance("shift_rows", ("features",)),
            ),
            differentiable={"features": False},
            options={"shape": shape},
        )
        for suffix, shape in (("", "spherical"), (".diagonal", "diagonal"))
    ),
    _row(
        name="sfda",
        function=sfda,
        inputs=_FEATURES_AND_LABELS,
        meaning="Probability of the labels under a discriminant that was made harder.",
        reference="[shao2022sfda]",
        range=(0.0, 1.0),
        larger_is_more_aligned=True,
        invariances=(*_RENAMED, Invariance("permute_rows", ("features", "labels"))),
        differentiable={"features": False},
        condition=_within_condition,
    ),
    _row(
        name="alignment_second_moment",
        function=alignment_second_moment,
        inputs={"features": "features", "targets": "targets"},
        meaning="Label mass weighted by variance: the numerator of kernel-target alignment.",
        reference="[imani2022], Eq. (2)",
        range=(0.0, inf),
        larger_is_more_aligned=True,
        invariances=_COMMON,
        differentiable=_SMOOTH,
        scale=_second_moment_scale,
    ),
    _row(
        name="top_share",
        function=top_share,
        inputs={"features": "features", "targets": "target_vector"},
        meaning="Share of the label mass on the few directions of largest variance.",
        reference="[imani2022], Figure 2",
        range=(0.0, 1.0),
        larger_is_more_aligned=True,
        invariances=(*_ROW_WISE, *_SCALE_FREE),
        differentiable=_SMOOTH,
        options={"count": 3},
    ),
    _row(
        name="chance_curve",
        function=chance_curve,
        inputs={"features": "features", "targets": "targets", "thresholds": "shares"},
        meaning="The alignment curve that shuffled labels would have on average.",
        reference="[imani2022], Figure 2",
        range=(0.0, 1.0),
        invariances=(
            *_BASIS,
            Invariance("scale", ("features",)),
            Invariance("permute_rows", ("features",)),
            Invariance("permute_rows", ("targets",)),
            Invariance("negate", ("targets",)),
        ),
        differentiable={"features": False, "targets": False, "thresholds": False},
        values=lambda curve: curve.values,
    ),
    _row(
        name="one_vs_one_curve",
        function=one_vs_one_curve,
        inputs={"features": "features", "labels": "labels", "thresholds": "thresholds"},
        meaning="Mean normalised alignment curve over all tasks that tell two classes apart.",
        reference="[imani2022], Figure 14",
        range=(0.0, 1.0),
        larger_is_more_aligned=True,
        invariances=(*_BASIS, *_RENAMED, Invariance("permute_rows", ("features", "labels"))),
        differentiable={"features": True, "thresholds": False},
        values=lambda average: average.mean,
    ),
    _row(
        name="one_vs_one_difference",
        function=one_vs_one_difference,
        inputs={
            "features": "features",
            "other_features": "other_features",
            "labels": "labels",
            "thresholds": "thresholds",
        },
        meaning="By how much one representation beats another, over all pairs of classes.",
        reference="[imani2022], Figure 14",
        range=(-1.0, 1.0),
        larger_is_more_aligned=True,
        invariances=(
            *_BASIS,
            *_RENAMED,
            Invariance("permute_rows", ("features", "other_features", "labels")),
        ),
        differentiable={"features": True, "other_features": True, "thresholds": False},
        values=lambda average: average.mean,
    ),
    _row(
        name="picard_ratios",
        function=picard_ratios,
        inputs={"features": "features", "targets": "target_vector"},
        meaning="How far the weight of each direction must travel to fit the labels.",
        reference="[hansen1990]",
        range=(0.0, inf),
        larger_is_more_aligned=False,
        invariances=(
            Invariance("rotate_columns", ("features",)),
            Invariance("permute_rows", ("features", "targets")),
            Invariance("negate", ("targets",)),
        ),
        differentiable={"features": False, "targets": False},
        scale=_longest_way,
        condition=_closest_pair,
    ),
)
