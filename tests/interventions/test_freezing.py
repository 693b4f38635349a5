"""Frozen layers."""

from copy import deepcopy
from math import sqrt

import pytest
import torch
from torch.nn import functional

from tests import networks
from tests.networks import mlp_of_seed, seeded
from tests.tolerances import assert_close
from theodolite.engine import forward_kernel, tangent_alignments
from theodolite.errors import DomainError, UnknownNameError
from theodolite.interventions import freeze_except_, init_weight_


def digits_like(n=30):
    labels = torch.arange(n) % 3
    centers = torch.randn(3, 8, generator=seeded(1), dtype=torch.float64)
    x = centers[labels] + 0.5 * torch.randn(n, 8, generator=seeded(2), dtype=torch.float64)
    return functional.normalize(x), labels


@pytest.mark.spec("4.P100")
def test_with_frozen_layers_only_backward_signals_change():
    x, labels = digits_like()
    net = networks.mlp([8, 16, 16, 16, 3], bias=False, generator=seeded()).double()
    freeze_except_(net)
    names = ["fc1", "fc2", "fc3", "fc4"]
    whole = deepcopy(net).requires_grad_(True)
    before = tangent_alignments(whole, x, labels).curve
    kernels = [forward_kernel(whole, x, name) for name in names]
    optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.5)
    for _ in range(100):
        optimizer.zero_grad()
        functional.cross_entropy(net(x), labels).backward()
        optimizer.step()
    whole = deepcopy(net).requires_grad_(True)
    after = tangent_alignments(whole, x, labels).curve
    for name, kernel in zip(names, kernels, strict=True):
        assert torch.equal(forward_kernel(whole, x, name), kernel)
    assert_close(after[-1], before[-1])
    assert ((after - before)[:-1].abs() > 1e-3).all()


@pytest.mark.spec("4.P102")
def test_noise_scale_draws_the_trainable_layer_and_leaves_the_others():
    net = networks.mlp([8, 1000, 400], generator=seeded())
    first = net.fc1.weight.clone()
    weight = init_weight_(freeze_except_(net).fc2.weight, "he", 0.3, seeded(4)).detach()
    assert abs(weight.std() / (0.3 * sqrt(2 / 1000)) - 1) < 4 / sqrt(2 * weight.numel())
    assert torch.equal(net.fc1.weight, first)


@pytest.mark.spec("4.P102")
def test_noise_scale_is_a_factor_and_leaves_alignments_as_they_are():
    """With one seed, another scale multiplies the head; every layer's alignment stays."""
    x, labels = digits_like()
    curves, heads = [], []
    for scale in (1.0, 0.05):
        net = networks.mlp([8, 16, 16, 3], bias=False, generator=seeded())
        init_weight_(freeze_except_(net).fc3.weight, "he", scale, seeded(4))
        net.double()
        heads.append(net.fc3.weight.detach())
        curves.append(tangent_alignments(net.requires_grad_(True), x, labels).curve)
    assert_close(heads[1], 0.05 * heads[0], dtype=torch.float32)
    assert_close(curves[1], curves[0], dtype=torch.float32)


def test_any_subset_stays_trainable():
    net = freeze_except_(mlp_of_seed(1), ["fc1", "fc3"])
    assert [p.requires_grad for p in net.parameters()] == [True, True, False, False] * 2
    freeze_except_(net)
    assert [p.requires_grad for p in net.parameters()] == [False] * 6 + [True] * 2


def test_bad_choices():
    with pytest.raises(UnknownNameError):
        freeze_except_(mlp_of_seed(1), "fc9")
    with pytest.raises(DomainError):
        freeze_except_(mlp_of_seed(1), "act1")
