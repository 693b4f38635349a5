"""Symmetric distributions and random bases."""

import math

import numpy as np
import pytest
import torch

from tests.measures.covariances import random_spd
from tests.tolerances import assert_close
from theodolite.measures.covariance import random_basis_misalignment
from theodolite_papers.maennel2020.formulas.basis import basis_misalignment
from theodolite_papers.maennel2020.formulas.bounds import haar_bound, kantorovich_bound


@pytest.mark.spec("2.P20")
@pytest.mark.parametrize("seed", range(3))
def test_no_basis_exceeds_kantorovich_and_the_mean_not_jensen(seed, generator):
    weights = random_spd(5, seed)
    scores = random_basis_misalignment(weights, draws=300, generator=generator)
    assert (scores <= kantorovich_bound(weights)).all()
    error = scores.std() / math.sqrt(300)
    assert scores.mean() <= haar_bound(weights) + 3 * error
    assert haar_bound(weights) < 1.5 * scores.mean()  # not an empty promise


@pytest.mark.spec("2.P20")
def test_kantorovich_is_attained_in_the_plane():
    weights = torch.diag(torch.tensor([1.0, 9.0], dtype=torch.float64))
    half_turn = torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64) / math.sqrt(2)
    assert_close(basis_misalignment(half_turn, weights), kantorovich_bound(weights), scale=10)


@pytest.mark.spec("2.P20")
def test_isotropic_weights_score_zero_for_every_basis(generator):
    weights = 3 * torch.eye(5, dtype=torch.float64)
    assert_close(random_basis_misalignment(weights, generator=generator), np.zeros(10))
    assert kantorovich_bound(weights) == 0
    assert_close(haar_bound(weights), 0)
