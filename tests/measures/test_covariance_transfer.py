"""The transfer function from data to weights, and the shape of its curve."""

import math

import numpy as np
import pytest
import torch

from tests.measures.covariances import orthogonal, with_eigenvalues
from tests.tolerances import assert_close
from theodolite.measures.covariance import transfer_function

DATA = with_eigenvalues([9.0, 4.0, 2.0, 1.0, 0.5], seed=1)
DEGENERATE = with_eigenvalues([9.0, 4.0, 4.0, 4.0, 0.5], seed=1)


def filters(count=12, size=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, size, generator=generator, dtype=torch.float64) + 2


def covariance(rows):
    return torch.cov(rows.T, correction=0)


@pytest.mark.spec("2.P28")
def test_tau_is_the_deviation_of_projections():
    curve = transfer_function(DATA, filters())
    _, vectors = torch.linalg.eigh(DATA)
    projections = filters() @ vectors.flip(-1)
    assert_close(curve.sigma, np.sqrt([9.0, 4.0, 2.0, 1.0, 0.5]))
    assert_close(curve.tau, projections.std(0, correction=0))


@pytest.mark.spec("2.P28")
@pytest.mark.parametrize("data", [DATA, DEGENERATE], ids=["simple", "degenerate"])
@pytest.mark.parametrize("count", [3, 12], ids=["few filters", "many filters"])
def test_squares_add_up_to_the_trace(data, count):
    weights = filters(count)
    tau = transfer_function(data, weights).tau
    assert_close(tau.square().sum(), covariance(weights).trace(), scale=10)


@pytest.mark.spec("2.P28")
def test_grows_with_the_root_of_the_weights_variance():
    assert_close(
        transfer_function(DATA, 3 * filters()).tau, 3 * transfer_function(DATA, filters()).tau
    )


@pytest.mark.spec("2.P28")
@pytest.mark.parametrize("data", [DATA, DEGENERATE], ids=["simple", "degenerate"])
def test_invariant_under_joint_rotation(data):
    U = orthogonal(5, seed=4)
    turned = transfer_function((U @ data @ U.T + (U @ data @ U.T).T) / 2, filters() @ U.T)
    assert_close(turned.tau, transfer_function(data, filters()).tau)


@pytest.mark.spec("2.P28")
def test_signs_of_eigenvectors_do_not_matter():
    mirror = torch.diag(torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0]).double())
    flipped = transfer_function(mirror @ DATA @ mirror, filters() @ mirror)
    assert_close(flipped.tau, transfer_function(DATA, filters()).tau)


@pytest.mark.spec("2.P28")
def test_constant_for_isotropic_weights():
    isotropic = 2 * torch.cat([torch.eye(5), -torch.eye(5)]).double()
    tau = transfer_function(DATA, isotropic).tau
    assert_close(tau, np.full(5, math.sqrt(0.8)))


@pytest.mark.spec("2.P29")
@pytest.mark.parametrize("data", [DATA, DEGENERATE], ids=["simple", "degenerate"])
def test_mean_squared_preactivation(data):
    curve = transfer_function(data, filters())
    product = (curve.sigma * curve.tau).square().sum()
    assert_close(product, (data @ covariance(filters())).trace(), scale=100)


def test_degenerate_spaces_share_their_mean_variance():
    tau = transfer_function(DEGENERATE, filters()).tau
    assert tau[1] == tau[2] == tau[3]
    assert len(set(tau.tolist())) == 3


@pytest.mark.parametrize("centered", [True, False])
def test_centering(centered):
    weights = filters() - filters().mean(0) * centered
    second_moment = weights.T @ weights / len(weights)
    tau = transfer_function(DATA, filters(), centered=centered).tau
    vectors = torch.linalg.eigh(DATA).eigenvectors.flip(-1)
    assert_close(tau.square(), (vectors * (second_moment @ vectors)).sum(0))


def test_leading_directions_alone():
    curve = transfer_function(DATA, filters(), count=2)
    assert_close(curve.tau, transfer_function(DATA, filters()).tau[:2])
    assert_close(curve.sigma, [3, 2])


def test_negative_eigenvalues_by_rounding_are_zero():
    data = with_eigenvalues([1.0, 0.5, -1e-12], seed=2)
    assert transfer_function(data, filters(size=3)).sigma[-1] == 0


SHAPES = {
    "rising": torch.arange(9.0),
    "falling": -torch.arange(9.0),
    "rising then falling": torch.tensor([0.0, 1, 5, 6, 4, 4, 2, 1, 0]),
    "constant": torch.full((9,), 0.1),
    "constant up to rounding": 1
    + torch.finfo(torch.float64).eps * (torch.arange(9.0) % 2).double(),
    "single": torch.tensor([2.0]),
}
