"""Laws of the family kernel: angles between two kernels, then what is read off spectra."""

import torch

from tests.conformance.laws.law import Law, unit
from theodolite.linalg import centered_products, double, double_center

CURVE = {"curve": "power_curve"}


def _largest(**arguments):
    array = next(iter(arguments.values()))
    peak = float(torch.linalg.matrix_norm(array, ord=2)) / len(array)
    return peak if "gram" in arguments else peak * float(torch.linalg.matrix_norm(array, ord=2))


SPECTRAL_LAWS = {
    "kernel_spectrum": Law(
        inputs={"gram": "gram"},
        invariances=(("permute_rows_and_columns", "gram"), ("rotate_both", "gram")),
        scale=_largest,
    ),
    "linear_spectrum": Law(
        inputs={"features": "features"},
        invariances=(("permute_rows", "features"), ("rotate_columns", "features")),
        scale=_largest,
    ),
    "cumulative_power": Law(
        inputs={"kernel": "gram", "targets": "targets"},
        invariances=(
            ("permute_rows_and_columns", "kernel", "targets"),
            ("scale", "kernel"),
            ("scale", "targets"),
            ("negate", "targets"),
            ("rotate_columns", "targets"),
        ),
    ),
    "modes_to_reach": Law(inputs=CURVE),
    "power_area": Law(inputs=CURVE),
    "participation_ratio": Law(
        inputs={"gram": "gram"},
        invariances=(
            ("scale", "gram"),
            ("rotate_both", "gram"),
            ("permute_rows_and_columns", "gram"),
        ),
        scale=lambda gram: float(len(gram)),
    ),
}
GRAMS = {"gram_a": "gram", "gram_b": "gram"}
FEATURES = {"features_a": "features", "features_b": "other_features"}
PAIR = ("gram_a", "gram_b")
SIDES = ("features_a", "features_b")
ON_GRAMS = (("swap", *PAIR), ("permute_rows_and_columns", *PAIR))
ON_FEATURES = (
    ("swap", *SIDES),
    ("permute_rows", *SIDES),
    ("rotate_columns", "features_a"),
    ("rotate_columns", "features_b"),
    ("append_zero_columns", *SIDES),
)
SHIFTED = tuple(("shift_rows", side) for side in SIDES)
SCALED = tuple(("scale", side) for side in SIDES)


def _grams(**arguments):
    """The two centred kernels behind any of the pair measures' arguments."""
    if "gram_a" in arguments:
        a, b = (double(arguments["gram_a"]), double(arguments["gram_b"]))
    else:
        names = (
            ("features_a", "features_b") if "features_a" in arguments else ("features", "labels")
        )
        first, second = (arguments[name] for name in names)
        second = second if second.ndim == 2 else torch.nn.functional.one_hot(second.long())
        a, b = (double(first) @ double(first).mT, double(second) @ double(second).mT)
    return (double_center(a), double_center(b))


def _hsic_scale(**arguments):
    a, b = _grams(**arguments)
    return float(a.norm() * b.norm()) / len(a) ** 2


def _debiasing(**arguments):
    """How much of the kernels' norms is left when the diagonals are taken out."""
    products = centered_products(*_grams(**arguments))
    full, left = (products.products.diagonal(), products.totals(debiased=True).diagonal())
    return float((full / left.abs().clamp(min=1e-300)).prod().sqrt())


LAWS = {
    "kta": Law(inputs=GRAMS, invariances=(*ON_GRAMS, ("scale", "gram_a"), ("scale", "gram_b"))),
    "linear_kta": Law(inputs=FEATURES, invariances=(*ON_FEATURES, *SCALED)),
    **{
        f"cka{suffix}": Law(
            inputs=GRAMS,
            invariances=(
                *ON_GRAMS,
                ("scale", "gram_a"),
                ("scale", "gram_b"),
                ("shift_entries", "gram_a"),
                ("shift_entries", "gram_b"),
            ),
            condition=unit if suffix else _debiasing,
        )
        for suffix in ("", ".biased")
    },
    **{
        f"linear_cka{suffix}": Law(
            inputs=FEATURES,
            invariances=(*ON_FEATURES, *SCALED, *SHIFTED),
            condition=unit if suffix else _debiasing,
        )
        for suffix in ("", ".biased")
    },
    **{
        f"target_cka{suffix}": Law(
            inputs={"features": "features", "labels": "labels"},
            invariances=(
                ("permute_rows", "features", "labels"),
                ("rotate_columns", "features"),
                ("scale", "features"),
                ("shift_rows", "features"),
                ("append_zero_columns", "features"),
                ("rename_classes", "labels"),
            ),
            condition=unit if suffix else _debiasing,
        )
        for suffix in ("", ".biased")
    },
    **{
        f"hsic{suffix}": Law(
            inputs=GRAMS,
            invariances=(*ON_GRAMS, ("shift_entries", "gram_a"), ("shift_entries", "gram_b")),
            scale=_hsic_scale,
        )
        for suffix in ("", ".biased")
    },
    **{
        f"linear_hsic{suffix}": Law(
            inputs=FEATURES, invariances=(*ON_FEATURES, *SHIFTED), scale=_hsic_scale
        )
        for suffix in ("", ".biased")
    },
    "leave_one_out_regression.error": Law(
        inputs={"gram": "gram", "targets": "targets"},
        invariances=(
            ("permute_rows_and_columns", "gram", "targets"),
            ("scale", "gram"),
            ("scale", "targets"),
            ("shift_entries", "gram"),
            ("shift_rows", "targets"),
        ),
    ),
    "leave_one_out_regression.accuracy": Law(
        inputs={"gram": "gram", "targets": "labels"},
        invariances=(
            ("permute_rows_and_columns", "gram", "targets"),
            ("scale", "gram"),
            ("shift_entries", "gram"),
        ),
    ),
    **SPECTRAL_LAWS,
}

# Exported names that are no measures of arrays.
HELPERS = {
    "participation_from_traces",
    "permuted_cka",
    "cka_from_products",
    "centered_cka",
    "CenteredGrams",
    "CkaMatrix",
    "CumulativePower",
    "KernelSpectrum",
    "LeaveOneOut",
    "cka_matrix",
    "gram",
    "mean_gram",
    "target_gram",
}
