"""What misalignment is read against: random bases, bounds, the sampling floor, subspaces."""

import math

import numpy as np
import pytest
import torch

from tests.measures.covariances import orthogonal, random_spd, with_eigenvalues
from tests.reference.covariance import basis_misalignment as of_one_basis
from tests.tolerances import assert_close
from theodolite.errors import ShapeError
from theodolite.linalg import Eigen, symmetric_eigen
from theodolite.measures.covariance import (
    compare_misalignment,
    compare_misalignment_along,
    misalignment,
    misalignment_floor,
    random_bases,
    random_basis_misalignment,
    relative_misalignment,
    subspace_size,
)

B = random_spd(5, seed=5)
DATA = with_eigenvalues([8.0, 5.0, 3.0, 2.0, 1.0], seed=1)


def sampled_covariances(spectrum, filters, draws, seed=0):
    """Centred covariances of Gaussian filters whose true covariance is diagonal."""
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((draws, filters, len(spectrum))) * np.sqrt(spectrum)
    rows -= rows.mean(axis=1, keepdims=True)
    stack = torch.from_numpy(rows.transpose(0, 2, 1) @ rows / filters)
    return (stack + stack.mT) / 2


@pytest.mark.spec("2.P24")
@pytest.mark.parametrize("spectrum", [np.ones(6), np.logspace(0, 3, 6)], ids=["flat", "steep"])
@pytest.mark.parametrize("filters", [12, 60])
def test_mean_score_of_aligned_samples_is_the_floor(spectrum, filters):
    stack = sampled_covariances(spectrum, filters, draws=1000)
    truth = torch.diag(torch.arange(6, 0, -1).double())
    scores = misalignment(truth, stack)
    error = float(scores.std()) / math.sqrt(len(scores))
    assert float(scores.mean()) == pytest.approx(
        float(misalignment_floor(filters, 6)), abs=4 * error
    )


@pytest.mark.spec("2.P24")
@pytest.mark.parametrize(
    ("filters", "dimensions", "expected"),
    [(256, 27, 1.501), (64, 27, 8.54), (1920, 75, 1.49), (4480, 75, 0.63)],
)
def test_floor_has_the_stated_values(filters, dimensions, expected):
    digits = len(str(expected).split(".")[1])
    assert round(float(misalignment_floor(filters, dimensions)), digits) == expected


@pytest.mark.spec("2.P24")
def test_spread_of_the_score_at_the_papers_size():
    scores = misalignment(
        torch.diag(torch.arange(27, 0, -1).double()),
        sampled_covariances(np.linspace(1, 2, 27), 256, draws=200),
    )
    assert float(scores.mean()) == pytest.approx(1.501, abs=0.03)
    assert float(scores.std()) == pytest.approx(0.11, abs=0.02)


@pytest.mark.spec("2.P24")
def test_floor_of_many_filters():
    d, n = 9, 10**6
    assert float(misalignment_floor(n, d)) == pytest.approx(d * (d - 1) / (2 * n), rel=1e-3)


@pytest.mark.spec("2.P24")
@pytest.mark.parametrize(
    ("filters", "centered", "infinite"), [(6, True, True), (7, True, False), (6, False, False)]
)
def test_floor_is_infinite_without_enough_filters(filters, centered, infinite):
    assert misalignment_floor(filters, 5, centered=centered).isinf().item() is infinite


def test_all_draws_are_returned_and_follow_the_generator():
    first, second = (
        random_basis_misalignment(B, draws=4, generator=torch.Generator().manual_seed(seed))
        for seed in (1, 1)
    )
    assert first.shape == (4,)
    assert torch.equal(first, second)
    assert len(set(first.tolist())) == 4


def basis_misalignment(bases, weights):
    return torch.tensor([of_one_basis(basis.numpy(), weights.numpy()) for basis in bases])


def test_draws_are_scores_of_random_bases():
    bases = random_bases(5, draws=4, generator=torch.Generator().manual_seed(1))
    scores = random_basis_misalignment(B, draws=4, generator=torch.Generator().manual_seed(1))
    assert_close(scores, basis_misalignment(bases, B), scale=100)


def test_checkpoints_meet_the_same_bases():
    stack = torch.stack([B, random_spd(5, seed=6)])
    scores = random_basis_misalignment(stack, draws=3, generator=torch.Generator().manual_seed(1))
    single = random_basis_misalignment(
        stack[1], draws=3, generator=torch.Generator().manual_seed(1)
    )
    assert scores.shape == (2, 3)
    assert_close(scores[1], single, scale=100)


def test_bases_are_uniform(generator):
    bases = random_bases(3, draws=2000, generator=generator)
    assert_close(bases.mT @ bases, torch.eye(3).double().expand(2000, 3, 3))
    # Without fixed signs of R the diagonal would have one sign: its mean would be far from zero.
    assert bases.mean(0).abs().max() < 5 / math.sqrt(3 * 2000)
    assert_close(bases.square().mean(0), torch.full((3, 3), 1 / 3).double(), scale=3e7)


@pytest.mark.parametrize(
    ("filters", "dimensions", "expected"),
    [(256, 27, 27), (29, 27, 27), (28, 27, 7), (27, 27, 6), (64, 576, 16), (3, 9, 0)],
)
def test_subspace_size(filters, dimensions, expected):
    assert subspace_size(filters, dimensions) == expected


def compress(data, weights, subspace):
    """The weights' covariance in the coordinates of leading data eigenvectors."""
    kept = torch.linalg.eigh(data).eigenvectors.flip(-1)[:, :subspace]
    return kept.T @ weights @ kept


def test_subspace_form_is_the_score_of_the_compressed_matrices():
    compressed = compress(DATA, B, 3)
    expected = misalignment(torch.diag(torch.tensor([8.0, 5.0, 3.0]).double()), compressed)
    assert_close(misalignment(DATA, B, subspace=3), expected, scale=100)
    assert_close(misalignment(DATA, B, subspace=5), misalignment(DATA, B), scale=100)


def test_subspace_of_few_filters_needs_no_full_rank(generator):
    weights = torch.randn(16, 40, generator=generator, dtype=torch.float64)
    covariance = torch.cov(weights.T, correction=0)
    data = with_eigenvalues(np.linspace(40, 1, 40).tolist(), seed=2)
    result = compare_misalignment(data, covariance, filters=16, generator=generator)
    assert result.subspace == 4
    assert_close(result.value, misalignment(data, covariance, subspace=4), scale=100)
    assert_close(result.floor, misalignment_floor(16, 4))
    assert result.baseline.shape == (10,)
    assert_close(result.relative, result.value / result.baseline.mean(), scale=100)


def test_subspace_does_not_cut_an_eigenspace(generator):
    data = with_eigenvalues([5.0, 4.0, 3.0, 3.0, *np.linspace(2, 1, 16)], seed=2)
    weights = random_spd(20, seed=3)
    assert compare_misalignment(data, weights, filters=12, generator=generator).subspace == 2
    assert compare_misalignment(data, weights, filters=16, generator=generator).subspace == 4


@pytest.mark.parametrize("filters", [3, 8], ids=["too few filters", "isotropic data"])
def test_comparison_is_undefined_without_a_subspace(filters):
    stack = torch.stack([random_spd(9), random_spd(9, seed=1)])
    result = compare_misalignment(torch.eye(9).double(), stack, filters=filters, draws=2)
    assert result.subspace == 0
    assert result.value.isnan().tolist() == [True, True]
    assert result.baseline.shape == (2, 2)
    assert result.relative.isnan().all()


def test_comparison_of_a_stack_of_checkpoints(generator):
    stack = torch.stack([DATA @ DATA, B])
    result = compare_misalignment(DATA, stack, filters=100, generator=generator)
    assert result.relative.shape == (2,)
    assert result.relative[0] < 1e-9 < 0.1 < result.relative[1]


def test_relative_misalignment_takes_the_mean_over_bases():
    bases = torch.stack([orthogonal(5, seed) for seed in range(4)])
    expected = misalignment(DATA, B) / basis_misalignment(bases, B).mean()
    assert_close(relative_misalignment(DATA, B, bases), expected, scale=100)
    stack = torch.stack([B, random_spd(5, seed=6)])
    assert_close(relative_misalignment(DATA, stack, bases)[0], expected, scale=100)


def test_relative_misalignment_in_a_subspace():
    bases = torch.stack([orthogonal(3, seed) for seed in range(4)])
    compressed = compress(DATA, B, 3)
    expected = misalignment(DATA, B, subspace=3) / basis_misalignment(bases, compressed).mean()
    assert_close(relative_misalignment(DATA, B, bases, subspace=3), expected, scale=100)


@pytest.mark.parametrize(
    "turn", [torch.eye(5).double(), orthogonal(5, seed=2)], ids=["exact", "rounded"]
)
def test_relative_misalignment_of_isotropic_weights_is_undefined(turn):
    weights = (turn @ turn.T + turn.T @ turn).detach().requires_grad_()
    bases = torch.stack([orthogonal(5, seed) for seed in range(6)])
    value = relative_misalignment(DATA, weights, bases)
    value.backward()
    assert value.isnan()
    assert (weights.grad == 0).all()


@pytest.mark.parametrize("filters", [40, 9])  # all directions, and a quarter of the filters
def test_comparison_along_directions_is_that_of_covariances(filters):
    draws = torch.Generator().manual_seed(1)
    weights = torch.randn(filters, 10, generator=draws, dtype=torch.float64)
    data = random_spd(10, seed=3)
    centred = weights - weights.mean(0)
    seeds = [torch.Generator().manual_seed(0) for _ in range(2)]
    spread = centred.T @ centred / filters
    expected = compare_misalignment(data, spread, filters, generator=seeds[0])
    kept = 10 if filters == 40 else 3
    values, vectors = symmetric_eigen(data)
    directions = Eigen(values[:kept], vectors[:, :kept])
    found = compare_misalignment_along(
        directions, weights, lambda size: random_bases(size, generator=seeds[1])
    )
    assert found.subspace == expected.subspace == (10 if filters == 40 else 2)
    assert_close(found.value, expected.value, scale=100)
    assert_close(found.baseline, expected.baseline, scale=100)
    assert_close(found.relative, expected.relative, scale=100)
    assert found.floor == expected.floor


def test_too_few_directions_are_refused():
    values, vectors = symmetric_eigen(random_spd(10, seed=3))
    directions = Eigen(values[:2], vectors[:, :2])
    with pytest.raises(ShapeError, match="expected 3 leading eigenpairs or more for 9 filters"):
        compare_misalignment_along(directions, torch.randn(9, 10), random_bases)
