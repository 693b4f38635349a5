"""Predictors out of the tables, and how they are judged, on made-up networks."""

import numpy as np
import pytest

from papers.tests.alignment_zoo.made import made_zoo
from theodolite_papers.alignment_zoo.judging import (
    CONTEXT,
    STATISTICS,
    Sample,
    area_table,
    context,
    rank_table,
)
from theodolite_papers.alignment_zoo.predictors import Predictor, Predictors
from theodolite_papers.alignment_zoo.tables import Zoo


@pytest.fixture(scope="module")
def zoo():
    return made_zoo(groups=8).of_half("judged")


@pytest.fixture(scope="module")
def sample(zoo):
    predictors = [
        Predictor("cka_target", "mean", "final", rises=False),
        Predictor("margin", "whole", "final", rises=False, baseline=True),
    ]
    outcome = zoo.networks["gap"].to_numpy(float)
    columns = [context(zoo.networks), outcome[:, None], Predictors(zoo).values(predictors)]
    return Sample((*CONTEXT, "outcome", "cka", "margin"), np.concatenate(columns, axis=1))


@pytest.mark.parametrize(
    ("place", "layers"), [("first", [0]), ("hidden", [1]), ("output", [2]), ("mean", [0, 1, 2])]
)
def test_a_place_is_a_layer_or_their_mean(zoo, place, layers):
    (value,) = Predictors(zoo).values([Predictor("cka_target", place, "early", rises=False)])[5]
    name = zoo.networks["network"].iloc[5]
    rows = zoo.measurements
    rows = rows[(rows["network"] == name) & (rows["moment"] == "early")]
    rows = rows[(rows["measure"] == "cka_target") & rows["layer"].isin(layers)]
    assert value == pytest.approx(-rows["value"].mean())


def test_the_excess_over_chance_is_a_number_of_its_own(zoo):
    rows = zoo.measurements.assign(null_mean=np.nan)
    rows.loc[rows["measure"] == "cka_target", "null_mean"] = 0.25
    found = Predictors(Zoo(zoo.networks, rows))
    plain, above = found.values([
        Predictor("cka_target", "first", "final"),
        Predictor("cka_target above chance", "first", "final"),
    ]).T  # fmt: skip
    np.testing.assert_allclose(above, plain - 0.25)
    assert ("margin above chance", "whole") not in found.at("final")


def test_a_measure_that_was_not_taken_is_undefined(zoo):
    assert np.isnan(Predictors(zoo).values([Predictor("none", "first", "final")])).all()


def test_networks_of_a_star_differ_in_one_factor(sample, zoo):
    names = zoo.networks["changed"].to_numpy()
    assert {factor: len(sets) for factor, sets in sample.stars.items()} == dict.fromkeys(
        sample.stars, 8
    )
    for factor, sets in sample.stars.items():
        for rows in sets:
            assert set(names[rows]) == {"base", factor}
            assert len(rows) == (3 if factor == "noise" else 2)


def test_environments_are_factors_data_sets_and_architectures(sample):
    pairs = {name: len(found) for name, found in sample.environments.items()}
    assert pairs["depth"] == 8
    assert pairs["noise"] == 8 * 3
    assert pairs["data text"] == 2 * (10 + 3)
    assert pairs["family mlp"] == 2 * (10 + 3)


def test_a_good_predictor_passes_where_a_follower_of_noise_does_not(sample, zoo):
    """cka is the gap with some error; the margin knows the label noise alone."""
    table = rank_table(sample, ["cka", "margin"], zoo.networks)
    assert table.loc["cka", "tau"] > 0.8
    assert table.loc["cka", "low"] < table.loc["cka", "tau"] < table.loc["cka", "high"]
    assert table.loc["cka", "granulated:noise"] > 0.7
    assert table.loc["cka", "granulated"] > 0.2 > abs(table.loc["margin", "granulated"])
    assert table.loc["cka", "information"] > 3 * table.loc["margin", "information"]
    assert table.loc["cka", "worst"] < table.loc["margin", "worst"]
    assert table.loc["margin", "worst_in"] in sample.environments


def test_areas_are_judged_within_data_sets_too(sample):
    noisy = Sample(sample.names, sample.table.copy())
    noisy.table[:, len(CONTEXT)] = noisy["noise"] > 0
    table = area_table(noisy, ["cka", "margin"])
    assert table.loc["cka", "area"] > 0.95
    assert 0.5 < table.loc["margin", "area"] < 0.95
    assert table.loc["cka", "worst"] <= table.loc["cka", "area"]
    assert STATISTICS["area_within_data"](noisy, "cka") == table.loc["cka", "within_data"]


def test_regret_is_what_the_choice_within_a_group_loses():
    names = (*CONTEXT, "outcome", "score")
    table = np.zeros((4, len(names)))
    table[:, 0] = [0, 0, 1, 1]
    table[:, -2] = [0.9, 0.5, 0.4, 0.8]
    table[:, -1] = [1.0, 2.0, 1.0, 2.0]
    assert STATISTICS["regret"](Sample(names, table), "score") == pytest.approx((0.4 + 0.0) / 2)
