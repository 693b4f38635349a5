"""Projections from sums, triangles and kernels; per-class Grams."""

import pytest
import torch

from tests.tolerances import assert_close
from theodolite.linalg import (
    dual_gram,
    gram_sums,
    projections_from_gram,
    projections_from_kernel,
    qr_projections,
    svd_projections,
    target_columns,
)


def normal(generator, *shape):
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


@pytest.fixture
def problem(generator):
    return normal(generator, 20, 4) + 1, normal(generator, 20, 2) + 2


def assert_same(actual, expected):
    """Equal up to the sign of each direction."""
    assert actual.count == expected.count
    assert_close(actual.singular_values, expected.singular_values, scale=10.0)
    assert_close(actual.mass, expected.mass, scale=100.0)
    assert_close(actual.residual, expected.residual, scale=100.0)


def test_definition(problem):
    features, y = problem
    p = svd_projections(features, y)
    left, sigma, _ = torch.linalg.svd(features, full_matrices=False)
    assert_close(p.singular_values, sigma)
    assert_close(p.mass, (left.mT @ y).square(), scale=10.0)
    assert_close(p.energy, y.square().sum(0), scale=100.0)
    assert (p.route, p.resolved_above) == ("svd", 0.0)


def test_every_route_gives_the_same_projections(problem):
    features, y = problem
    expected = svd_projections(features, y)
    assert_same(qr_projections(features, y), expected)
    assert_same(projections_from_gram(*gram_sums(features, y), 20), expected)
    wide, z = features.mT, y[:4]
    assert_same(projections_from_kernel(dual_gram(wide), z, 20), svd_projections(wide, z))


def test_the_residual_is_small_where_targets_lie_in_the_range(problem, generator):
    """No difference of large squares: a residual of 1e-20 of the energy is seen as that."""
    features, _ = problem
    y = features @ normal(generator, 4, 1)
    noise = 1e-8 * normal(generator, 20, 1)
    expected = svd_projections(features, noise).residual
    assert svd_projections(features, y + noise).residual == pytest.approx(float(expected), rel=1e-5)


def test_the_limit_of_a_gram_is_reported_only_where_something_is_lost(problem):
    features, y = problem
    assert projections_from_gram(*gram_sums(features, y), 20).resolved_above == 0
    lost = features * torch.tensor([1.0, 1.0, 1.0, 1e-9], dtype=torch.float64)
    p = projections_from_gram(*gram_sums(lost, y), 20)
    assert p.resolved_above == pytest.approx(3e-7 * float(p.singular_values[0]))
    assert len(p.singular_values) == 3
    dead = torch.cat([features, torch.zeros_like(features)], dim=1)  # zeros lose nothing
    assert projections_from_gram(*gram_sums(dead, y), 20).resolved_above == 0
    # coarser data: what the Gram cannot resolve counts as zero anyway
    assert projections_from_gram(*gram_sums(lost, y), 20, eps=1e-6).resolved_above == 0


def test_labels_are_indicator_columns():
    assert target_columns(torch.tensor([1, 0]), 3).tolist() == [[0, 1, 0], [1, 0, 0]]
    assert target_columns(torch.tensor([1, 0]), None).tolist() == [[1], [0]]


@pytest.mark.parametrize("width", [3, 256, 300, 1030], ids=str)
def test_blocks_of_the_gram_matrix_cover_it(width, generator):
    features, y = normal(generator, 7, width), normal(generator, 7, 2)
    sums = gram_sums(features, y)
    assert_close(sums.gram, features.mT @ features, scale=100.0)
    assert_close(sums.cross, features.mT @ y, scale=100.0)
    assert_close(sums.energy, y.square().sum(0), scale=100.0)


def test_many_float32_rows_keep_their_small_directions(generator):
    # Rounding to float32 moves singular values by eps |A|_F / 2 at most, however many rows.
    rows = torch.randn(30_000, 2, generator=generator, dtype=torch.float64) * torch.tensor(
        [1.0, 1e-3]
    )
    targets = rows[:, 1:] / rows[:, 1].norm()
    kept = svd_projections(rows.float(), targets)
    assert len(kept.singular_values) == 2
    assert kept.residual.item() < 1e-6
