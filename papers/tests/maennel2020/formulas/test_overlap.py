"""Stability of measured eigenvectors, and matches between those of weights and data."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import wishart

from tests.measures.covariances import orthogonal, random_spd, with_eigenvalues
from tests.tolerances import assert_close
from theodolite.measures.covariance import subspace_overlap
from theodolite_papers.maennel2020.formulas.overlap import (
    eigenvector_overlap,
    match_eigenvectors,
    predicted_overlap_loss,
)


def in_plane(angle):
    """The first two axes of three-space, turned."""
    turn = torch.eye(3, dtype=torch.float64)
    turn[:2, :2] = torch.tensor(
        [[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]]
    )
    return turn


@pytest.mark.spec("2.P33")
def test_a_matrix_overlaps_with_itself():
    matrix = random_spd(6)
    overlap = eigenvector_overlap(matrix, matrix)
    assert_close(overlap.ranked, np.ones(6))
    assert_close(overlap.best, np.ones(6))
    assert_close(overlap.products, np.eye(6))
    assert_close(subspace_overlap(matrix, matrix, [1, 3]), 1)


@pytest.mark.spec("2.P33")
def test_sampling_loss_is_predicted_to_first_order():
    eigenvalues = np.array([8.0, 4.0, 2.0, 1.0])
    first, second = (
        wishart(df=count, scale=np.diag(eigenvalues)).rvs(80, random_state=seed) / count
        for count, seed in ((400, 0), (800, 1))
    )
    losses = np.stack(
        [1 - eigenvector_overlap(a, b).ranked ** 2 for a, b in zip(first, second, strict=True)]
    )
    predicted = predicted_overlap_loss(eigenvalues, 400, 800)
    assert losses.mean(0) == pytest.approx(predicted, rel=0.5)


@pytest.mark.spec("2.P33")
@pytest.mark.parametrize("angle", [0.3, math.pi / 4, 1.4])
def test_close_eigenvalues_rotate_in_a_stable_plane(angle):
    close = torch.diag(torch.tensor([2.0, 2.0 - 1e-6, 1.0], dtype=torch.float64))
    turned = in_plane(angle) @ close @ in_plane(angle).T
    overlap = eigenvector_overlap(close, (turned + turned.T) / 2)
    assert_close(overlap.ranked[:2], [abs(math.cos(angle))] * 2, scale=1e3)
    assert_close(subspace_overlap(close, turned, [0, 1]), 1)
    assert_close(overlap.ranked[2], 1)


@pytest.mark.spec("2.P33")
def test_swapped_ranks_are_found_by_the_best_match():
    first = torch.diag(torch.tensor([3.0, 2.9, 1.0]))
    second = torch.diag(torch.tensor([2.9, 3.0, 1.0]))
    overlap = eigenvector_overlap(first, second)
    assert overlap.ranked.tolist() == [0, 0, 1]
    assert overlap.best.tolist() == [1, 1, 1]


def test_equal_eigenvalues_leave_eigenvectors_open():
    tied, simple = with_eigenvalues([3.0, 3.0, 1.0], seed=1), with_eigenvalues([3.0, 2.0, 1.0])
    overlap = eigenvector_overlap(tied, simple)
    assert overlap.ranked.isnan().tolist() == [True, True, False]
    assert overlap.best.isnan().tolist() == [True, True, False]
    assert not eigenvector_overlap(simple, tied).best.isnan().any()
    assert subspace_overlap(tied, simple, [0, 2]).isnan()
    assert not subspace_overlap(tied, simple, [0, 1]).isnan()


def test_overlap_of_random_planes():
    values = [
        float(subspace_overlap(random_spd(8, seed), random_spd(8, seed + 50), [0, 1, 2]))
        for seed in range(25)
    ]
    assert np.mean(values) == pytest.approx(3 / 8, abs=0.1)  # dimension of plane over space


def test_ties_make_the_predicted_loss_infinite():
    loss = predicted_overlap_loss(torch.tensor([3.0, 3.0, 1.0]), 100, 100)
    assert loss.isinf().tolist() == [True, True, False]
    assert loss[2].item() == pytest.approx(0.02 * 2 * 3 / 4)


@pytest.mark.spec("2.P34")
def test_every_vector_matches_itself():
    matrix = random_spd(6)
    match = match_eigenvectors(matrix, matrix)
    assert [partners.tolist() for partners in match.partners] == [[k] for k in range(6)]
    assert_close(match.quality, np.ones(6))
    values, vectors = torch.linalg.eigh(matrix)
    assert_close((match.combinations * vectors.flip(-1).T).sum(-1).abs(), np.ones(6))
    assert_close(match.weight_eigenvalues, values.flip(-1))
    assert_close(match.data_eigenvalues, values.flip(-1))


@pytest.mark.spec("2.P34")
@pytest.mark.parametrize("seed", range(4))
def test_quality_is_the_norm_of_the_matched_part(seed):
    data, weights = random_spd(8, seed), random_spd(8, seed + 20)
    match = match_eigenvectors(data, weights)
    chosen = torch.where(match.overlaps > 0.4, match.overlaps, 0.0)
    assert_close(match.quality.square(), chosen.square().sum(-1))
    assert match.counts.tolist() == [len(partners) for partners in match.partners]
    assert match.counts.max() <= 6
    matched = match.counts > 0
    _, vectors = torch.linalg.eigh(weights)
    overlap = (match.combinations * vectors.flip(-1).T).sum(-1).abs()
    assert_close(overlap[matched], match.quality[matched])
    assert_close(match.combinations[matched].norm(dim=-1), np.ones(int(matched.sum())))


@pytest.mark.spec("2.P34")
@pytest.mark.parametrize(("size", "expected"), [(5, 5), (6, 6), (7, 0)])
def test_at_most_six_partners(size, expected):
    """A vector spread evenly over m data eigenvectors overlaps with each by 1/sqrt(m)."""
    data = torch.diag(torch.arange(size, 0, -1).double())
    even = torch.full((size,), size**-0.5, dtype=torch.float64)
    match = match_eigenvectors(data, torch.eye(size).double() + torch.outer(even, even))
    assert match.counts[0] == expected
    assert_close(match.quality[0], 1.0 if expected else 0.0)
    assert match.combinations[0].isnan().all().item() is (expected == 0)


def test_the_threshold_is_strict():
    data = torch.diag(torch.tensor([2.0, 1.0], dtype=torch.float64))
    weights = torch.diag(torch.tensor([1.0, 2.0], dtype=torch.float64))
    match = match_eigenvectors(data, weights, threshold=0.999, count=1)
    assert match.partners[0].tolist() == [1]
    assert match.counts.shape == (1,)


def test_partners_are_sorted_by_overlap():
    data = torch.diag(torch.tensor([3.0, 2.0, 1.0], dtype=torch.float64))
    direction = torch.tensor([0.5, 0.5**0.5, 0.5], dtype=torch.float64)
    weights = torch.eye(3).double() + torch.outer(direction, direction)
    assert match_eigenvectors(data, weights).partners[0].tolist()[0] == 1


def test_a_degenerate_data_space_is_one_partner():
    basis = orthogonal(4, seed=3)
    data = basis * torch.tensor([5.0, 2.0, 2.0, 2.0], dtype=torch.float64) @ basis.T
    direction = basis[:, 1:].sum(-1) / math.sqrt(3)
    weights = torch.eye(4).double() + torch.outer(direction, direction)
    match = match_eigenvectors((data + data.T) / 2, weights)
    assert match.partners[0].tolist() == [1]
    assert_close(match.quality[0], 1)
    assert match.quality[1:].isnan().all()  # equal weight eigenvalues
    assert match.counts.tolist() == [1, 0, 0, 0]
    assert_close(match.data_eigenvalues, [5, 2])


def test_match_of_numpy_arrays_is_numpy():
    match = match_eigenvectors(random_spd(3).numpy(), random_spd(3, seed=1).numpy())
    assert isinstance(match.partners[0], np.ndarray)
    assert isinstance(match.combinations, np.ndarray)
