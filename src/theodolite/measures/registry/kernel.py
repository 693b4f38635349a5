"""Rows of the family kernel: angles between two kernels, then what is read off spectra."""

from typing import Any

import torch
from torch import Tensor

from theodolite.linalg import centered_products, double, double_center
from theodolite.measures import kernel
from theodolite.measures.registry.kernel_spectra import ROWS as SPECTRAL_ROWS
from theodolite.measures.registry.measure import Invariance, Measure

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
    Measure(
        name="kta",
        function=kernel.kta,
        family="kernel",
        inputs=GRAMS,
        meaning="How similar two kernels are, their constant parts included.",
        reference="[canatar2022], Eq. (4)",
        range=(0.0, 1.0),
        larger_is_more_aligned=True,
        invariances=(*ON_GRAMS, Invariance("scale", ("gram_a",)), Invariance("scale", ("gram_b",))),
        differentiable={"gram_a": True, "gram_b": True},
    ),
    Measure(
        name="linear_kta",
        function=kernel.linear_kta,
        family="kernel",
        inputs=FEATURES,
        meaning="How similar the kernels of two sets of features are, their means included.",
        reference="[canatar2022], Eq. (4)",
        range=(0.0, 1.0),
        larger_is_more_aligned=True,
        invariances=(*ON_FEATURES, *SCALED),
        differentiable={"features_a": True, "features_b": True},
    ),
    *(
        Measure(
            name=f"cka{suffix}",
            function=kernel.cka,
            family="kernel",
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
        Measure(
            name=f"linear_cka{suffix}",
            function=kernel.linear_cka,
            family="kernel",
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
        Measure(
            name=f"target_cka{suffix}",
            function=kernel.target_cka,
            family="kernel",
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
    Measure(
        name="minibatch_cka",
        function=kernel.minibatch_cka,
        family="kernel",
        inputs=FEATURES,
        meaning="How similar two layers see the examples of a minibatch to each other.",
        reference="[nguyen2021], Eq. (3)",
        range=(-1.0, 1.0),
        larger_is_more_aligned=True,
        invariances=(
            Invariance("swap", SIDES),
            Invariance("rotate_columns", ("features_a",)),
            Invariance("rotate_columns", ("features_b",)),
            *SCALED,
            *SHIFTED,
        ),
        differentiable={"features_a": True, "features_b": True},
        options={"batch_size": 6},
        condition=lambda **_: 100.0,  # batches of six leave little beside the diagonals
    ),
    *(
        Measure(
            name=f"hsic{suffix}",
            function=kernel.hsic,
            family="kernel",
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
        Measure(
            name=f"linear_hsic{suffix}",
            function=kernel.linear_hsic,
            family="kernel",
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
    *SPECTRAL_ROWS,
)
