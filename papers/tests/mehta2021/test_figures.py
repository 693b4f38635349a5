"""Claims of single figures on made-up runs, and Theorem 1 as an executable statement."""

from functools import cache

import numpy as np
import pytest

from theodolite_papers.ledger import Result, Results, Trial
from theodolite_papers.mehta2021 import fig3, fig5, figs1_2, figs4_12, figs8_9, measures, theorem1

SIGMAS = (0.001, 0.01, 0.1, 1.0, 10.0)


def holds(study, name, runs):
    claim = next(c for c in study.claims if c.id == f"{study.id}.{name}")
    return claim.check(runs).holds


@cache
def measured(name):
    study = {"theorem1": theorem1, "fig3": fig3}[name].STUDY
    found = study.measure(study.config_at("smoke"), Trial(0))
    return Results((Result(found.numbers, found.arrays, size="smoke"),))


@pytest.mark.parametrize(
    ("claim", "expected"),
    [
        ("simulation", True),
        ("one-sided", True),
        ("two-sided", True),
        ("corrected", True),
        ("absolute", False),  # the erratum
        ("orthogonal", True),
    ],
)
def test_theorem_1(claim, expected):
    assert holds(theorem1.STUDY, claim, measured("theorem1")) is expected


@pytest.mark.parametrize("claim", ["diversity", "stiffness", "confusion", "alignment"])
def test_two_vectors(claim):
    assert holds(fig3.STUDY, claim, measured("fig3"))


def sin_runs(**columns):
    numbers = {"chance": 0.1, "test_size": 797.0}
    for name, column in columns.items():
        numbers |= {f"{name}@{s:g}": float(v) for s, v in zip(SIGMAS, column, strict=True)}
    arrays = {"sigma": np.array(SIGMAS, dtype=np.float32)}
    return Results((Result(numbers, arrays, {}, {"data": "digits"}, 1, "lite"),))


@pytest.mark.parametrize(
    ("hidden", "expected"), [([0.4, 0.3, 0.02, 0.01, 0], True), ([0, 0.01, 0.02, 0.3, 0.4], False)]
)
def test_accuracy_follows_alignment(hidden, expected):
    runs = sin_runs(hidden=hidden, best_test=[0.97, 0.96, 0.5, 0.12, 0.1])
    assert holds(figs1_2.STUDY, "follows", runs) is expected


@pytest.mark.parametrize(("smallest", "expected"), [(0.9, True), (0.99, False)])
def test_sweet_spot(smallest, expected):
    runs = sin_runs(
        representation_end=[0.7, 0.6, 0.1, 0, 0], best_test=[smallest, 0.95, 0.5, 0.1, 0.1]
    )
    assert holds(figs1_2.STUDY, "sweet-spot", runs) is expected


@pytest.mark.parametrize(("last", "expected"), [(1e-5, True), (5e-3, False)])
def test_lazier_by_a_decade(last, expected):
    norms = [1.0, 0.1, 1e-2, 1e-3, 1e-4]
    runs = sin_runs(relative_norm_start=[*norms[:3], 1e-3, 10 * last], relative_norm=norms)
    assert holds(figs1_2.STUDY, "lazy", runs) is expected


@pytest.mark.parametrize(
    ("diversity", "expected"), [([1, 1.5, 1.2, 1.3, 1.1], True), ([1, 1.1, 1.2, 1.3, 1.4], False)]
)
def test_diversity_that_does_not_follow(diversity, expected):
    runs = sin_runs(diversity_end=diversity, hidden=[0.5, 0.4, 0.01, 0.001, -0.001])
    assert holds(figs1_2.STUDY, "diversity", runs) is expected


def architectures(**alignments):
    numbers = {"chance": 0.1, "test_size": 100.0, "train": 1.0, "final_test": 0.1}
    return Results(
        tuple(
            Result(
                numbers | {"best_test": value, "alignment": value, "contrast": value},
                point={"case": case},
                size="lite",
            )
            for case, value in alignments.items()
        )
    )


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"mlp": 0.3, "convnet": 0.5, "resnet50": 0.6, "densenet121": 0.7}, True),
        ({"mlp": 0.3, "convnet": 0.5, "resnet50": 0.4, "densenet121": 0.7}, False),
        ({"mlp": 0.6, "small_convnet": 0.5}, False),
        ({"mlp": 0.6}, None),
    ],
)
def test_order_of_architectures(values, expected):
    assert holds(fig5.STUDY, "alignment", architectures(**values)) is expected


def over_scales(activation, accuracy, alignment):
    sigma = np.array([0.01, 1.0])
    numbers = {f"best_test@{s:g}": a for s, a in zip(sigma, accuracy, strict=True)}
    numbers |= {f"representation_end@{s:g}": a for s, a in zip(sigma, alignment, strict=True)}
    return Result(numbers, {"sigma": sigma}, point={"activation": activation})


@pytest.mark.parametrize(
    ("accuracy", "alignment", "expected"),
    [((0.5, 0.3), (0.4, 0.3), True), ((0.5, 0.1), (0.4, 0.3), False),
     ((0.5, 0.3), (0.4, 0.0), False)],
    ids=["smaller", "accuracy as much", "alignment as much"],
)  # fmt: skip
def test_relu_falls_less_than_sin(accuracy, alignment, expected):
    relu = over_scales("relu", accuracy, alignment)
    sin = over_scales("sin", (0.5, 0.1), (0.2, 0.0))
    assert holds(figs4_12.STUDY, "smaller", Results((relu, sin))) is expected
    assert holds(figs4_12.STUDY, "smaller", Results((relu,))) is None


def test_claims_about_relu_do_not_read_its_control():
    falling, flat = (over_scales("relu", (0.5, last), (0.4, 0.3)) for last in (0.3, 0.5))
    sin = over_scales("sin", (0.5, 0.1), (0.2, 0.0))
    assert holds(figs4_12.STUDY, "test", Results((sin, falling))) is True
    assert holds(figs4_12.STUDY, "test", Results((sin, flat))) is False
    assert holds(figs4_12.STUDY, "test", Results((sin,))) is None


@pytest.mark.parametrize(
    ("case", "steps"), [("mlp", 500), ("resnet50", 50), ("densenet121", 50), ("shuffled", 70)]
)
def test_deep_nets_have_a_tenth_of_the_steps(case, steps):
    config = fig5.Architectures(case, steps=500, label_steps=70)
    assert fig5.total_steps(config) == steps


def test_a_missing_case_leaves_the_other_curves():
    arrays = {"step": np.arange(3)}
    arrays |= {key: np.ones(3) for key in ("test", "representation", "representation_contrast")}
    runs = Results((Result({}, arrays, point={"case": "true"}),))
    panels = fig5.STUDY.draw(runs)
    assert [len(panel.marks) for panel in panels] == [1, 1, 1]


@pytest.mark.parametrize("case", ["true", "mlp"])
def test_labels_are_called_by_their_names(case):
    arrays = {"step": np.arange(3)}
    arrays |= {key: np.ones(3) for key in ("test", "representation", "representation_contrast")}
    runs = Results(tuple(Result({}, arrays, point={"case": c}) for c in (case, "shuffled")))
    labels = fig5.STUDY.draw(runs)[-1]
    assert [line.name for line in labels.marks] == ["true labels", "shuffled labels"]


@pytest.mark.parametrize(
    ("learning", "wrong"), [(0.02, 0), (0.005, 2), (np.nan, 2)], ids=["above", "below", "undefined"]
)
def test_contrast_that_is_no_answer_counts_as_wrong(learning, wrong):
    contrast = np.array([learning, learning, 0.0, 0.0, 0.0])[:, None]
    arrays = {"sigma": np.array(SIGMAS), "hidden_contrast": contrast}
    runs = Results((Result({}, arrays, point={"data": "cifar8"}),))
    assert figs1_2.extreme_errors(runs) == (wrong, 4)


@pytest.mark.parametrize(("train", "expected"), [(1.0, True), (0.5, None)])
def test_rates_that_do_not_train_decide_nothing(train, expected):
    numbers = {"chance": 0.1, "train_sigma0.01@1": train, "test_sigma0.01@1": 0.9}
    runs = Results((Result(numbers, {"rate": np.array([1.0])}, size="lite"),))
    assert holds(figs8_9.STUDY, "small", runs) is expected


@pytest.mark.parametrize(("true", "expected"), [(0.5, True), (0.2, False)])
def test_random_labels_at_chance(true, expected):
    runs = architectures(true=true, shuffled=0.1)
    assert holds(fig5.STUDY, "labels", runs) is expected
    assert holds(fig5.STUDY, "labels-alignment", runs)


@pytest.mark.parametrize(
    ("train", "expected"), [([1, 1, 1, 1, 0.5], True), ([1, 1, 0.5, 0.5, 0.5], False)]
)
def test_range_of_first_rates(train, expected):
    rates = np.array([1e-3, 1e-2, 1e-1, 1e0, 1e1])
    numbers = {"chance": 0.1, "test_size": 797.0}
    for rate, share in zip(rates, train, strict=True):
        numbers |= {f"train_sigma1@{rate:g}": share, f"test_sigma1@{rate:g}": 0.1}
    runs = Results((Result(numbers, {"rate": rates}, size="lite"),))
    assert holds(figs8_9.STUDY, "range", runs) is expected
    assert holds(figs8_9.STUDY, "large", runs)


def compared(seed, alignment):
    sigma = np.array([0.01, 0.1, 1.0])
    columns = dict.fromkeys(("hidden_contrast", "diversity", "stiffness", "confusion"), (1, 3, 2))
    columns |= {"best_test": (0.9, 0.5, 0.1), "hidden": alignment}
    numbers = {
        f"{name}@{s:g}": float(v)
        for name, column in columns.items()
        for s, v in zip(sigma, column, strict=True)
    }
    return Result(numbers, {"sigma": sigma}, point={"family": "sin"}, seed=seed)


@pytest.mark.parametrize(
    ("claim", "alignments", "expected"),
    [
        ("alignment", [(3, 2, 1), (3, 2, 1)], True),
        ("alignment", [(3, 2, 1), (1, 2, 3)], False),
        ("alignment", [(3, 2, 1)], None),
        ("best", [(3, 2, 1)], True),
        ("best", [(1, 3, 2)], False),
    ],
    ids=["follows", "one seed against", "no interval", "best of all", "no better"],
)
def test_measures_compared(claim, alignments, expected):
    runs = Results(tuple(compared(seed, values) for seed, values in enumerate(alignments)))
    assert holds(measures.STUDY, claim, runs) is expected
