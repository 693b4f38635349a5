"""Rows of the family kernel: angles between two kernels, then what is read off spectra."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from theodolite.linalg import centered_products, double, double_center
from theodolite.measures import kernel
from theodolite.measures.registry.measure import Invariance, Measure

_row = partial(Measure, family="kernel")

__all__ = []

CURVE = {"curve": "power_curve"}


def _largest(**arguments: Any) -> float:
    array = next(iter(arguments.values()))
    peak = float(torch.linalg.matrix_norm(array, ord=2)) / len(array)
    return peak if "gram" in arguments else peak * float(torch.linalg.matrix_norm(array, ord=2))


SPECTRAL_ROWS: tuple[Measure, ...] = (
    _row(
        name="kernel_spectrum",
        function=kernel.kernel_spectrum,
        inputs={"gram": "gram"},
        meaning="How the variance of a kernel spreads over its modes, largest first.",
        reference="[canatar2022], Eq. (1)",
        range=(0.0, float("inf")),
        invariances=(
            Invariance("permute_rows_and_columns", ("gram",)),
            Invariance("rotate_both", ("gram",)),
        ),
        differentiable={"gram": False},  # one-sided where an eigenvalue is zero
        scale=_largest,
        values=lambda result: result.eigenvalues,
    ),
    _row(
        name="linear_spectrum",
        function=kernel.linear_spectrum,
        inputs={"features": "features"},
        meaning="How the variance of a layer spreads over its modes, largest first.",
        reference="[canatar2022], Eq. (1)",
        range=(0.0, float("inf")),
        invariances=(
            Invariance("permute_rows", ("features",)),
            Invariance("rotate_columns", ("features",)),
        ),
        differentiable={"features": True},
        scale=_largest,
        values=lambda result: result.eigenvalues,
    ),
    *(
        _row(
            name=f"cumulative_power{suffix}",
            function=kernel.cumulative_power,
            inputs={"kernel": "gram", "targets": "targets"},
            meaning="Share of the target that the leading modes of a kernel carry"
            + (", output by output." if suffix else "."),
            reference="[canatar2022], Eq. (3)",
            range=(0.0, 1.0),
            larger_is_more_aligned=True,
            invariances=(
                Invariance("permute_rows_and_columns", ("kernel", "targets")),
                Invariance("scale", ("kernel",)),
                Invariance("scale", ("targets",)),
                Invariance("negate", ("targets",)),
                *(() if suffix else (Invariance("rotate_columns", ("targets",)),)),
            ),
            differentiable={"kernel": False, "targets": True},  # eigenspaces break up at ties
            options={"per_class": bool(suffix)},
            values=lambda result: result.curve,
        )
        for suffix in ("", ".per_class")
    ),
    _row(
        name="modes_to_reach",
        function=kernel.modes_to_reach,
        inputs=CURVE,
        meaning="Number of leading modes that carry most (by default 95 %) of the target.",
        reference="[canatar2022], Fig. 3b",
        range=(0.0, float("inf")),
        larger_is_more_aligned=False,
        differentiable={"curve": False},
    ),
    _row(
        name="power_area",
        function=kernel.power_area,
        inputs=CURVE,
        meaning="How early over all modes the target is carried; one half is chance.",
        reference="[canatar2022], Eq. (3)",
        range=(0.0, 1.0),
        larger_is_more_aligned=True,
        differentiable={"curve": True},
    ),
    _row(
        name="power_evenness",
        function=kernel.power_evenness,
        inputs=CURVE,
        meaning="How far the leading modes are from sharing the classes evenly; 0 after collapse.",
        reference="[canatar2022], Fig. 3b",
        range=(0.0, 1.0),
        larger_is_more_aligned=False,
        differentiable={"curve": True},
        options={"num_classes": 2},
    ),
    _row(
        name="spectral_gap",
        function=kernel.spectral_gap,
        inputs={"eigenvalues": "eigenvalues"},
        meaning="How sharply the spectrum breaks off after as many modes as classes.",
        reference="[canatar2022], Fig. 3a",
        range=(1.0, float("inf")),
        larger_is_more_aligned=True,
        invariances=(Invariance("scale", ("eigenvalues",)),),
        differentiable={"eigenvalues": True},
        options={"num_classes": 2},
    ),
    _row(
        name="participation_ratio",
        function=kernel.participation_ratio,
        inputs={"gram": "gram"},
        meaning="Effective number of modes that share the variance of a kernel.",
        reference="[canatar2022], Fig. 3a",
        range=(1.0, float("inf")),
        invariances=(
            Invariance("scale", ("gram",)),
            Invariance("rotate_both", ("gram",)),
            Invariance("permute_rows_and_columns", ("gram",)),
        ),
        differentiable={"gram": True},
        scale=lambda gram: float(len(gram)),
    ),
    *(
        _row(
            name=f"correlation_table{suffix}",
            function=kernel.correlation_table,
            inputs={"rows": "targets", "columns": "other_features"},
            meaning=f"{noun} correlation over runs of some quantities with others.",
            reference="[canatar2022], Table I",
            range=(-1.0, 1.0),
            invariances=(
                Invariance("permute_rows", ("rows", "columns")),
                Invariance("scale", ("rows",)),
                Invariance("scale", ("columns",)),
                Invariance("shift_rows", ("rows",)),
                Invariance("shift_rows", ("columns",)),
            ),
            differentiable={"rows": False, "columns": False},
            options={"method": method},
            values=lambda result: result.coefficients,
        )
        for suffix, method, noun in (("", "pearson", "Linear"), (".spearman", "spearman", "Rank"))
    ),
)


GRAMS = {"gram_a": "gram", "gram_b": "gram"}
FEATURES = {"features_a": "features", "features_b": "other_features"}
PAIR = ("gram_a", "gram_b")
SIDES = ("features_a", "features_b")
ON_GRAMS = (
    Invariance("swap", PAIR),
    Invariance("permute_rows_and_columns", PAIR),
)
ON_FEATURES = (
    Invariance("swap", SIDES),
    Invariance("permute_rows", SIDES),
    Invariance("rotate_columns", ("features_a",)),
    Invariance("rotate_columns", ("features_b",)),
    Invariance("append_zero_columns", SIDES),
)
SHIFTED = tuple(Invariance("shift_rows", (side,)) for side in SIDES)
SCALED = tuple(Invariance("scale", (side,)) for side in SIDES)


def _grams(**arguments: Any) -> tuple[Tensor, Tensor]:
    """The two centred kernels behind any of the pair measures' arguments."""
    if "gram_a" in arguments:
        a, b = double(arguments["gram_a"]), double(arguments["gram_b"])
    else:
        names = (
            ("features_a", "features_b") if "features_a" in arguments else ("features", "labels")
        )
        first, second = (arguments[name] for name in names)
        second = second if second.ndim == 2 else torch.nn.functional.one_hot(second.long())
        a, b = double(first) @ double(first).mT, double(second) @ double(second).mT
    return double_center(a), double_center(b)


def _hsic_scale(**arguments: Any) -> float:
    a, b = _grams(**arguments)
    return float(a.norm() * b.norm()) / len(a) ** 2


def _debiasing(**arguments: Any) -> float:
    """How much of the kernels' norms is left when the diagonals are taken out."""
    products = centered_products(*_grams(**arguments))
    full, left = products.products.diagonal(), products.totals(debiased=True).diagonal()
    return float((full / left.abs().clamp(min=1e-300)).prod().sqrt())


ROWS: tuple[Measure, ...] = (
    _row(
        name="kta",
        function=kernel.kta,
        inputs=GRAMS,
        meaning="How similar two kernels are, their constant parts included.",
        reference="[canatar2022], Eq. (4)",
        range=(0.0, 1.0),
        larger_is_more_aligned=True,
        invariances=(*ON_GRAMS, Invariance("scale", ("gram_a",)), Invariance("scale", ("gram_b",))),
        differentiable={"gram_a": True, "gram_b": True},
    ),
    _row(
        name="linear_kta",
        function=kernel.linear_kta,
        inputs=FEATURES,
        meaning="How similar the kernels of two sets of features are, their means included.",
        reference="[canatar2022], Eq. (4)",
        range=(0.0, 1.0),
        larger_is_more_aligned=True,
        invariances=(*ON_FEATURES, *SCALED),
        differentiable={"features_a": True, "features_b": True},
    ),
    *(
        _row(
            name=f"cka{suffix}",
            function=kernel.cka,
            inputs=GRAMS,
            meaning=f"How similar two kernels are up to constants ({word} estimator).",
            reference="[kornblith2019], Eq. (3)",
            range=(low, 1.0),
            larger_is_more_aligned=True,
            invariances=(
                *ON_GRAMS,
                Invariance("scale", ("gram_a",)),
                Invariance("scale", ("gram_b",)),
                Invariance("shift_entries", ("gram_a",)),
                Invariance("shift_entries", ("gram_b",)),
            ),
            differentiable={"gram_a": True, "gram_b": True},
            options={"debiased": low < 0},
            condition=_debiasing if low < 0 else lambda **_: 1.0,
        )
        for suffix, word, low in (("", "debiased", -1.0), (".biased", "plug-in", 0.0))
    ),
    *(
        _row(
            name=f"linear_cka{suffix}",
            function=kernel.linear_cka,
            inputs=FEATURES,
            meaning=f"How similar two layers see the examples to each other ({word} estimator).",
            reference="[kornblith2019], Eq. (3)",
            range=(low, 1.0),
            larger_is_more_aligned=True,
            invariances=(*ON_FEATURES, *SCALED, *SHIFTED),
            differentiable={"features_a": True, "features_b": True},
            options={"debiased": low < 0},
            condition=_debiasing if low < 0 else lambda **_: 1.0,
        )
        for suffix, word, low in (("", "debiased", -1.0), (".biased", "plug-in", 0.0))
    ),
    *(
        _row(
            name=f"target_cka{suffix}",
            function=kernel.target_cka,
            inputs={"features": "features", "labels": "labels"},
            meaning=f"How far a layer's geometry is that of the classes ({word} estimator).",
            reference="[canatar2022], Sec. III",
            range=(low, 1.0),
            larger_is_more_aligned=True,
            invariances=(
                Invariance("permute_rows", ("features", "labels")),
                Invariance("rotate_columns", ("features",)),
                Invariance("scale", ("features",)),
                Invariance("shift_rows", ("features",)),
                Invariance("append_zero_columns", ("features",)),
                Invariance("rename_classes", ("labels",)),
            ),
            differentiable={"features": True},
            options={"debiased": low < 0},
            condition=_debiasing if low < 0 else lambda **_: 1.0,
        )
        for suffix, word, low in (("", "debiased", -1.0), (".biased", "plug-in", 0.0))
    ),
    *(
        _row(
            name=f"hsic{suffix}",
            function=kernel.hsic,
            inputs=GRAMS,
            meaning=f"How much two kernels covary over the examples ({word} estimator).",
            reference="[song2012], Eq. (5)" if low < 0 else "[song2012], Eq. (4)",
            range=(low, float("inf")),
            larger_is_more_aligned=True,
            invariances=(
                *ON_GRAMS,
                Invariance("shift_entries", ("gram_a",)),
                Invariance("shift_entries", ("gram_b",)),
            ),
            differentiable={"gram_a": True, "gram_b": True},
            options={"debiased": low < 0},
            scale=_hsic_scale,
        )
        for suffix, word, low in (("", "unbiased", -float("inf")), (".biased", "plug-in", 0.0))
    ),
    *(
        _row(
            name=f"linear_hsic{suffix}",
            function=kernel.linear_hsic,
            inputs=FEATURES,
            meaning=f"How much two sets of features covary, squared ({word} estimator).",
            reference="[song2012], Eq. (5)" if low < 0 else "[song2012], Eq. (4)",
            range=(low, float("inf")),
            larger_is_more_aligned=True,
            invariances=(*ON_FEATURES, *SHIFTED),
            differentiable={"features_a": True, "features_b": True},
            options={"debiased": low < 0},
            scale=_hsic_scale,
        )
        for suffix, word, low in (("", "unbiased", -float("inf")), (".biased", "plug-in", 0.0))
    ),
    _row(
        name="regression_error",
        function=kernel.regression_error,
        inputs={"gram": "gram", "targets": "targets"},
        meaning="Error of kernel regression on all other examples; 1: no better than the mean.",
        reference="[allen1974prediction]",
        range=(0.0, float("inf")),
        larger_is_more_aligned=False,
        invariances=(
            Invariance("permute_rows_and_columns", ("gram", "targets")),
            Invariance("scale", ("gram",)),
            Invariance("scale", ("targets",)),
            Invariance("shift_entries", ("gram",)),
            Invariance("shift_rows", ("targets",)),
        ),
        differentiable={"gram": False, "targets": False},
    ),
    _row(
        name="regression_accuracy",
        function=kernel.regression_accuracy,
        inputs={"gram": "gram", "labels": "labels"},
        meaning="Share of examples that kernel regression on all the others gets right.",
        reference="[allen1974prediction]",
        range=(0.0, 1.0),
        larger_is_more_aligned=True,
        invariances=(
            Invariance("permute_rows_and_columns", ("gram", "labels")),
            Invariance("scale", ("gram",)),
            Invariance("shift_entries", ("gram",)),
        ),
        differentiable={"gram": False},
    ),
    *SPECTRAL_ROWS,
)
