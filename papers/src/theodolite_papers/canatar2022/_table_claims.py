"""Claims of Table I: correlations of factors, loss, accuracy and CKA over the kept runs."""

from functools import partial

import numpy as np

from theodolite_papers.canatar2022._grid_claims import FACTORS, grid_claim, profiles
from theodolite_papers.canatar2022._kernels import BIASED, DEBIASED
from theodolite_papers.ledger import (
    CORRELATION,
    LARGE,
    Outcome,
    Results,
    above,
    correlation_threshold,
    decided,
    fisher_interval,
    inside,
    outcome,
    pearson,
)

__all__ = ["CLAIMS", "COLUMNS", "PUBLISHED", "ROWS", "coefficients"]

COLUMNS = ("loss", "accuracy", "cka_test", "cka_train")
ROWS = (*FACTORS, *COLUMNS, "average_cka_test", "average_cka_train")
# Table I of the paper: rows as above, over its 36 kept runs.
PUBLISHED = np.array(
    [
        [0.097, -0.024, -0.026, -0.024],
        [0.335, 0.806, 0.529, 0.162],
        [-0.039, -0.247, -0.181, -0.045],
        [-0.078, 0.163, -0.035, -0.263],
        [0.099, 0.448, 0.823, 0.936],
        [1.0, 0.384, 0.366, 0.253],
        [0.384, 1.0, 0.850, 0.528],
        [0.366, 0.850, 1.0, 0.870],
        [0.253, 0.528, 0.870, 1.0],
        [0.279, 0.920, 0.944, 0.747],
        [0.221, 0.828, 0.930, 0.837],
    ]
)
_REDUCERS = ("max", "mean", "flatten")


def variables(runs: Results, row: int = BIASED, reducer: str = "max") -> np.ndarray:
    """The variables of the table, one row per run; CKA is that of the last layer."""
    factors = [[float(run.point[name]) for run in runs] for name in FACTORS]
    test, train = (_target(runs, name, row, reducer) for name in ("test", "train"))
    measured = [runs["train_loss"], runs["test_accuracy"], test[:, -1], train[:, -1]]
    columns = [*factors, *measured, test.mean(1), train.mean(1)]
    return np.stack(columns, axis=1).astype(np.float64)


def _target(runs: Results, name: str, row: int, reducer: str) -> np.ndarray:
    if reducer == "max":
        return profiles(runs, f"target_{name}", row)
    return runs.array(f"target_{name}_{reducer}").astype(np.float64)


def coefficients(runs: Results, row: int = BIASED, reducer: str = "max") -> np.ndarray:
    """The table: rows of ``ROWS``, columns of ``COLUMNS``."""
    values = variables(runs, row, reducer)
    first = len(FACTORS)
    return _correlations(values, values[:, first : first + len(COLUMNS)])


def _correlations(rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Correlations of the columns of two tables; nan if a column is constant."""
    return np.array([[pearson(row, column) for column in columns.T] for row in rows.T])


def _entries(table: np.ndarray, rows: tuple[str, ...] = ROWS) -> dict[str, float]:
    return {
        f"{row}.{column}": float(table[ROWS.index(row), k])
        for row in rows
        for k, column in enumerate(COLUMNS)
        if row != column
    }


def _entry(table: np.ndarray, row: str, column: str) -> float:
    return float(table[ROWS.index(row), COLUMNS.index(column)])


def _threshold(runs: Results) -> float:
    return correlation_threshold(len(variables(runs)))


def _whole_table(runs: Results) -> Outcome:
    numbers = _entries(coefficients(runs))
    return outcome(None, kept=len(runs), threshold=_threshold(runs), **numbers)


def _debiased_table(runs: Results) -> Outcome:
    rows = ("momentum", "accuracy", "cka_test", "average_cka_test", "average_cka_train")
    return outcome(None, **_entries(coefficients(runs, DEBIASED), rows))


def _factors(runs: Results) -> Outcome:
    factors = variables(runs)[:, : len(FACTORS)]
    table = _correlations(factors, factors)
    pairs = [(i, j) for j in range(len(FACTORS)) for i in range(j)]
    named = {f"{FACTORS[i]}.{FACTORS[j]}": float(table[i, j]) for i, j in pairs}
    return outcome(None, **named)


def _momentum_first(runs: Results) -> Outcome:
    table, least = coefficients(runs), _threshold(runs)
    rows = table[: len(FACTORS)]
    place, columns = FACTORS.index("momentum"), [COLUMNS.index(f"cka_{s}") for s in _SETS]
    own = rows[place, columns]
    others = np.nanmax(np.delete(rows, place, 0)[:, columns], 0)
    return decided(
        *(above(f"cka_{s}", r, least) for s, r in zip(_SETS, own, strict=True)),
        *(above(f"cka_{s} minus next", r - n) for s, r, n in zip(_SETS, own, others, strict=True)),
        threshold=least,
    )


def _momentum_pooled(runs: Results) -> Outcome:
    table, least = coefficients(runs), _threshold(runs)
    test, train = (_entry(table, "momentum", f"cka_{name}") for name in ("test", "train"))
    return decided(above("cka_test", test, least), cka_train=train, threshold=least, kept=len(runs))


def _augmentation_first(runs: Results) -> Outcome:
    table = coefficients(runs)
    accuracies = table[: len(FACTORS), COLUMNS.index("accuracy")]
    place = FACTORS.index("augmentation")
    accuracy, cka = accuracies[place], _entry(table, "augmentation", "cka_train")
    if np.isnan(accuracy):  # only runs with, or only runs without it, were kept
        return outcome(None, accuracy=accuracy, cka_train=cka)
    others = np.nanmax(np.delete(accuracies, place))
    return decided(
        above("accuracy minus next factor", accuracy - others),
        above("accuracy minus cka_train", accuracy - cka),
        accuracy=accuracy,
        cka_train=cka,
    )


def _weak_factors(runs: Results) -> Outcome:
    table, least = coefficients(runs), _threshold(runs)
    skip, batch = (_entry(table, name, "accuracy") for name in ("skip", "batch_size"))
    return decided(
        inside("skip", skip, -least, least),
        inside("batch_size", batch, -least, least),
        threshold=least,
    )


def _average_better(runs: Results, examples: str) -> Outcome:
    """On training or test examples; max-pooling decides, other reducers are shown."""
    numbers = {}
    reducers = [r for r in _REDUCERS if r == "max" or f"target_test_{r}" in runs.runs[0].arrays]
    for reducer in reducers:
        table = coefficients(runs, reducer=reducer)
        average = _entry(table, f"average_cka_{examples}", "accuracy")
        numbers[f"average_{examples}_{reducer}"] = average
        numbers[f"last_{examples}"] = _entry(table, f"cka_{examples}", "accuracy")
    gain = numbers[f"average_{examples}_max"] - numbers[f"last_{examples}"]
    return decided(above("average minus last layer", gain), **numbers)


def _test_better(runs: Results) -> Outcome:
    table = coefficients(runs)
    test, train = (_entry(table, f"cka_{name}", "accuracy") for name in ("test", "train"))
    return decided(above("test minus train", test - train), cka_test=test, cka_train=train)


def _sets_agree(runs: Results) -> Outcome:
    r = _entry(coefficients(runs), "cka_train", "cka_test")
    debiased = _entry(coefficients(runs, DEBIASED), "cka_train", "cka_test")
    least, _ = fisher_interval(_PRINTED["cka_train.cka_test"], _PRINTED_RUNS)
    return decided(above("correlation", r, least, possible=CORRELATION), debiased=debiased)


_SETS = ("train", "test")
_PRINTED_RUNS = 36
_PRINTED = _entries(PUBLISHED)

CLAIMS = (
    grid_claim(
        "table1",
        "the whole table, row.column, with the number of kept runs and the least significant "
        "correlation at 5 %",
        _whole_table,
        scope="all",
        sizes=(),
        published={"kept": _PRINTED_RUNS, "threshold": 0.329, **_PRINTED},
    ),
    grid_claim(
        "table1-debiased",
        "rows of the table with debiased CKA instead of the paper's biased one (ours)",
        _debiased_table,
        scope="all",
        sizes=(),
    ),
    grid_claim(
        "table1-factors",
        "correlations among the factors, which the choice of kept runs unbalances (ours)",
        _factors,
        scope="all",
        sizes=(),
    ),
    grid_claim(
        "table1-momentum",
        "of the five factors momentum correlates most with last-layer CKA on both sets, "
        "significantly at 5 %",
        _momentum_first,
        sizes=LARGE,
        published={"cka_train": 0.936, "cka_test": 0.823},
    ),
    grid_claim(
        "table1-momentum-pooled",
        "over the runs of all seeds, momentum correlates with last-layer CKA on the test set, "
        "significantly at 5 %",
        _momentum_pooled,
        scope="all",
        published={"cka_test": 0.823, "cka_train": 0.936},
    ),
    grid_claim(
        "table1-augmentation",
        "of the five factors augmentation correlates most with test accuracy, and more than with "
        "last-layer CKA on the training set",
        _augmentation_first,
        sizes=LARGE,
        published={"accuracy": 0.806, "cka_train": 0.162},
    ),
    grid_claim(
        "table1-weak",
        "skip and batch size do not correlate with test accuracy at 5 %",
        _weak_factors,
        sizes=LARGE,
        published={"skip": -0.024, "batch_size": -0.247},
        fragile="large batches take fewer steps at equal epochs, so that short training makes them "
        "worse",
    ),
    *(
        grid_claim(
            f"table1-average-{examples}",
            f"on {name} examples, layer-averaged CKA correlates more with test accuracy than "
            "last-layer CKA",
            partial(_average_better, examples=examples),
            sizes=LARGE,
            published={
                f"average_{examples}_max": _PRINTED[f"average_cka_{examples}.accuracy"],
                f"last_{examples}": _PRINTED[f"cka_{examples}.accuracy"],
            },
            fragile="the outcome depends on how maps are reduced to vectors, which the paper does "
            "not say; max-pooling is judged, the others are shown",
        )
        for examples, name in (("train", "training"), ("test", "test"))
    ),
    grid_claim(
        "table1-test",
        "last-layer CKA on the test set correlates more with test accuracy than on the training "
        "set",
        _test_better,
        sizes=LARGE,
        published={"cka_test": 0.850, "cka_train": 0.528},
    ),
    grid_claim(
        "table1-sets",
        "last-layer CKA on training and test set correlate as printed: 0.87, or at least 0.76, the "
        "lower end of its 95 % interval over 36 runs",
        _sets_agree,
        published={"correlation": 0.870},
    ),
)
