"""Shape, invariances and summaries of the alignment curve: properties of spec 1."""

import pytest
import torch

from tests.measures.absolute import (
    alignment_area,
    alignment_curve,
    area_from_projections,
    curve_from_projections,
    routed_curve,
    top_share,
)
from tests.reference import representation as reference
from tests.tolerances import assert_close
from theodolite.measures import representation
from theodolite.measures.representation import (
    label_projections,
    prepare_features,
    representation_alignment,
)

SIZES = {"tall": (15, 4), "square": (6, 6), "wide": (5, 11)}


def normal(generator, *shape):
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def orthogonal(generator, size):
    return torch.linalg.qr(normal(generator, size, size)).Q


@pytest.fixture(params=SIZES, ids=str)
def problem(request, generator):
    n, d = SIZES[request.param]
    return normal(generator, n, d), normal(generator, n)


def between(features):
    """Thresholds in the gaps of the spectrum, zero and beyond the largest included."""
    sigma = torch.linalg.svdvals(features)
    return torch.cat(
        [torch.zeros(1), sigma.flip(0)[:1] / 2, (sigma[1:] + sigma[:-1]) / 2, sigma[:1] * 2]
    )


def curve(features, targets, thresholds):
    return alignment_curve(features, targets, thresholds.double()).values


@pytest.mark.spec("1.R1")
def test_alignment_lies_between_zero_and_the_label_mass(problem):
    features, y = problem
    values = alignment_curve(features, y).values
    assert (values >= 0).all()
    assert (values <= y.square().sum() * (1 + 1e-12)).all()


@pytest.mark.spec("1.R2")
def test_a_threshold_equal_to_a_singular_value_counts_it():
    features = torch.diag(torch.tensor([3.0, 2.0, 1.0], dtype=torch.float64))
    assert representation_alignment(features, torch.ones(3).double(), 2.0) == 2


@pytest.mark.spec("1.R3")
def test_ends_of_the_curve(problem):
    features, y = problem
    floor = (
        features @ torch.linalg.lstsq(features, y.unsqueeze(1), driver="gelsd").solution
    ).squeeze(1) - y
    top = torch.linalg.svdvals(features).max()
    values = curve(features, y, torch.tensor([0.0, 1e-9, float(top) * 1.001]))
    assert_close(values, torch.stack([y @ y, y @ y - floor @ floor, torch.zeros(())]), scale=10.0)


@pytest.mark.spec("1.R4")
@pytest.mark.parametrize(
    ("threshold", "expected"),
    [(0.0, 14), (1e-6, 5), (2.0, 5), (2.0001, 1), (3.0, 1), (3.1, 0)],
)
@pytest.mark.parametrize("route", ["auto", "svd", "qr", "gram", "dual"])
def test_hand_case(threshold, expected, route):
    features = torch.diag(torch.tensor([3.0, 2.0, 0.0], dtype=torch.float64))
    y = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    # A threshold of 2 meets a singular value of 2.
    lower = torch.tensor([threshold * (1 - 1e-12)], dtype=torch.float64)
    assert_close(routed_curve(features, y, lower, route).values, [expected])
    assert_close(representation_alignment(features, y, float(lower)), expected)


@pytest.mark.spec("1.R5")
def test_unit_rows_bound_the_spectrum(problem):
    features, y = problem
    sigma = label_projections(prepare_features(features).features, y).singular_values
    assert_close(sigma.square().sum(), len(features), scale=len(features))
    assert sigma[0] <= len(features) ** 0.5 * (1 + 1e-12)


@pytest.mark.spec("1.R6")
def test_rotating_the_features_changes_nothing(problem, generator):
    features, y = problem
    rotated = features @ orthogonal(generator, features.shape[1])
    grid = between(features)
    assert_close(curve(rotated, y, grid), curve(features, y, grid), scale=10.0)


@pytest.mark.spec("1.R7")
def test_moving_examples_together_changes_nothing(problem, generator):
    features, y = problem
    order = torch.randperm(len(y), generator=generator)
    left = orthogonal(generator, len(y))
    grid = between(features)
    expected = curve(features, y, grid)
    assert_close(curve(features[order], y[order], grid), expected, scale=10.0)
    assert_close(curve(left @ features, left @ y, grid), expected, scale=10.0)


@pytest.mark.spec("1.R8", "1.R9")
@pytest.mark.parametrize("factor", [-1.0, 3.5], ids=str)
def test_scaling_labels_and_features(problem, factor):
    features, y = problem
    grid = between(features)
    expected = curve(features, y, grid)
    assert_close(curve(features, factor * y, grid), factor**2 * expected, scale=100.0)
    assert_close(curve(3.5 * features, y, 3.5 * grid), expected, scale=10.0)


@pytest.mark.spec("1.R10", "1.R12")
def test_zero_columns_and_duplicated_columns(problem):
    features, y = problem
    grid = between(features)
    padded = torch.cat([features, torch.zeros_like(features)], dim=1)
    doubled = torch.cat([features, features], dim=1)
    assert_close(curve(padded, y, grid), curve(features, y, grid), scale=10.0)
    assert_close(curve(doubled, y, 2**0.5 * grid), curve(features, y, grid), scale=10.0)


@pytest.mark.spec("1.R11")
def test_linear_maps_of_features_and_constants_in_labels_matter(generator):
    features, y = normal(generator, 15, 4), normal(generator, 15)
    stretched = features * torch.tensor([5.0, 1.0, 1.0, 0.2], dtype=torch.float64)
    before = representation_alignment(features, y, 3.0)
    assert (representation_alignment(stretched, y, 3.0) - before).abs() > 0.1
    assert (representation_alignment(features, y + 1, 3.0) - before).abs() > 0.1


@pytest.mark.spec("1.R13")
def test_duplicated_rows_keep_the_size_free_curve(problem):
    features, y = problem
    grid = between(features)
    twice = torch.cat([features, features])
    labels = torch.cat([y, y])
    assert_close(curve(twice, labels, 2**0.5 * grid), 2 * curve(features, y, grid), scale=10.0)
    shares = grid / len(y) ** 0.5
    free = alignment_curve(features, y, shares, scale="normalized").values
    assert_close(alignment_curve(twice, labels, shares, scale="normalized").values, free)


@pytest.mark.spec("1.R14")
def test_an_orthonormal_basis_counts_singular_values(problem, generator):
    features, _ = problem
    grid = between(features)
    basis = orthogonal(generator, len(features))
    sigma = torch.cat([torch.linalg.svdvals(features), torch.zeros(len(features))])[: len(features)]
    counts = (sigma >= grid.unsqueeze(1)).sum(1)
    assert_close(curve(features, basis, grid), counts, scale=10.0)


@pytest.mark.spec("1.R15")
@pytest.mark.parametrize("route", ["svd", "gram", "dual", "qr"])
def test_a_tied_plane_has_no_preferred_basis(route, generator):
    left = orthogonal(generator, 7)[:, :3]
    turn = torch.block_diag(orthogonal(generator, 2), torch.ones(1, 1))
    sigma, y = torch.tensor([2.0, 2.0, 1.0], dtype=torch.float64), normal(generator, 7)
    grid = torch.tensor([1.5], dtype=torch.float64)
    values = [
        routed_curve(basis * sigma @ orthogonal(generator, 3), y, grid, route).values[0]
        for basis in (left, left @ turn)
    ]
    assert_close(values[0], values[1], scale=10.0)
    assert_close(values[0], (left[:, :2].mT @ y).square().sum(), scale=10.0)


@pytest.mark.spec("1.R16")
def test_wide_features_of_full_rank_hold_all_label_mass(generator):
    features, y = normal(generator, 5, 11), normal(generator, 5)
    smallest = float(torch.linalg.svdvals(features).min())
    grid = torch.linspace(0, smallest * (1 - 1e-9), 20, dtype=torch.float64)
    values = curve(features, y, grid)
    assert_close(values, torch.full_like(values, float(y @ y)), scale=10.0)


@pytest.mark.spec("1.R17")
def test_more_columns_lower_nothing(problem, generator):
    features, y = problem
    more = torch.cat([features, normal(generator, len(y), 1)], dim=1)
    before, after = label_projections(features, y), label_projections(more, y)
    assert after.residual.sum() <= before.residual.sum() + 1e-12
    count = len(before.singular_values)
    assert (after.singular_values[:count] >= before.singular_values - 1e-12).all()


def test_class_labels_are_the_sum_over_indicator_columns(generator):
    features = normal(generator, 12, 4)
    labels = torch.arange(12) % 3
    grid = between(features)
    indicators = [(labels == index).double() for index in range(3)]
    expected = sum(curve(features, column, grid) for column in indicators)
    assert_close(curve(features, labels, grid), expected, scale=10.0)


def test_integers_of_minus_and_plus_one_are_a_label_vector(generator):
    features = normal(generator, 6, 2)
    signs = torch.tensor([1, -1, 1, 1, -1, -1])
    grid = between(features)
    assert_close(curve(features, signs, grid), curve(features, signs.double(), grid), scale=10.0)


def test_half_precision_is_promoted_before_the_decomposition(generator):
    features, y = normal(generator, 9, 3).half(), normal(generator, 9).half()
    value = alignment_area(features, y)
    assert value.dtype == torch.float32
    assert_close(
        value, alignment_area(features.double(), y.double()), scale=10.0, dtype=torch.float32
    )


def test_float32_noise_counts_as_zero(generator):
    """Rounding of rank-two features in float32 does not become a third direction."""
    features = (normal(generator, 50, 2) @ normal(generator, 2, 5)).float()
    y = normal(generator, 50).float()
    assert len(label_projections(features, y).singular_values) == 2
    assert len(label_projections(features.double(), y.double()).singular_values) == 5


def test_curves_of_projections_agree_with_those_of_features(problem):
    features, y = problem
    p = label_projections(features, y)
    grid = between(features)
    assert_close(
        curve_from_projections(p, grid.double()).values, curve(features, y, grid), scale=10.0
    )
    assert_close(
        area_from_projections(p, normalized=True), alignment_area(features, y, normalized=True)
    )


def test_default_grids_span_the_possible_range(problem):
    features, y = problem
    absolute = alignment_curve(features, y).thresholds
    assert len(absolute) == 200
    assert_close(absolute[[0, -1]], [0, len(y) ** 0.5])
    assert_close(alignment_curve(features, y, scale="relative").thresholds[[0, -1]], [0, 1])


def test_zero_labels_and_zero_features(generator):
    features, y = normal(generator, 5, 3), normal(generator, 5)
    zero = torch.zeros(5, dtype=torch.float64)
    assert representation_alignment(features, zero, 0.5) == 0
    assert alignment_area(features, zero, normalized=True).isnan()
    assert top_share(features, zero, 1).isnan()
    assert alignment_curve(features, zero, scale="normalized").values.isnan().all()
    dead = torch.zeros(5, 3, dtype=torch.float64)
    grid = torch.tensor([0.0, 0.1], dtype=torch.float64)
    assert_close(alignment_curve(dead, y, grid).values, [float(y @ y), 0], scale=10.0)
    assert alignment_curve(dead, y, grid, scale="relative").values.isnan().all()
    assert alignment_area(dead, y) == 0


def test_the_names_of_classes_do_not_matter(generator):
    features, labels = normal(generator, 12, 4), torch.arange(12) % 3
    grid = torch.tensor([0.0, 0.2, 0.4], dtype=torch.float64)
    values = representation.alignment_curve(features, labels, grid).values
    expected = reference.alignment_curve(features.numpy(), labels.numpy(), grid.numpy())
    assert_close(values, expected)
    renamed = torch.tensor([2, 0, 1])[labels]
    assert_close(representation.alignment_curve(features, renamed, grid).values, values)
    assert 0 < values[1] < 1


@pytest.mark.parametrize("size", [1e-200, 1e-160, 1e160, 1e200], ids=str)
def test_extreme_scales_neither_overflow_nor_vanish(size, generator):
    features, y = normal(generator, 300, 300), normal(generator, 300)
    grid = torch.tensor([0.0, 0.05, 0.5], dtype=torch.float64)
    expected = alignment_curve(features, y, grid, scale="relative").values
    actual = alignment_curve(size * features, y, grid, scale="relative").values
    assert_close(actual, expected)
    assert_close(alignment_curve(features, size * y, grid, scale="relative").values, expected)
    assert_close(top_share(features, size * y, 9), top_share(features, y, 9))
