"""Scale of the first layer: spec 5."""

from math import sqrt

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests import networks
from tests.tolerances import assert_close
from theodolite.errors import DomainError
from theodolite.measures.gradient import in_class_alignment, relative_norm
from theodolite_papers.mehta2021.formulas.scale_init import scale_init_


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def examples(n=60, d=40, classes=3):
    """Inputs of length sqrt(d) in loose clusters, and their classes."""
    labels = torch.arange(n) % classes
    centers = torch.randn(classes, d, generator=seeded(1), dtype=torch.float64)
    x = centers[labels] + torch.randn(n, d, generator=seeded(2), dtype=torch.float64)
    return functional.normalize(x) * sqrt(d), labels


def scaled_net(activation, sigma, width=400, seed=0):
    net = networks.mlp([40, width, 3], activation, bias=False).double()
    return scale_init_(net, sigma, generator=seeded(seed))


def hidden_alignment(net):
    x, labels = examples()
    return in_class_alignment(net[:3](x).detach(), labels)


def test_first_layer_normal_others_glorot_biases_zero():
    net = nn.Sequential(nn.Conv2d(3, 64, 5), nn.ReLU(), nn.Flatten(), nn.Linear(64, 500))
    scale_init_(net, 7.0, generator=seeded())
    weight = net[0].weight.detach()
    assert abs(weight.std() / 7 - 1) < 4 / sqrt(2 * weight.numel())
    assert abs((weight / 7).pow(4).mean() - 3) < 4 * sqrt(96 / weight.numel())
    bound = sqrt(6 / 564)
    other = net[3].weight.detach()
    assert 0.99 * bound < other.abs().max() <= bound
    assert abs(other.var() / (2 / 564) - 1) < 4 * sqrt(0.8 / other.numel())
    assert not net[0].bias.any()
    assert not net[3].bias.any()


def test_scale_on_chosen_layers():
    net = networks.mlp([50, 60, 70, 5])
    scale_init_(net, 3.0, ["fc1", "fc2"], generator=seeded())
    assert abs(net.fc2.weight.std() / 3 - 1) < 0.05
    assert net.fc3.weight.abs().max() < sqrt(6 / 75)


@pytest.mark.spec("5.P42")
@pytest.mark.parametrize("activation", ["relu", "linear"])
def test_hidden_alignment_does_not_depend_on_scale_for_homogeneous_activations(activation):
    reference = hidden_alignment(scaled_net(activation, 1.0))
    for sigma in (0.001, 0.01, 0.1, 10.0):
        assert_close(hidden_alignment(scaled_net(activation, sigma)), reference)
    assert not torch.isclose(hidden_alignment(scaled_net("sin", 1.0)), reference, atol=0.05)


@pytest.mark.spec("5.P43")
def test_small_scale_makes_sin_linear_and_sigmoid_constant():
    linear = hidden_alignment(scaled_net("linear", 1.0))
    assert abs(hidden_alignment(scaled_net("sin", 1e-5)) - linear) < 1e-7
    assert abs(hidden_alignment(scaled_net("sigmoid", 1e-5)) - 1) < 1e-7


@pytest.mark.spec("5.P43")
def test_large_scale_makes_sigmoid_a_step():
    x, labels = examples()
    net = scaled_net("sigmoid", 1.0)
    step = (x @ net.fc1.weight.T > 0).double()
    at_infinity = in_class_alignment(step, labels)
    gaps = [
        float((hidden_alignment(scaled_net("sigmoid", sigma)) - at_infinity).abs())
        for sigma in (1.0, 100.0, 10_000.0)
    ]
    assert gaps[2] < 1e-4 < gaps[0]
    assert gaps == sorted(gaps, reverse=True)


def relative_gradient(activation, sigma):
    x, labels = examples()
    net = scaled_net(activation, sigma)
    functional.cross_entropy(net(x), labels).backward()
    return float(relative_norm(net.fc1.weight.grad, net.fc1.weight.detach()))


@pytest.mark.spec("5.P46")
@pytest.mark.parametrize("activation", ["sin", "relu"])
def test_relative_gradient_of_the_first_layer_falls_with_scale(activation):
    grid = [0.001, 0.01, 0.1, 1.0, 10.0]
    values = [relative_gradient(activation, sigma) for sigma in grid]
    assert values == sorted(values, reverse=True)
    assert 0.08 < values[-1] / values[-2] < 0.12  # inverse to sigma once phases are random


def test_what_it_does_not_scale_is_refused():
    with pytest.raises(DomainError, match="sigma"):
        scale_init_(nn.Sequential(nn.Linear(2, 2)), -1.0)
    with pytest.raises(DomainError, match="NTKLinear"):
        scale_init_(networks.ntk_mlp([4, 2]), 1.0)
    with pytest.raises(DomainError, match="ReLU has none"):
        scale_init_(nn.ReLU(), 1.0)
