"""Second moments and Picard ratios."""

import pytest
import torch

from tests.measures.absolute import alignment_area, alignment_curve
from tests.tolerances import assert_close
from theodolite.measures.representation import label_projections, prepare_features
from theodolite_papers.imani2022.formulas.curves import alignment_second_moment, alignment_steps

SIZES = {"tall": (15, 4), "square": (6, 6), "wide": (5, 11)}


def normal(generator, *shape):
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


@pytest.fixture(params=SIZES, ids=str)
def problem(request, generator):
    n, d = SIZES[request.param]
    return normal(generator, n, d), normal(generator, n)


def curve(features, targets, thresholds):
    return alignment_curve(features, targets, thresholds.double()).values


@pytest.mark.spec("1.R18")
def test_area_is_the_integral_of_the_curve(problem):
    features, y = problem
    values, vectors = torch.linalg.eigh(features @ features.mT)
    root = vectors * values.clamp(min=0).sqrt() @ vectors.mT
    area = alignment_area(features, y)
    assert_close(area, y @ root @ y, scale=1e2)  # the root of a zero eigenvalue is noise of 1e-8
    steps = alignment_steps(features, y)
    edges = torch.cat([steps.singular_values, torch.zeros(1)])
    heights = steps.mass.cumsum(0)
    assert_close(area, (heights * -edges.diff()).sum(), scale=100.0)
    grid = torch.linspace(0, float(edges[0]) * 1.01, 20_001, dtype=torch.float64)
    assert torch.trapezoid(curve(features, y, grid), grid) == pytest.approx(float(area), rel=1e-3)


@pytest.mark.spec("1.R19")
def test_second_moment_is_the_squared_cross_moment(problem):
    features, y = problem
    p = label_projections(features, y)
    spectral = (p.singular_values.square() * p.mass.squeeze(1)).sum()
    assert_close(alignment_second_moment(features, y), spectral, scale=1000.0)
    assert_close(spectral, (features.mT @ y).square().sum(), scale=1000.0)


@pytest.mark.spec("1.R20", "1.R21")
@pytest.mark.parametrize("normalize", ["unit", "max"])
def test_normalized_area_is_a_share_below_its_second_moment(problem, normalize):
    features, y = problem
    rows = prepare_features(features, normalize=normalize).features
    share = alignment_area(rows, y, normalized=True)
    assert 0 <= share <= 1
    assert share**2 <= alignment_second_moment(rows, y) / (len(y) * (y @ y)) + 1e-12
