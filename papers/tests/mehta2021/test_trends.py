"""The standard claims on made-up runs, on both sides of their thresholds."""

import numpy as np
import pytest

from theodolite_papers.ledger import Outcome, Result, Results, outcome
from theodolite_papers.mehta2021._families import (
    accuracy_claim,
    accuracy_falls,
    alignment_falls,
    fits,
    memorization_claim,
    memorizes,
    never_fits,
    on_each,
    on_each_set,
    representation_claim,
    standard_claims,
    values,
)

SIGMAS = (0.001, 0.01, 0.1, 1.0)


def results(size="lite", point=None, **columns):
    numbers = {"chance": 0.1, "test_size": 1000.0}
    for name, column in columns.items():
        numbers |= {f"{name}@{s:g}": float(v) for s, v in zip(SIGMAS, column, strict=True)}
    sigma = np.array(SIGMAS, dtype=np.float32)
    return Results((Result(numbers, {"sigma": sigma}, {}, point or {}, 1, size),))


def test_values_come_in_order_of_sigma():
    (run,) = results(train=[0.1, 0.2, 0.3, 0.4])
    np.testing.assert_array_equal(values(run, "train"), [0.1, 0.2, 0.3, 0.4])


@pytest.mark.parametrize(
    ("accuracy", "holds"),
    [
        ([0.8, 0.9, 0.5, 0.4], True),
        ([0.8, 0.9, 0.5, 0.519], True),  # a rise within the noise
        ([0.8, 0.9, 0.5, 0.53], False),
        ([0.8, 0.9, 0.88, 0.71], False),  # falls too little
        ([0.9, 0.8, 0.5, 0.4], True),
    ],
)
def test_accuracy_falls(accuracy, holds):
    assert accuracy_falls(0.2)(results(best_test=accuracy)).holds is holds


@pytest.mark.parametrize(
    ("size", "share", "holds"),
    [("lite", 0.99, True), ("lite", 0.98, False), ("reduced", 0.99, False)],
)
def test_fits(size, share, holds):
    assert fits(results(size, train=[1, 1, 1, share])).holds is holds


def test_never_fits():
    assert never_fits(results(train=[0.5, 0.6, 0.9, 0.9])).holds
    assert not never_fits(results(train=[0.5, 0.6, 0.9, 1.0])).holds


@pytest.mark.parametrize(
    ("train", "test", "holds"), [(1.0, 0.12, True), (1.0, 0.14, False), (0.9, 0.1, False)]
)
def test_memorizes_at_the_largest_sigma(train, test, holds):
    found = memorizes()(results(train=[1, 1, 1, train], best_test=[0.9, 0.9, 0.9, test]))
    assert found.holds is holds


def test_memorizes_from_a_sigma_on():
    runs = results(train=[1, 1, 1, 1], best_test=[0.9, 0.9, 0.5, 0.1])
    assert memorizes(1.0)(runs).holds
    assert not memorizes(0.1)(runs).holds


@pytest.mark.parametrize(
    ("found", "holds"),
    [
        ([0.5, 0.4, 0.3, 0.2], True),
        ([0.5, 0.4, 0.39, 0.36], True),  # the paper names no margin
        ([0.1, 0.4, 0.2, 0.38], False),  # ranks
        ([0.5, 0.2, 0.1, 0.3], False),  # not lower at the largest
    ],
)
def test_alignment_falls(found, holds):
    runs = results(hidden=found, best_test=[0.3, 0.4, 0.2, 0.1])
    assert alignment_falls("hidden")(runs).holds is holds


def test_on_each_needs_all_data_sets():
    def check(runs) -> Outcome:
        return outcome(runs.first["train@1"] == 1, train=runs.first["train@1"])

    good = next(iter(results(point={"data": "digits"}, train=[1, 1, 1, 1])))
    bad = next(iter(results(point={"data": "cifar8"}, train=[1, 1, 1, 0])))
    both = Results((good, bad))
    assert not on_each(check)(both).holds
    assert on_each(check, "digits")(both).holds
    assert on_each(check)(both).numbers == {"digits_train": 1.0, "cifar8_train": 0.0}


def test_standard_claims_are_those_asked_for():
    claims = standard_claims("mehta2021.x", 0.1, ("fit", "logit"))
    assert [claim.id for claim in claims] == [f"mehta2021.x.{n}" for n in ("test", "fit", "logit")]


def test_representations_fall():
    runs = results(best_test=[0.9, 0.8, 0.5, 0.4], representation_end=[0.4, 0.39, 0.35, 0.3])
    assert representation_claim("mehta2021.x").check(runs).holds


@pytest.mark.parametrize(("since", "where"), [(None, "the largest sigma"), (1.0, "sigma 1 and")])
def test_memorization_says_where(since, where):
    assert where in memorization_claim("mehta2021.x", since).text


def test_a_claim_on_each_set_fails_with_one_of_them():
    claim = on_each_set(accuracy_claim("mehta2021.x", 0.2))
    falling = results(point={"data": "a"}, best_test=[0.8, 0.9, 0.5, 0.4])
    flat = results(point={"data": "b"}, best_test=[0.8, 0.8, 0.8, 0.8])
    assert claim.scope == "seed"
    assert claim.check(falling).holds
    assert not claim.check(Results((*falling, *flat))).holds
