"""Initialisation from data: covariances, eigenvectors, order of layers, norms."""

from copy import deepcopy
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from tests import networks
from tests.interventions.subjects import (
    correlated_images,
    low_rank,
    require_running_order,
    seeded,
    small_cnn,
)
from tests.reference import interventions as reference
from tests.tolerances import assert_close
from theodolite.engine import input_moments, weight_covariance
from theodolite.errors import DomainError, ShapeError, UnknownNameError
from theodolite.interventions import (
    covariance_init_,
    sample_filters,
    tau_curve,
)

# --- sampling ---------------------------------------------------------------------------------


@pytest.mark.spec("2.P35")
def test_samples_of_a_singular_covariance_stay_in_its_range():
    sigma = low_rank()
    filters = sample_filters(sigma, 500, generator=seeded())
    values, vectors = torch.linalg.eigh(sigma)
    outside = vectors[:, values < 1e-9 * values[-1]]
    assert outside.shape[1] == 3
    assert (filters @ outside).abs().max() < 1e-12 * filters.abs().max()


@pytest.mark.spec("2.P35")
def test_samples_reproduce_the_covariance_at_the_rate_of_the_root():
    """The squared error of a Gaussian sample covariance is (tr(S)^2 + |S|^2)/n on average."""
    sigma = low_rank()
    expected = float(sigma.trace() ** 2 + sigma.square().sum())
    for count in (100, 10_000):
        errors = [
            float((filters.T @ filters / count - sigma).square().sum())
            for seed in range(40)
            for filters in [sample_filters(sigma, count, generator=seeded(seed))]
        ]
        mean, spread = np.mean(errors), np.std(errors) / np.sqrt(len(errors))
        assert abs(mean - expected / count) < 4 * spread
        assert spread < 0.3 * mean


@pytest.mark.spec("2.P35")
def test_mean_of_samples_is_zero():
    filters = sample_filters(torch.eye(4, dtype=torch.float64), 10_000, generator=seeded())
    assert filters.mean(0).abs().max() < 4 / 100


def test_float32_singular_covariance_is_accepted_and_keeps_its_range():
    sigma = low_rank().float()
    filters = sample_filters(sigma, 50, generator=seeded())
    assert filters.dtype == torch.float32
    assert torch.linalg.matrix_rank(filters, rtol=1e-4) == 3


def test_numpy_in_numpy_out():
    assert isinstance(sample_filters(np.eye(3), 2, generator=seeded()), np.ndarray)


@pytest.mark.parametrize(
    ("name", "start"), [("f1", [1, 2.5, 4]), ("f2", [1, 1, 1]), ("f3", [3, 3.5, 4])]
)
def test_tau_curves_of_the_paper(name, start):
    curve = tau_curve(name, 16)
    assert curve[:3].tolist() == start
    assert curve[-1] == 1
    falls = curve[2:].diff()
    assert_close(falls, np.full(13, falls[0].item()))
    assert [len(tau_curve(name, count)) for count in (1, 2, 3, 4)] == [1, 2, 3, 4]


# --- layer by layer ---------------------------------------------------------------------------


@pytest.mark.spec("2.P37")
def test_more_filters_than_dimensions_are_sampled():
    net = nn.Sequential(nn.Conv2d(1, 16, 3), nn.Flatten(), nn.Linear(144, 2))
    covariance_init_(net, torch.randn(30, 1, 5, 5, generator=seeded()), generator=seeded())
    assert torch.linalg.matrix_rank(net[0].weight.flatten(1)) == 9


@pytest.mark.spec("2.P35")
def test_covariance_of_many_sampled_filters_is_the_requested_one():
    images = correlated_images()
    net = nn.Sequential(nn.Conv2d(2, 20_000, 3, bias=False), nn.Flatten()).double()
    covariance_init_(net, images, tau=[3.0, 2.0, 1.0], match_norms=False, generator=seeded())
    rows = net[0].weight.detach().flatten(1)
    data = input_moments(net, images, ["0"])["0"].covariance()
    _, vectors = reference.eigenvectors(data.numpy())
    expected = sum(t**2 * np.outer(e, e) for t, e in zip((3, 2, 1), vectors.T, strict=False))
    error = np.linalg.norm((rows.T @ rows / len(rows)).numpy() - expected)
    typical = np.sqrt((np.trace(expected) ** 2 + np.sum(expected**2)) / len(rows))
    assert 0.2 * typical < error < 2 * typical


def test_sampling_from_an_assumed_transfer_function():
    """tau = sigma draws filters that have the covariance of the patches."""
    images = correlated_images()
    net = nn.Sequential(nn.Conv2d(2, 20_000, 3, bias=False), nn.Flatten()).double()
    covariance_init_(net, images, tau=lambda sigma: sigma, match_norms=False, generator=seeded())
    data = input_moments(net, images, ["0"])["0"].covariance()
    typical = torch.sqrt((data.trace() ** 2 + data.square().sum()) / 20_000)
    assert (weight_covariance(net[0], centered=False) - data).norm() < 2 * typical


def test_learned_covariances_need_no_images():
    net = nn.Sequential(nn.Linear(6, 5000), nn.ReLU(), nn.Linear(5000, 2)).double()
    untouched_weight, sigma = net[2].weight.clone(), low_rank()
    covariance_init_(net, covariances={"0": sigma}, match_norms=False, generator=seeded())
    typical = torch.sqrt((sigma.trace() ** 2 + sigma.square().sum()) / 5000)
    assert (weight_covariance(net[0], centered=False) - sigma).norm() < 4 * typical
    assert not net[0].bias.any()
    assert torch.equal(net[2].weight, untouched_weight)


def test_given_and_measured_covariances_mix():
    images, net = correlated_images(), small_cnn()
    old = net[2].weight.clone()
    one_filter = torch.zeros(18, 18, dtype=torch.float64)
    one_filter[0, 0] = 1.0
    covariance_init_(net, images, ["0", "2"], covariances={"0": one_filter}, generator=seeded())
    assert (net[0].weight.flatten(1)[:, 1:] == 0).all()
    assert not torch.equal(net[2].weight, old)


def test_the_default_is_what_the_benchmark_shows_to_work_best():
    """Eigenvectors in layers with no more filters than directions, samples in the others."""
    images = correlated_images().float()
    torch.manual_seed(0)
    default = nn.Sequential(
        nn.Conv2d(images.shape[1], 4, 3), nn.ReLU(), nn.Conv2d(4, 40, 3), nn.Flatten()
    )
    literal = deepcopy(default)
    covariance_init_(default, images, generator=seeded())
    generator = seeded()
    covariance_init_(literal, images, ["0"], filters="eigenvectors", generator=generator)
    covariance_init_(literal, images, ["2"], filters="sampled", generator=generator)
    assert literal[2].weight[0].numel() < 40
    assert all(
        torch.equal(a, b) for a, b in zip(default.parameters(), literal.parameters(), strict=True)
    )


def test_the_way_to_make_filters_can_be_chosen():
    images = correlated_images().float()
    torch.manual_seed(0)
    sampled, vectors = small_cnn().float(), small_cnn().float()
    covariance_init_(sampled, images, "0", filters="sampled", generator=seeded())
    covariance_init_(vectors, images, "0", filters="eigenvectors", generator=seeded())

    def overlap(net):
        rows = functional.normalize(net[0].weight.detach().flatten(1))
        return (rows @ rows.T - torch.eye(len(rows))).abs().max()

    assert overlap(vectors) < 1e-5 < 0.1 < overlap(sampled)
    with pytest.raises(ShapeError, match="layer '0': "):
        covariance_init_(
            nn.Sequential(nn.Linear(3, 9), nn.Linear(9, 2)),
            torch.randn(50, 3),
            filters="eigenvectors",
        )


# --- any model --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "init",
    [covariance_init_, partial(covariance_init_, filters="sampled")],
    ids=["default", "sampled"],
)
def test_a_users_own_network_is_filled_in_running_order(init):
    require_running_order(init)


def test_linear_networks_fill_all_but_the_last_layer():
    net = networks.mlp([8, 6, 4, 2], generator=seeded())
    x = torch.randn(100, 8, generator=seeded())
    old = [p.clone() for p in net.parameters()]
    covariance_init_(net, x, filters="eigenvectors", generator=seeded())
    changed = [not torch.equal(a, b) for a, b in zip(old, net.parameters(), strict=True)]
    assert changed == [True, False, True, False, False, False]  # biases were zero
    hidden = net[:3](x)
    outputs = (hidden @ net.fc2.weight.T).detach().double()
    covariance = torch.cov(outputs.T)
    assert (covariance - covariance.diag().diag()).abs().max() < 1e-5 * covariance.max()


def test_maps_smaller_than_the_kernel_are_padded_as_the_layer_does():
    net = nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(7), nn.Conv2d(3, 2, 3, padding=1)
    ).double()
    covariance_init_(net, correlated_images(), ["3"], filters="eigenvectors", match_norms=False)
    assert_close(net[3].weight.flatten(1).norm(dim=1), torch.ones(2))


def test_loaders_and_generators_of_batches_give_the_same_filters():
    images = correlated_images()
    nets = [small_cnn() for _ in range(3)]
    batches = [(part, None) for part in images.split(16)]
    for net, data in zip(nets, (images, batches, iter(images.split(16))), strict=True):
        covariance_init_(net, data, filters="eigenvectors", generator=seeded())
    for net in nets[1:]:
        assert_close(net[2].weight, nets[0][2].weight.detach())


def test_grouped_convolutions_pool_their_groups():
    net = nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), nn.Flatten(), nn.Linear(100, 2)).double()
    covariance_init_(net, correlated_images(), filters="eigenvectors", match_norms=False)
    rows = net[0].weight.detach().flatten(1)
    assert_close(rows @ rows.T, torch.eye(4))


class Conv1D(nn.Module):
    """GPT-2's linear layer: one column per neuron."""

    def __init__(self, outputs, inputs):
        super().__init__()
        self.nf = outputs
        self.weight = nn.Parameter(torch.ones(inputs, outputs))
        self.bias = nn.Parameter(torch.ones(outputs))

    def forward(self, x):
        return x @ self.weight + self.bias


def test_columns_of_transposed_linear_layers_are_the_filters():
    net = nn.Sequential(Conv1D(3, 8), nn.ReLU(), nn.Linear(3, 2))
    x = torch.randn(50, 8, generator=seeded())
    twin = nn.Sequential(nn.Linear(8, 3), nn.ReLU(), nn.Linear(3, 2))
    for either in (net, twin):
        covariance_init_(
            either, x, ["0"], filters="eigenvectors", match_norms=False, generator=seeded()
        )
    assert torch.allclose(net[0].weight.T, twin[0].weight, atol=1e-5)
    assert not net[0].bias.any()


def test_a_layer_used_twice_sees_both_of_its_inputs():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4, bias=False, dtype=torch.float64)

        def forward(self, x):
            return self.inner(torch.cat([self.inner(x), x]))

    net, x = Twice(), torch.randn(50, 4, generator=seeded(), dtype=torch.float64)
    rows = torch.cat([x, x @ net.inner.weight.detach().T, x])
    covariance_init_(net, x, "inner", filters="eigenvectors", match_norms=False)
    _, vectors = reference.eigenvectors(reference.covariance(rows.numpy()))
    found = net.inner.weight.detach().numpy() @ vectors
    assert_close(np.abs(found), np.eye(4))


def test_one_seed_one_network():
    images, one, other = correlated_images(), small_cnn(), small_cnn()
    covariance_init_(one, images, generator=seeded(4))
    covariance_init_(other, images, generator=seeded(4))
    assert torch.equal(one[2].weight, other[2].weight)
    covariance_init_(other, images, generator=seeded(5))
    assert not torch.equal(one[2].weight, other[2].weight)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda net, x: covariance_init_(net, x, "nothing"), UnknownNameError),
        (lambda net, x: covariance_init_(net, x, ["1"]), DomainError),
        (lambda net, x: covariance_init_(net, x, tau=[1.0, 2.0]), ShapeError),
        (lambda net, x: covariance_init_(net, 0 * x, tau=[0.0] * 4, layers="0"), DomainError),
        (
            lambda net, x: covariance_init_(net, x, covariances={"9": torch.eye(2)}),
            UnknownNameError,
        ),
        (lambda net, x: covariance_init_(net, x, covariances={"0": torch.eye(2)}), ShapeError),
        (lambda net, x: covariance_init_(net, None), DomainError),
        (lambda net, x: covariance_init_(net, x, covariances={"0": -torch.eye(18)}), DomainError),
    ],
    ids=["name", "relu", "tau", "zero", "unknown", "shape", "no-data", "negative"],
)
def test_bad_input(call, error):
    with pytest.raises(error):
        call(small_cnn(), correlated_images())
