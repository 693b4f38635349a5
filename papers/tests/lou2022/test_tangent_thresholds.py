"""Claims about single numbers: each holds on one side of its threshold and fails on the other."""

import numpy as np
import pytest

from papers.tests.lou2022.made_results import depth_run, holds, made_run
from theodolite_papers.ledger import Result

PI = 4.5 * np.pi**2


def run(**numbers):
    return (made_run(numbers),)


def curve(name, values, **numbers):
    return (made_run(numbers, {name: np.asarray(values)}),)


def nets(key, blue, orange, green):
    pairs = {"blue": blue, "orange": orange, "green": green}
    return tuple(made_run({key: value}, net=net) for net, value in pairs.items())


def rates(study, key, *values):
    names = ("adam 0.1", "adam 0.2", "adam 0.3")
    axis = "training" if study == "fig13" else "learning_rate"
    points = names if study == "fig13" else (0.1, 0.2, 0.3)
    return tuple(
        made_run({key: value, "converged": 1.0, "train_loss": 0.1}, **{axis: point})
        for point, value in zip(points, values, strict=True)
    )


def batches(key, *values):
    pairs = zip((32, 128, 512), values, strict=True)
    return tuple(
        made_run({key: v, "converged": 1.0, "train_loss": 0.1}, batch_size=size)
        for size, v in pairs
    )


def gaps(large, small):
    return tuple(
        made_run(
            {"converged": 1.0, "train_loss": 0.1, "loss_gap": gap, "accuracy_gap": gap},
            learning_rate=rate,
        )
        for rate, gap in ((0.001, small), (0.003, small), (0.01, large), (0.02, large))
    )


def panels(peaks, accuracies):
    return tuple(
        depth_run(depth, factor * depth, panel=panel)
        if accuracies is None
        else made_run({"test_accuracy": accuracies[panel]}, panel=panel)
        for panel, factor in peaks.items()
        for depth in (10, 20)
    )


def layered(near):
    numbers = {"peak": 9.0, "layers": 10.0, "near_peak": near}
    return (
        made_run(numbers, network="layer-wise 32"),
        made_run({**numbers, "near_peak": 1.0}, network="end to end"),
    )


def place(share):
    return (made_run({"converged": 1.0, "peak": 100 * share, "layers": 100.0}, learning_rate=0.1),)


def scales(large, small):
    pairs = ((1.0, large), (0.3, small))
    return tuple(made_run({"peak": peak}, noise_scale=scale) for scale, peak in pairs)


def norms(*middles):
    return tuple(made_run({"first_norm": 1, "middle_norm": m, "last_norm": 1}) for m in middles)


def eigenvalues(first, largest, last):
    values = (("first", first), ("largest", largest), ("last", last))
    return run(**{f"{name}_eigenvalue": value for name, value in values})


def tangents(name, value):
    return run(**{f"error {key}": value if key == name else 0.0 for key in ERRORS})


ERRORS = ("relu", "leaky relu", "two layers", "convolutions", "biases", "gradient", "step")
BENT = np.concatenate([[1.0], np.full(49, 1e-3)])
CURVES = {"after": np.ones(20), "final": np.ones(10)}
BOTH = {
    "fig1.inside": (
        (made_run({"peak": 7.0, "prominence": 0.1}, CURVES),),
        (made_run({"peak": 20.0, "prominence": 0.1}, CURVES),),
    ),
    "fig1.grown": (run(height=0.31, initial=0.1), run(height=0.29, initial=0.1)),
    "fig2-7.inside": (
        (made_run({"peak": 2.0, "prominence": 0.1}, CURVES),),
        (made_run({"peak": 1.0, "prominence": 0.1}, CURVES),),
    ),
    "fig2-7.early": (run(early=0.1, height=0.2), run(early=0.09, height=0.2)),
    "fig2-7.last": (run(last_is_low=1.0), run(last_is_low=0.0)),
    "fig2-7.first": (run(first_is_low=1.0), run(first_is_low=0.0)),
    "fig3.slope-small": (
        tuple(depth_run(d, d) for d in (6, 10, 20)),
        tuple(depth_run(d, d**1.4 / 4) for d in (6, 10, 20)),
    ),
    "fig4.place": (place(0.4), place(0.6)),
    "fig5.early": (run(cosine=0.91, flips=3), run(cosine=0.89, flips=3)),
    "fig5.small-head": (
        run(small_head_cosine=0.96, small_head_flips=1),
        run(small_head_cosine=0.94, small_head_flips=1),
    ),
    "fig5.no-flips": (
        run(still_cosine=0.5, still_limit=0.51),
        run(still_cosine=0.5, still_limit=0.55),
    ),
    "fig5.middle": (norms(2, 2, 0), norms(2, 0, 0)),
    "fig5.sharpest": (eigenvalues(2, 15, 6), eigenvalues(2, 5, 6)),
    "fig6.close": (run(initial=0.97, first_epoch=0.96), run(initial=0.97, first_epoch=0.94)),
    "fig9-10.rises": (
        curve("curves", [[0.1], [0.3]], early=0.2, height=0.3),
        curve("curves", [[0.15], [0.3]], early=0.2, height=0.3),
    ),
    "fig12.accuracy-gap": tuple(rates("fig12", "accuracy_gap", *v) for v in ((3, 2, 1), (1, 2, 3))),
    "fig13.accuracy-gap": tuple(rates("fig13", "accuracy_gap", *v) for v in ((3, 2, 1), (1, 2, 3))),
    "fig14.loss-gap": (batches("loss_gap", 1, 2, 3), batches("loss_gap", 3, 2, 1)),
    "fig14.accuracy-gap": (batches("accuracy_gap", 1, 2, 3), batches("accuracy_gap", 3, 2, 1)),
    "fig14.height": (batches("height", 3, 2, 1), batches("height", 1, 2, 3)),
    "fig15.large": (gaps(1.0, 2.0), gaps(2.0, 1.0)),
    "fig15.place": (place(0.7), place(0.6)),
    "fig16-17.plateau": (layered(3.0), layered(2.0)),
    "fig18.hidden": (run(hidden_change=0.06), run(hidden_change=0.04)),
    "fig18.constant": (run(last_change=1e-7), run(last_change=1e-5)),
    "fig18.centre": (scales(2.0, 4.0), scales(2.0, 2.0)),
    "fig19-23.decay-at-rate": (nets("decay", 0, -2, -1), nets("decay", 0, -1, -2)),
    "fig19-23.exponential": (
        curve("spectra", [np.geomspace(1, 1e-3, 50)]),
        curve("spectra", [BENT]),
    ),
    "fig19-23.correlation": (
        nets("mean_correlation", 3, 2, 1),
        nets("mean_correlation", 2, 3, 1),
    ),
    "fig19-23.rank": (nets("mean_rank", 1, 1, 2), nets("mean_rank", 9, 1, 2)),
    "fig19-23.rank-at-rate": tuple(
        (*nets("mean_rank", 9, 3, 3 + lead), *nets("mean_rank", 9, 3, 3 + 2 * lead))
        for lead in (1.0, -1.0)
    ),
    "fig19-23.fisher-flatter": tuple(
        (made_run({}, {"fisher_rank": np.asarray([1, x]), "rank": np.asarray([1, 3.0])}),)
        for x in (2.0, 4.0)
    ),
    "fig19-23.fisher-order": (
        nets("mean_fisher_rank", 1, 2, 3),
        nets("mean_fisher_rank", 1, 3, 2),
    ),
    "fig19-23.fisher-correlation": tuple(
        curve("fisher_correlation", [0.1, top], mean_fisher_correlation=0.1) for top in (0.14, 0.16)
    ),
    "approximations.labels": (
        curve("correlations", [0.9, 0.9995]),
        curve("correlations", [0.9, 0.998]),
    ),
    "approximations.features": (curve("cosines", [0.2, 0.995]), curve("cosines", [0.2, 0.98])),
    "approximations.two-layers": (run(**{"error 2": 1e-9}), run(**{"error 2": 1e-3})),
    "approximations.first-order": (run(**{"order 3": 1.05}), run(**{"order 3": 0.5})),
    "approximations.flips": (
        run(large_error=0.7, large_flips=9),
        run(large_error=0.2, large_flips=9),
    ),
    "theorem-a.identity": (tangents("relu", 1e-12), tangents("convolutions", 1e-6)),
    "theorem-a.biases": (tangents("biases", 1e-12), tangents("biases", 1e-6)),
    "theorem-a.descent": (tangents("step", 1e-12), tangents("step", 1e-6)),
    "theorem-a.blocks": (run(**{"error blocks": 0.0}), run(**{"error blocks": 0.1})),
    "theorem-a.domain": (run(refused=1.0), run(refused=0.0)),
    "corollary1.great": (run(great_slope=0.61, over_law=1), run(great_slope=0.65, over_law=1)),
    "corollary1.practical": (run(**{"slope 0": 0.8}), run(**{"slope 0": 0.6})),
    "corollary1.law-at-practical": (run(**{"slope 0": 0.6}), run(**{"slope 0": 0.8})),
    "corollary1.finite": (run(finite_error=0.3), run(finite_error=0.4)),
    "theorem1.rate": (run(**{"exponent 0": -2.01}), run(**{"exponent 0": -1.9})),
    "theorem1.constant": (run(**{"constant 0": 0.995 * PI}), run(**{"constant 0": 1.001 * PI})),
    "theorem1.finite": (run(finite_error=0.1), run(finite_error=0.2)),
    "theorem1.finite-rate": (run(finite_slope=0.15), run(finite_slope=0.25)),
    "theorem2.fraction": (
        run(fraction_exponent=1.1, fraction_ratio=1),
        run(fraction_exponent=0.8, fraction_ratio=1),
    ),
    "theorem2.early": (
        run(early_exponent=-2.95, early_constant=1),
        run(early_exponent=-2.8, early_constant=1),
    ),
    "theorem2.finite": (run(finite_error=0.1), run(finite_error=0.2)),
    "theorem2.rising": (run(finite_step=-0.04), run(finite_step=-0.06)),
}
STOPS = {"stops": [0, 11], "steps": [0.005, 0.05]}


@pytest.mark.parametrize(
    ("name", "key", "good", "bad"),
    [
        ("gofe", "gofe_correlation", 0.91, 0.89),
        ("moments", "moments_correlation", 0.51, 0.49),
        ("sign", "moments_sign", 0.75, 0.74),
        ("third", "third_over_second", 0.1, 0.11),
        ("theta", "theta_error", 1e-7, 1e-5),
        ("second", "second_term", 0.07, 0.08),
    ],
)
def test_every_stop_counts(name, key, good, bad):
    def ahead(last):
        numbers = {f"{stop}_{size:g}_{key}": good for stop in (0, 11) for size in (0.005, 0.05)}
        one = Result(numbers | {f"11_0.005_{key}": last}, config=STOPS)
        return holds(f"lou2022.appendix-d.{name}", one)

    assert ahead(good) is True
    assert ahead(bad) is False


UNDECIDED = {
    "fig5.no-flips": run(still_cosine=np.nan, still_limit=np.nan),
    "approximations.two-layers": run(**{"error 2": np.nan}),
    "approximations.first-order": run(**{"order 3": np.nan}),
    "corollary1.finite": run(finite_error=np.nan),
    "fig18.centre": scales(2.0, 4.0)[:1],
}


@pytest.mark.parametrize("name", BOTH)
def test_claim_holds_and_fails(name):
    good, bad = BOTH[name]
    assert holds(f"lou2022.{name}", *good) is True
    assert holds(f"lou2022.{name}", *bad) is False


@pytest.mark.parametrize("name", UNDECIDED)
def test_what_was_not_measured_decides_nothing(name):
    assert holds(f"lou2022.{name}", *UNDECIDED[name]) is None
