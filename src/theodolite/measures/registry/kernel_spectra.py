"""Rows of the family kernel that describe spectra, cumulative power and correlations."""

from typing import Any

import torch

from theodolite.measures import kernel
from theodolite.measures.registry.measure import Invariance, Measure

CURVE = {"curve": "power_curve"}


def _largest(**arguments: Any) -> float:
    array = next(iter(arguments.values()))
    peak = float(torch.linalg.matrix_norm(array, ord=2)) / len(array)
    return peak if "gram" in arguments else peak * float(torch.linalg.matrix_norm(array, ord=2))


ROWS: tuple[Measure, ...] = (
    Measure(
        name="kernel_spectrum",
        function=kernel.kernel_spectrum,
        family="kernel",
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
    Measure(
        name="linear_spectrum",
        function=kernel.linear_spectrum,
        family="kernel",
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
        Measure(
            name=f"cumulative_power{suffix}",
            function=kernel.cumulative_power,
            family="kernel",
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
    Measure(
        name="modes_to_reach",
        function=kernel.modes_to_reach,
        family="kernel",
        inputs=CURVE,
        meaning="Number of leading modes that carry most (by default 95 %) of the target.",
        reference="[canatar2022], Fig. 3b",
        range=(0.0, float("inf")),
        larger_is_more_aligned=False,
        differentiable={"curve": False},
    ),
    Measure(
        name="power_area",
        function=kernel.power_area,
        family="kernel",
        inputs=CURVE,
        meaning="How early over all modes the target is carried; one half is chance.",
        reference="[canatar2022], Eq. (3)",
        range=(0.0, 1.0),
        larger_is_more_aligned=True,
        differentiable={"curve": True},
    ),
    Measure(
        name="power_evenness",
        function=kernel.power_evenness,
        family="kernel",
        inputs=CURVE,
        meaning="How far the leading modes are from sharing the classes evenly; 0 after collapse.",
        reference="[canatar2022], Fig. 3b",
        range=(0.0, 1.0),
        larger_is_more_aligned=False,
        differentiable={"curve": True},
        options={"num_classes": 2},
    ),
    Measure(
        name="spectral_gap",
        function=kernel.spectral_gap,
        family="kernel",
        inputs={"eigenvalues": "eigenvalues"},
        meaning="How sharply the spectrum breaks off after as many modes as classes.",
        reference="[canatar2022], Fig. 3a",
        range=(1.0, float("inf")),
        larger_is_more_aligned=True,
        invariances=(Invariance("scale", ("eigenvalues",)),),
        differentiable={"eigenvalues": True},
        options={"num_classes": 2},
    ),
    Measure(
        name="participation_ratio",
        function=kernel.participation_ratio,
        family="kernel",
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
        Measure(
            name=f"correlation_table{suffix}",
            function=kernel.correlation_table,
            family="kernel",
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
            differentiable={"rows": not suffix, "columns": not suffix},
            options={"method": method},
            values=lambda result: result.coefficients,
        )
        for suffix, method, noun in (("", "pearson", "Linear"), (".spearman", "spearman", "Rank"))
    ),
)
