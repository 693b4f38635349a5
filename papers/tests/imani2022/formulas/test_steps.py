"""Alignment as a step function."""

import pytest
import torch

from tests.measures.absolute import alignment_curve
from tests.tolerances import assert_close
from theodolite_papers.imani2022.formulas.curves import alignment_steps

SIZES = {"tall": (15, 4), "square": (6, 6), "wide": (5, 11)}


def normal(generator, *shape):
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


@pytest.fixture(params=SIZES, ids=str)
def problem(request, generator):
    n, d = SIZES[request.param]
    return normal(generator, n, d), normal(generator, n)


def curve(features, targets, thresholds):
    return alignment_curve(features, targets, thresholds.double()).values


@pytest.mark.spec("1.R2")
def test_alignment_never_rises_and_includes_the_threshold_itself(problem):
    features, y = problem
    steps = alignment_steps(features, y)
    sigma, mass = steps.singular_values, steps.mass
    assert (alignment_curve(features, y).values.diff() <= 1e-12).all()
    assert_close(alignment_curve(features, y, sigma * (1 - 1e-12)).values, mass.cumsum(0))
    assert_close(curve(features, y, sigma * (1 + 1e-9)), mass.cumsum(0) - mass)
    assert_close(curve(features, y, sigma * (1 - 1e-9)), mass.cumsum(0))
