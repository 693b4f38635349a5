"""The four routes to one curve, and where the Gram route ends: spec 1, section 3."""

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
from tests.tolerances import assert_close
from theodolite.linalg import (
    TriangularState,
    gram_sums,
    projections_from_gram,
    projections_from_triangle,
)
from theodolite.measures.representation import label_projections

ROUTES = ["svd", "gram", "dual", "qr"]
SHAPES = {"tall": (60, 9), "square": (12, 12), "wide": (9, 40)}


def normal(generator, *shape):
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def with_spectrum(generator, n, sigma):
    left = torch.linalg.qr(normal(generator, n, len(sigma))).Q
    right = torch.linalg.qr(normal(generator, len(sigma), len(sigma))).Q
    return left * sigma @ right.mT, left


def gaps(features):
    sigma = torch.linalg.svdvals(features)
    return torch.cat([torch.zeros(1), (sigma[1:] + sigma[:-1]) / 2])


@pytest.mark.spec("1.R55")
@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_all_routes_give_the_same_curve_at_gaps(shape, route, generator):
    n, d = SHAPES[shape]
    features, y = normal(generator, n, d), normal(generator, n, 2)
    grid = gaps(features)
    expected = routed_curve(features, y, grid, "svd").values
    curve = routed_curve(features, y, grid, route)
    assert curve.route == route
    assert_close(curve.values, expected, scale=float(y.square().sum()))


@pytest.mark.spec("1.R55")
@pytest.mark.parametrize("sizes", [(60,), (1, 20, 39), (30, 30), (59, 1)], ids=str)
@pytest.mark.parametrize("reverse", [False, True], ids=["in order", "shards reversed"])
def test_batches_and_order_of_shards_are_irrelevant(sizes, reverse, generator):
    features, y = normal(generator, 60, 5) + 3, normal(generator, 60, 2) + 1
    expected = alignment_curve(features, y, gaps(features)).values
    parts = list(zip(features.split(sizes), y.split(sizes), strict=True))
    parts = parts[::-1] if reverse else parts
    sums = [sum(entries) for entries in zip(*(gram_sums(*part) for part in parts), strict=True)]
    states = [TriangularState.of(torch.cat(part, dim=1)) for part in parts]
    streamed = [
        projections_from_gram(*sums, 60),
        projections_from_triangle(sum(states[1:], states[0]), 5, 60),
    ]
    curves = [curve_from_projections(p, gaps(features)).values for p in streamed]
    assert [p.route for p in streamed] == ["gram", "qr"]
    assert_close(torch.stack(curves), torch.stack([expected] * 2), scale=100.0)


@pytest.mark.spec("1.R58")
@pytest.mark.parametrize("level", [1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 3e-7], ids=str)
def test_gram_error_stays_below_the_first_order_bound(level, generator):
    sigma = torch.logspace(0, -10, 41, dtype=torch.float64)
    features, left = with_spectrum(generator, 300, sigma)
    y = normal(generator, 300)
    kept = sigma >= level * 1.2
    above, below = sigma[kept].min(), sigma[~kept].max()
    threshold = (above * below).sqrt().reshape(1)
    exact = (left[:, kept].mT @ y).square().sum()
    error = 2.2e-16 * (exact / above**2 + y @ y / (above**2 - below**2))
    bound = error + 2 * 2.2e-16 * y.norm() * exact.sqrt() / above
    gram = routed_curve(features, y, threshold, "gram").values[0]
    assert (gram - exact).abs() <= 20 * bound


@pytest.mark.spec("1.R58")
def test_far_below_the_limit_the_gram_is_lost_and_qr_is_not(generator):
    sigma = torch.logspace(0, -10, 41, dtype=torch.float64)
    features, left = with_spectrum(generator, 300, sigma)
    y = normal(generator, 300) @ left @ left.mT
    exact = (left[:, sigma >= 1e-9].mT @ y).square().sum()
    p = label_projections(features, y, route="gram")
    gram = p.mass[p.singular_values >= 1e-9].sum()
    grid = torch.tensor([0.8e-9], dtype=torch.float64)
    accurate = routed_curve(features, y, grid, "qr").values[0]
    assert (gram - exact).abs() > 1e-2 * (y @ y)
    assert (accurate - exact).abs() < 1e-4 * (y @ y)


def test_a_threshold_below_the_limit_of_the_route_asked_for_is_unknown(generator):
    features, _ = with_spectrum(generator, 50, torch.tensor([1.0, 1e-3, 1e-9]).double())
    y = normal(generator, 50)
    grid = torch.tensor([0.0, 1e-8, 1e-4, 0.5], dtype=torch.float64)
    for route in ("gram", "dual"):
        values = routed_curve(features, y, grid, route).values
        assert values.isnan().tolist() == [False, True, False, False]
        assert 1e-7 < label_projections(features, y, route=route).resolved_above < 1e-6


@pytest.fixture
def large(generator):
    """Large enough that the choice matters, with one direction that a Gram matrix loses."""
    sigma = torch.cat([torch.linspace(2, 1, 39), torch.tensor([1e-8])]).double()
    return with_spectrum(generator, 2000, sigma)[0], normal(generator, 2000)


@pytest.mark.parametrize(
    ("threshold", "route"), [(1.51, "gram"), (1e-5, "gram"), (1e-9, "svd")], ids=str
)
def test_the_route_follows_the_smallest_threshold(large, threshold, route):
    features, y = large
    grid = torch.tensor([0.0, threshold, 1.9], dtype=torch.float64)
    curve = alignment_curve(features, y, grid)
    assert curve.route == route
    exact = routed_curve(features, y, grid, "svd").values
    assert_close(curve.values, exact, scale=float(y @ y))


def test_everything_is_resolved_unless_told_otherwise(large):
    features, y = large
    assert label_projections(features, y).route == "svd"
    assert label_projections(features, y, threshold=1e-3).route == "gram"
    assert len(label_projections(features, y).singular_values) == 40
    accurate = label_projections(features, y, route="svd")
    assert_close(alignment_area(features, y), area_from_projections(accurate), scale=2000.0)
    assert_close(top_share(features, y, 40), label_projections(features, y).mass.sum() / (y @ y))


def test_wide_features_take_the_dual_and_tall_ones_the_triangle(generator):
    wide, tall = normal(generator, 40, 2000), normal(generator, 30_000, 40)
    grid = torch.tensor([0.0, 2.0, 44.0, 173.0], dtype=torch.float64)
    assert alignment_curve(wide, normal(generator, 40), grid).route == "dual"
    assert label_projections(tall, normal(generator, 30_000)).route == "qr"


def test_labels_become_columns_chunk_by_chunk(generator):
    features = normal(generator, 30_000, 200).float()  # more than one chunk of rows
    labels = torch.arange(30_000) % 4
    columns = torch.nn.functional.one_hot(labels).double()
    grid = torch.tensor([0.0, 160.0, 170.0, 175.0], dtype=torch.float64)
    values = alignment_curve(features, labels, grid).values
    assert_close(values, alignment_curve(features.double(), columns, grid).values, scale=1e4)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")], ids=str)
def test_the_gram_route_sees_what_is_not_finite(large, bad):
    features, y = large
    features[1234, 5] = bad
    with pytest.raises(ValueError, match=r"features: expected finite numbers.*\(1234, 5\)"):
        alignment_curve(features, y, torch.tensor([1.0], dtype=torch.float64))


def test_the_choice_of_a_route_costs_no_label_mass(generator):
    """Directions between 1e-7 and 1e-4 of the largest: there, but mixed in a Gram matrix."""
    features, _ = with_spectrum(generator, 2000, torch.logspace(0, -6, 40, dtype=torch.float64))
    y = normal(generator, 2000)
    grid = torch.tensor([1.5e-6, 1e-5, 1e-3], dtype=torch.float64)
    exact = routed_curve(features, y, grid, "svd").values
    assert_close(alignment_curve(features, y, grid).values, exact, scale=float(y @ y))
    assert_close(
        top_share(features, y, 39), label_projections(features, y).mass[:39].sum() / (y @ y)
    )
    accurate = label_projections(features, y, route="svd")
    assert_close(alignment_area(features, y), area_from_projections(accurate), scale=2000.0)


def test_float32_features_keep_the_gram_route(generator):
    """Their own rounding exceeds that of a float64 Gram matrix."""
    features, _ = with_spectrum(generator, 2000, torch.logspace(0, -5, 40, dtype=torch.float64))
    grid = torch.tensor([1e-4], dtype=torch.float64)
    assert alignment_curve(features.float(), normal(generator, 2000), grid).route == "gram"
