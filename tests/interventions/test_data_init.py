"""Initialisation from data: covariances, eigenvectors, order of layers, norms."""

from copy import deepcopy
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from tests import networks
from tests.reference import interventions as reference
from tests.tolerances import assert_close
from theodolite import interventions
from theodolite.engine import input_moments, weight_covariance
from theodolite.errors import DomainError, ShapeError, UnknownNameError
from theodolite.interventions import (
    covariance_init_,
    sample_filters,
    tau_curve,
)
from theodolite_papers.maennel2020.formulas.eigenvector_init import (
    Directions,
    eigenvector_filters,
    eigenvector_init_,
)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def low_rank(d=6, rank=3, seed=1):
    factor = torch.randn(d, rank, generator=seeded(seed), dtype=torch.float64)
    return factor @ factor.T


def correlated_images(n=40, channels=2, size=7):
    """Neighbouring pixels alike, with means that differ by channel."""
    noise = torch.randn(n, channels, size, size, generator=seeded(3), dtype=torch.float64)
    smooth = nn.functional.avg_pool2d(noise, 3, stride=1, padding=1)
    return smooth + torch.arange(channels).view(1, -1, 1, 1)


def small_cnn(**options):
    net = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Conv2d(4, 5, 3), nn.ReLU(), nn.Flatten(), nn.Linear(45, 3)
    )
    return interventions.initialize_(net.double(), "he", generator=seeded(), **options)


class Named(nn.Module):
    """Registered in another order than run, with a batch norm and a bias that is not zero."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 2)
        self.second = nn.Conv2d(3, 4, 3, padding=1, stride=2)
        self.norm = nn.BatchNorm2d(3)
        self.first = nn.Conv2d(2, 3, 3, padding=1)

    def forward(self, x):
        x = torch.relu(self.norm(self.first(x)))
        return self.head(torch.relu(self.second(x)).mean((2, 3)))


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


# --- eigenvectors -----------------------------------------------------------------------------


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


def test_tau_as_a_function_of_the_standard_deviations():
    sigma = torch.diag(torch.tensor([9.0, 4.0, 1.0], dtype=torch.float64))
    filters = eigenvector_filters(sigma, 3, tau=lambda s: 1 / s, signs="largest")
    assert_close(filters.T @ sigma @ filters, torch.eye(3))


# --- layer by layer ---------------------------------------------------------------------------


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


@pytest.mark.spec("2.P37")
def test_more_filters_than_dimensions():
    net = nn.Sequential(nn.Conv2d(1, 16, 3), nn.Flatten(), nn.Linear(144, 2))
    images = torch.randn(30, 1, 5, 5, generator=seeded())
    with pytest.raises(ShapeError, match=r"layer '0'.*16 dimensions"):
        eigenvector_init_(net, images)
    covariance_init_(net, images, generator=seeded())
    assert torch.linalg.matrix_rank(net[0].weight.flatten(1)) == 9


def test_selection_of_table_6_takes_one_offset_per_layer():
    images, net = correlated_images(), small_cnn()
    eigenvector_init_(net, images, first={"0": 4, "2": 10}, signs="+1", match_norms=False)
    moments = input_moments(net, images, ["2"])["2"].covariance()
    _, vectors = reference.eigenvectors(moments.numpy())
    overlap = np.abs(net[2].weight.detach().flatten(1).numpy() @ vectors)
    assert_close(overlap[:, 9:14], np.eye(5), scale=1e2)


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
    eigenvector_init_(literal, images, ["0"], generator=generator)
    covariance_init_(literal, images, ["2"], filters="sampled", generator=generator)
    assert literal[2].weight[0].numel() < 40
    assert all(
        torch.equal(a, b) for a, b in zip(default.parameters(), literal.parameters(), strict=True)
    )


def test_the_way_to_make_filters_can_be_chosen():
    images = correlated_images().float()
    torch.manual_seed(0)
    sampled, vectors = small_cnn().float(), small_cnn().float()
    eigen = deepcopy(vectors)
    covariance_init_(sampled, images, "0", filters="sampled", generator=seeded())
    covariance_init_(vectors, images, "0", filters="eigenvectors", generator=seeded())
    eigenvector_init_(eigen, images, "0", generator=seeded())
    assert torch.equal(vectors[0].weight, eigen[0].weight)

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
    [covariance_init_, partial(covariance_init_, filters="sampled"), eigenvector_init_],
    ids=["default", "sampled", "eigenvectors"],
)
def test_a_users_own_network_is_filled_in_running_order(init):
    """Registration order is reversed; the second layer must see the new first one."""
    torch.manual_seed(0)
    images, net = correlated_images().float(), Named()
    net.first.bias.data.fill_(1.0)
    head, norms = net.head.weight.clone(), net.second.weight.norm()
    init(net, images, tau="f1", generator=seeded())
    assert net.training
    assert net.norm.num_batches_tracked == 0
    assert not net.first.bias.any()
    assert torch.equal(net.head.weight, head)
    assert torch.allclose(net.second.weight.norm(), norms)
    data = input_moments(net.eval(), images, ["second"])["second"].covariance()
    _, vectors = reference.eigenvectors(data.numpy())
    leading = torch.from_numpy(vectors[:, :4].copy()).float()
    rows = net.second.weight.detach().flatten(1)
    # Filters lie in the span of the four leading directions of what this layer sees now.
    assert torch.allclose(rows @ leading @ leading.T, rows, atol=1e-4 * norms.item())


def test_linear_networks_fill_all_but_the_last_layer():
    net = networks.mlp([8, 6, 4, 2], generator=seeded())
    x = torch.randn(100, 8, generator=seeded())
    old = [p.clone() for p in net.parameters()]
    eigenvector_init_(net, x, generator=seeded())
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
    eigenvector_init_(net, correlated_images(), ["3"], match_norms=False)
    assert_close(net[3].weight.flatten(1).norm(dim=1), torch.ones(2))


def test_loaders_and_generators_of_batches_give_the_same_filters():
    images = correlated_images()
    nets = [small_cnn() for _ in range(3)]
    eigenvector_init_(nets[0], images, signs="largest")
    eigenvector_init_(nets[1], [(part, None) for part in images.split(16)], signs="largest")
    eigenvector_init_(nets[2], iter(images.split(16)), signs="largest")
    for net in nets[1:]:
        assert_close(net[2].weight, nets[0][2].weight.detach())


def test_grouped_convolutions_pool_their_groups():
    net = nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), nn.Flatten(), nn.Linear(100, 2)).double()
    eigenvector_init_(net, correlated_images(), match_norms=False)
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
    eigenvector_init_(net, x, ["0"], signs="largest", match_norms=False)
    twin = nn.Sequential(nn.Linear(8, 3), nn.ReLU(), nn.Linear(3, 2))
    eigenvector_init_(twin, x, ["0"], signs="largest", match_norms=False)
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
    eigenvector_init_(net, x, "inner", signs="largest", match_norms=False)
    expected = eigenvector_filters(torch.cov(rows.T, correction=0), 4, signs="largest")
    assert_close(net.inner.weight, expected)


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
        (lambda net, x: eigenvector_init_(net, x, "nothing"), UnknownNameError),
        (lambda net, x: eigenvector_init_(net, x, ["1"]), DomainError),
        (lambda net, x: eigenvector_init_(net, x, tau=[1.0, 2.0]), ShapeError),
        (lambda net, x: eigenvector_init_(net, x, first=16), ShapeError),
        (lambda net, x: eigenvector_init_(net, 0 * x, tau=[0.0] * 4, layers="0"), DomainError),
        (
            lambda net, x: covariance_init_(net, x, covariances={"9": torch.eye(2)}),
            UnknownNameError,
        ),
        (lambda net, x: covariance_init_(net, x, covariances={"0": torch.eye(2)}), ShapeError),
        (lambda net, x: covariance_init_(net, None), DomainError),
        (lambda net, x: covariance_init_(net, x, covariances={"0": -torch.eye(18)}), DomainError),
    ],
    ids=["name", "relu", "tau", "offset", "zero", "unknown", "shape", "no-data", "negative"],
)
def test_bad_input(call, error):
    with pytest.raises(error):
        call(small_cnn(), correlated_images())
