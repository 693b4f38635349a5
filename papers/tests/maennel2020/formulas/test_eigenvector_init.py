"""Initialisation by eigenvectors of the data, as in the tables of the paper."""

import numpy as np
import pytest
import torch
from torch import nn

from tests.interventions.subjects import (
    correlated_images,
    require_running_order,
    seeded,
    small_cnn,
)
from tests.reference import interventions as reference
from tests.tolerances import assert_close
from theodolite.engine import input_moments
from theodolite.errors import DomainError, ShapeError, UnknownNameError
from theodolite.interventions import covariance_init_, tau_curve
from theodolite_papers.maennel2020.formulas.eigenvector_init import (
    Directions,
    eigenvector_filters,
    eigenvector_init_,
)


@pytest.mark.spec("2.P36")
@pytest.mark.parametrize("signs", ["random", "+1", "largest"])
@pytest.mark.parametrize("tau", ["f1", "f2", "f3"])
def test_eigenvector_filters_are_orthogonal_and_decorrelate_the_data(tau, signs):
    images = correlated_images().numpy()
    rows = reference.patches(images, 3)
    sigma = reference.covariance(rows)
    values, vectors = reference.eigenvectors(sigma)
    filters = eigenvector_filters(
        torch.from_numpy(sigma), 6, tau=tau, signs=signs, generator=seeded()
    ).numpy()
    strength = tau_curve(tau, 6).numpy()
    assert_close(filters @ filters.T, np.diag(strength**2))
    outer = sum(t**2 * np.outer(e, e) for t, e in zip(strength, vectors.T[:6], strict=True))
    assert_close(filters.T @ filters, outer)
    outputs = rows @ filters.T
    assert_close(reference.covariance(outputs), np.diag(strength**2 * values[:6]))


def test_signs():
    sigma = torch.from_numpy(
        reference.covariance(reference.patches(correlated_images().numpy(), 3))
    )
    positive = eigenvector_filters(sigma, 8, signs="largest")
    places = positive.abs().argmax(1, keepdim=True)
    assert (positive.gather(1, places) > 0).all()
    random = eigenvector_filters(sigma, 8, signs="random", generator=seeded(5))
    ratio = (random * positive).sum(1)
    assert_close(ratio.abs(), torch.ones(8))
    assert {1.0, -1.0} == set(ratio.round().tolist())
    plus = eigenvector_filters(sigma, 8, signs="+1")
    assert torch.equal(plus, eigenvector_filters(sigma, 8, signs="+1"))


@pytest.mark.parametrize(
    ("directions", "expected"),
    [
        (Directions(3), [0, 1, 2]),
        (Directions(3, "smallest"), [5, 4, 3]),
        (Directions(3, first=2), [1, 2, 3]),
        (Directions(2, "smallest", first=2), [4, 3]),
    ],
    ids=["top", "smallest", "offset", "smallest-offset"],
)
def test_selection_rules(directions, expected):
    sigma = torch.diag(torch.tensor([6.0, 5.0, 4.0, 3.0, 2.0, 1.0], dtype=torch.float64))
    filters = eigenvector_filters(sigma, directions, signs="largest")
    assert filters.argmax(1).tolist() == expected


def test_tau_as_a_function_of_the_standard_deviations():
    sigma = torch.diag(torch.tensor([9.0, 4.0, 1.0], dtype=torch.float64))
    filters = eigenvector_filters(sigma, 3, tau=lambda s: 1 / s, signs="largest")
    assert_close(filters.T @ sigma @ filters, torch.eye(3))


def literal_filters(images, tau):
    """Filters of two convolutions and the hidden maps, built by loops."""
    weights, maps = [], images.numpy()
    for count, kernel in ((4, 3), (5, 3)):
        _, vectors = reference.eigenvectors(reference.covariance(reference.patches(maps, kernel)))
        rows = [t * e for t, e in zip(tau[:count], vectors.T, strict=False)]
        # The sign with the largest entry positive.
        rows = [row * np.sign(row[np.abs(row).argmax()]) for row in rows]
        weight = np.array(rows).reshape(count, maps.shape[1], kernel, kernel)
        weights.append(weight)
        maps = np.maximum(reference.convolve(maps, weight), 0)
    return weights


@pytest.mark.spec("2.P37")
def test_layer_by_layer_equals_the_literal_algorithm():
    images, net = correlated_images(), small_cnn()
    head = net[5].weight.clone()
    tau = [1.0, 2.0, 0.5, 3.0, 1.5]
    eigenvector_init_(net[:3], images, ["0"], tau=tau[:4], signs="largest", match_norms=False)
    eigenvector_init_(net, images, ["2"], tau=tau, signs="largest", match_norms=False)
    first, second = literal_filters(images, np.array(tau))
    assert_close(net[0].weight, first)
    assert_close(net[2].weight, second)
    assert torch.equal(net[5].weight, head)


@pytest.mark.spec("2.P37")
def test_one_call_does_all_convolutions_in_order():
    images, both, stepwise = correlated_images(), small_cnn(), small_cnn()
    eigenvector_init_(both, images, tau="f1", generator=seeded(2))
    generator = seeded(2)
    for name in ("0", "2"):
        eigenvector_init_(stepwise, images, [name], tau="f1", generator=generator)
    for one, other in zip(both.parameters(), stepwise.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.spec("2.P37")
def test_row_norms_are_tau_before_norms_are_matched():
    images, net = correlated_images(), small_cnn()
    eigenvector_init_(net, images, tau="f3", match_norms=False)
    assert net[2].weight.shape == (5, 4, 3, 3)
    assert_close(net[2].weight.flatten(1).norm(dim=1), tau_curve("f3", 5))
    matched = small_cnn()
    norms = [matched[i].weight.detach().norm() for i in (0, 2)]
    eigenvector_init_(matched, images, tau="f3")
    assert_close(torch.stack([matched[i].weight.norm() for i in (0, 2)]), torch.stack(norms))
    ratio = matched[2].weight.flatten(1).norm(dim=1) / tau_curve("f3", 5)
    assert_close(ratio, ratio[0].item() * np.ones(5))


def test_selection_of_table_6_takes_one_offset_per_layer():
    images, net = correlated_images(), small_cnn()
    eigenvector_init_(net, images, first={"0": 4, "2": 10}, signs="+1", match_norms=False)
    moments = input_moments(net, images, ["2"])["2"].covariance()
    _, vectors = reference.eigenvectors(moments.numpy())
    overlap = np.abs(net[2].weight.detach().flatten(1).numpy() @ vectors)
    assert_close(overlap[:, 9:14], np.eye(5), scale=1e2)


@pytest.mark.spec("2.P37")
def test_more_filters_than_dimensions_are_refused():
    net = nn.Sequential(nn.Conv2d(1, 16, 3), nn.Flatten(), nn.Linear(144, 2))
    with pytest.raises(ShapeError, match=r"layer '0'.*16 dimensions"):
        eigenvector_init_(net, torch.randn(30, 1, 5, 5, generator=seeded()))


def test_filters_are_those_that_the_instrument_takes_from_eigenvectors():
    images, one, other = correlated_images(), small_cnn(), small_cnn()
    covariance_init_(one, images, "0", filters="eigenvectors", generator=seeded())
    eigenvector_init_(other, images, "0", generator=seeded())
    assert torch.equal(one[0].weight, other[0].weight)


def test_a_users_own_network_is_filled_in_running_order():
    require_running_order(eigenvector_init_)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda net, x: eigenvector_init_(net, x, "nothing"), UnknownNameError),
        (lambda net, x: eigenvector_init_(net, x, ["1"]), DomainError),
        (lambda net, x: eigenvector_init_(net, x, tau=[1.0, 2.0]), ShapeError),
        (lambda net, x: eigenvector_init_(net, x, first=16), ShapeError),
        (lambda net, x: eigenvector_init_(net, 0 * x, tau=[0.0] * 4, layers="0"), DomainError),
    ],
    ids=["name", "relu", "tau", "offset", "zero"],
)
def test_bad_input(call, error):
    with pytest.raises(error):
        call(small_cnn(), correlated_images())
