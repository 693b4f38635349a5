"""Chance levels, differences, averages, one-versus-one tasks, Picard ratios: spec 1."""

from functools import partial
from itertools import combinations, permutations

import numpy as np
import pytest
import torch

from tests.measures.absolute import alignment_area, alignment_curve
from tests.tolerances import assert_close
from theodolite.linalg import gram_sums, projections_from_gram
from theodolite.measures.representation import (
    AlignmentCurve,
    curve_from_projections,
    label_projections,
    prepare_features,
)
from theodolite_papers.imani2022.formulas import curves
from theodolite_papers.imani2022.formulas.curves import (
    curve_average,
    curve_difference,
    dominance_fraction,
    one_vs_one_curve,
    one_vs_one_difference,
    picard_ratios,
)

chance_curve = partial(curves.chance_curve, rows="none", scale="absolute")


def normal(generator, *shape):
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def curve_of(*values):
    grid = torch.arange(len(values), dtype=torch.float64)
    return AlignmentCurve(grid, torch.tensor(values, dtype=torch.float64), "absolute", "svd")


@pytest.mark.spec("1.R23")
@pytest.mark.parametrize("columns", [1, 2], ids=str)
def test_chance_is_the_mean_over_all_permutations(columns, generator):
    features, y = normal(generator, 6, 3), normal(generator, 6, columns) + 0.5
    grid = torch.tensor([0.0, 0.1, 1.0, 2.0, 3.0], dtype=torch.float64)
    together = torch.stack([y[list(order)] for order in permutations(range(6))])
    p = label_projections(features, together.permute(1, 0, 2).reshape(6, -1))
    mass = p.mass.sum(1) / len(together)
    expected = [float(mass[p.singular_values >= level].sum()) for level in grid[1:]]
    actual = chance_curve(features, y, grid).values
    assert_close(actual, [float(y.square().sum()), *expected], scale=10.0)


@pytest.mark.spec("1.R23")
def test_chance_of_balanced_signs_is_about_one_per_direction(generator):
    features = normal(generator, 40, 6)
    y = torch.tensor([1.0, -1.0] * 20, dtype=torch.float64)
    p = label_projections(features, torch.ones(40, dtype=torch.float64))
    expected = ((40 - p.mass.squeeze(1)) / 39).cumsum(0)
    just_below = p.singular_values * (1 - 1e-9)
    assert_close(chance_curve(features, y, just_below).values, expected, scale=10.0)


def test_chance_in_shares_divides_by_the_label_mass(generator):
    features, y = normal(generator, 9, 3), normal(generator, 9)
    grid = torch.tensor([0.0, 0.2, 0.4], dtype=torch.float64)
    shares = chance_curve(features, y, grid, scale="normalized").values
    assert_close(shares, chance_curve(features, y, 3 * grid).values / (y @ y))


@pytest.mark.spec("1.R25")
def test_mean_and_standard_error_of_two_curves():
    average = curve_average([curve_of(1.0, 2.0), curve_of(3.0, 2.0)])
    assert_close(average.mean, [2, 2])
    assert_close(average.standard_error, [1, 0])
    alone = curve_average([curve_of(1.0, 2.0)])
    assert_close(alone.mean, [1, 2])
    assert alone.standard_error.isnan().all()


@pytest.mark.spec("1.R26")
def test_difference_vanishes_at_both_ends_and_integrates_to_the_areas(generator):
    first, second, y = normal(generator, 12, 4), normal(generator, 12, 7), normal(generator, 12)
    top = 1.01 * max(torch.linalg.matrix_norm(m, 2).item() for m in (first, second))
    grid = torch.linspace(0, top, 20_001, dtype=torch.float64)
    curves = [alignment_curve(features, y, grid) for features in (first, second)]
    difference = curve_difference(*curves)
    assert_close(difference.values[[0, -1]], [0, 0], scale=10.0)
    areas = alignment_area(first, y) - alignment_area(second, y)
    integral = torch.trapezoid(difference.values, grid)
    assert float(integral) == pytest.approx(float(areas), abs=1e-3 * float(y @ y))


def test_dominance_counts_grid_points():
    high, low = curve_of(3.0, 2.0, 1.0, 0.0), curve_of(3.0, 2.1, 0.5, 0.5)
    assert dominance_fraction(high, low) == 0.5
    assert dominance_fraction(high, low, slack=0.2) == 0.75
    assert dominance_fraction(curve_of(float("nan")), curve_of(1.0)).isnan()


def test_curves_answer_in_numpy_when_asked_in_numpy():
    rng = np.random.default_rng(0)
    features, y = rng.standard_normal((6, 3)), rng.standard_normal(6)
    curves = [alignment_curve(features, y), alignment_curve(2 * features, y)]
    assert isinstance(curve_difference(*curves).values, np.ndarray)
    assert isinstance(curve_average(curves).mean, np.ndarray)


def test_one_vs_one_averages_every_pair_with_the_same_rows(generator):
    labels = torch.tensor([0, 0, 0, 1, 1, 3, 3, 3, 3])  # unequal sizes, class 2 is empty
    first = prepare_features(normal(generator, 9, 3)).features
    second = prepare_features(normal(generator, 9, 5)).features
    grid = torch.tensor([0.0, 0.2, 0.5], dtype=torch.float64)
    both = [one_vs_one_curve(features, labels, grid) for features in (first, second)]
    difference = one_vs_one_difference(first, second, labels, grid)
    assert difference.curves.shape == (3, 3)
    assert_close(difference.curves, both[0].curves - both[1].curves)
    assert_close(difference.standard_error, difference.curves.std(0) / 3**0.5)
    assert_close(difference.mean[0], 0)


def test_one_vs_one_in_the_papers_absolute_scale(generator):
    labels = torch.tensor([0, 0, 1, 1])
    features = normal(generator, 4, 3)
    grid = torch.tensor([0.0, 0.5], dtype=torch.float64)
    average = one_vs_one_curve(features, labels, grid, scale="absolute")
    signs = torch.tensor([1.0, 1.0, -1.0, -1.0], dtype=torch.float64)
    assert_close(average.mean, alignment_curve(features, signs, grid).values)


@pytest.mark.spec("1.R56")
def test_sums_of_classes_give_the_curve_of_every_pair(generator):
    features, labels = normal(generator, 60, 5), torch.arange(60) % 3
    grid = torch.linspace(0.05, 1.5, 9, dtype=torch.float64)
    sums = [gram_sums(features[labels == c], torch.ones(20)) for c in range(3)]
    found = [
        curve_from_projections(
            projections_from_gram(a.gram + b.gram, a.cross - b.cross, a.energy + b.energy, 40), grid
        ).values
        for a, b in combinations(sums, 2)
    ]
    assert_close(torch.stack(found), one_vs_one_curve(features, labels, grid).curves)


def test_one_class_has_no_pairs(generator):
    average = one_vs_one_curve(normal(generator, 4, 2), torch.zeros(4, dtype=torch.int64))
    assert average.mean.isnan().all()
    assert len(average.curves) == 0


@pytest.mark.spec("1.R44")
@pytest.mark.parametrize("shape", [(12, 4), (4, 9)], ids=str)
def test_picard_ratios_are_the_weights_of_least_squares(shape, generator):
    features, y = normal(generator, *shape), normal(generator, shape[0], 2)
    weights = torch.linalg.pinv(features) @ y
    right = torch.linalg.svd(features, full_matrices=False).Vh
    assert_close(picard_ratios(features, y), (right @ weights).abs(), scale=10.0)
    assert_close(picard_ratios(features, y[:, 0]), (right @ weights)[:, 0].abs(), scale=10.0)


def test_picard_ratios_are_nan_where_the_singular_value_is_zero(generator):
    features = normal(generator, 8, 2) @ normal(generator, 2, 4)
    ratios = picard_ratios(features, normal(generator, 8))
    assert ratios.isnan().tolist() == [False, False, True, True]
