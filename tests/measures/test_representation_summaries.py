"""Areas, second moments, ceilings and shares: properties of spec 1."""

import numpy as np
import pytest
import torch

from tests.measures.absolute import alignment_area, alignment_curve, top_share
from tests.tolerances import assert_close
from theodolite.measures import representation
from theodolite.measures.representation import label_projections, prepare_features

SIZES = {"tall": (15, 4), "square": (6, 6), "wide": (5, 11)}


def normal(generator, *shape):
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


@pytest.fixture(params=SIZES, ids=str)
def problem(request, generator):
    n, d = SIZES[request.param]
    return normal(generator, n, d), normal(generator, n)


def curve(features, targets, thresholds):
    return alignment_curve(features, targets, thresholds.double()).values


@pytest.mark.spec("1.R20")
def test_normalized_area_is_one_for_collapsed_opposite_classes(generator):
    mean = normal(generator, 6)
    signs = torch.tensor([1.0, -1.0, -1.0, 1.0, 1.0], dtype=torch.float64)
    features = torch.outer(signs, mean / mean.norm())
    assert_close(alignment_area(features, signs, normalized=True), 1)


@pytest.mark.spec("1.R22")
@pytest.mark.parametrize(("positive", "negative"), [(5, 5), (7, 3)], ids=str)
def test_non_negative_features_have_a_ceiling(positive, negative, generator):
    n = positive + negative
    y = torch.cat([torch.ones(positive), -torch.ones(negative)]).double()
    ceiling = (positive**2 + negative**2) ** 0.5 / n
    draws = [prepare_features(normal(generator, n, 3).relu() + 1e-3).features for _ in range(20)]
    assert max(alignment_area(rows, y, normalized=True) for rows in draws) <= ceiling + 1e-12


@pytest.mark.spec("1.R22")
def test_orthogonal_class_means_reach_the_ceiling():
    features = torch.eye(2, dtype=torch.float64).repeat_interleave(6, 0)
    y = torch.tensor([1.0] * 6 + [-1.0] * 6, dtype=torch.float64)
    assert_close(alignment_area(features, y, normalized=True), 0.5**0.5)


@pytest.mark.spec("1.R24")
@pytest.mark.parametrize("cosine", [-0.5, 0.0, 0.6], ids=str)
def test_collapsed_classes_drop_at_one_threshold(cosine):
    means = torch.tensor([[1.0, 0.0], [cosine, (1 - cosine**2) ** 0.5]], dtype=torch.float64)
    features, n = means.repeat_interleave(8, 0), 16
    y = torch.tensor([1.0] * 8 + [-1.0] * 8, dtype=torch.float64)
    drop = (n * (1 - cosine) / 2) ** 0.5
    grid = drop * torch.tensor([0.5, 1 - 1e-9, 1 + 1e-9, 1.5], dtype=torch.float64)
    assert_close(curve(features, y, grid), [n, n, 0, 0], scale=n)


def test_top_share_splits_a_tied_group_in_proportion():
    features = torch.diag(torch.tensor([2.0, 1.0, 1.0, 0.0], dtype=torch.float64))
    y = torch.tensor([1.0, 2.0, 0.0, 1.0], dtype=torch.float64)
    shares = [top_share(features, y, count).item() for count in (1, 2, 3, 4, 9)]
    np.testing.assert_allclose(shares, np.array([1, 3, 5, 6, 6]) / 6)


def test_area_curve_and_share_normalise_rows_and_labels_by_default(generator):
    features = 30 * normal(generator, 40, 7) + 5
    labels = torch.arange(40) % 4
    rows = features / features.norm(dim=1, keepdim=True)
    columns = torch.nn.functional.one_hot(labels).double()
    u, sigma, _ = torch.linalg.svd(rows, full_matrices=False)
    mass = (u.mT @ columns).square().sum(1)
    grid = torch.tensor([0.0, 0.2, 0.5], dtype=torch.float64)
    curve = [1.0, *(float(mass[sigma >= level * 40**0.5].sum()) / 40 for level in grid[1:])]
    assert_close(representation.alignment_area(features, labels), sigma @ mass / 40**1.5)
    assert_close(representation.alignment_curve(features, labels, grid).values, curve)
    assert_close(representation.top_share(features, labels, 3), mass[:3].sum() / 40)


def test_share_of_projections_is_that_of_the_features(problem):
    features, y = problem
    p = label_projections(features, y)
    for count in (1, 2, 4, 100):
        assert_close(
            representation.top_share_from_projections(p, count), top_share(features, y, count)
        )


def test_share_of_projections_splits_ties_and_the_null_space():
    features = torch.diag(torch.tensor([2.0, 1.0, 1.0, 0.0], dtype=torch.float64))
    p = label_projections(features, torch.tensor([1.0, 2.0, 0.0, 1.0], dtype=torch.float64))
    shares = [representation.top_share_from_projections(p, k).item() for k in (1, 2, 3, 4, 9)]
    np.testing.assert_allclose(shares, np.array([1, 3, 5, 6, 6]) / 6)
