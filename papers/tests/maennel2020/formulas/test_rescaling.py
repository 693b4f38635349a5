"""Norms of layers given to a trained network."""

from copy import deepcopy

import pytest
import torch
from torch import nn

from tests import networks
from tests.tolerances import assert_close
from theodolite.errors import DomainError, UnknownNameError
from theodolite_papers.maennel2020.formulas.rescaling import layer_norms, rescale_to_


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def biased(net, size=0.3, seed=7):
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(0, size, generator=seeded(seed))
    return net


def trained(build, seed=3):
    """A network whose layers moved away from their initial norms."""
    net = build()
    with torch.no_grad():
        for index, parameter in enumerate(net.parameters()):
            parameter.add_(torch.randn(parameter.shape, generator=seeded(seed + index)) * 0.2)
            parameter.mul_(1 + index)
    return net


def deep(bias=True):
    return networks.mlp([6, 20, 15, 4], bias=bias, generator=seeded()).double()


def cnn():
    return networks.cnn().double()


@pytest.mark.spec("2.P41")
@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("build", [deep, cnn], ids=["mlp", "cnn"])
def test_stored_norms_are_restored_over_weight_and_bias(build, order):
    start = build()
    stored = layer_norms(start, order=order)
    net = trained(lambda: deepcopy(start))
    before = deepcopy(net)
    rescale_to_(net, stored, order=order)
    for name, norm in stored.items():
        layer, old = net.get_submodule(name), before.get_submodule(name)
        values = torch.cat([layer.weight.flatten(), layer.bias])
        assert_close(torch.linalg.vector_norm(values, order), norm, scale=norm)
        ratio = layer.weight / old.weight  # one constant for weight and bias
        assert_close(ratio, ratio.flatten()[0].item() + 0 * ratio.detach())
        assert_close(layer.bias / old.bias, ratio.flatten()[0].item() + 0 * layer.bias.detach())


@pytest.mark.spec("2.P41")
@pytest.mark.parametrize("build", [lambda: deep(bias=False), cnn], ids=["mlp", "cnn"])
def test_without_biases_predictions_are_scaled_by_one_number(build):
    net = trained(build)
    for name, parameter in net.named_parameters():
        if name.endswith("bias"):
            nn.init.zeros_(parameter)
    shape = (50, 6) if isinstance(net[1], nn.Linear) else (50, 1, 6, 6)
    x = torch.randn(shape, generator=seeded(5), dtype=torch.float64)
    before = net(x).detach()
    rescale_to_(net, build())
    after = net(x).detach()
    ratio = (after * before).sum() / before.square().sum()
    assert ratio > 0
    assert abs(ratio - 1) > 0.1
    assert_close(after, ratio * before, scale=float(after.abs().max()))
    assert torch.equal(after.argmax(1), before.argmax(1))


@pytest.mark.spec("2.P41")
def test_with_biases_the_literal_rule_changes_predictions_and_the_cumulative_rule_does_not():
    x = torch.randn(200, 6, generator=seeded(5), dtype=torch.float64)
    literal, cumulative = (biased(trained(deep)) for _ in range(2))
    before = literal(x).detach()
    rescale_to_(literal, deep())
    assert (literal(x).argmax(1) != before.argmax(1)).any()
    rescale_to_(cumulative, deep(), keep="predictions", inputs=x)
    after = cumulative(x).detach()
    ratio = (after * before).sum() / before.square().sum()
    assert ratio > 0
    assert_close(after, ratio * before, scale=float(after.abs().max()))
    expected = layer_norms(deep(), bias=False)
    for name, norm in layer_norms(cumulative, bias=False).items():
        assert_close(norm, expected[name], scale=norm)


def test_chosen_layers_only():
    net, start = trained(deep), deep()
    x = torch.randn(20, 6, generator=seeded(5), dtype=torch.float64)
    kept, before = net.fc2.weight.clone(), net(x).detach()
    rescale_to_(net, start, keep="predictions", layers="fc1", inputs=x)
    assert_close(layer_norms(net, bias=False)["fc1"], layer_norms(start, bias=False)["fc1"])
    assert torch.equal(net.fc2.weight, kept)
    ratio = (net(x) / before).detach()
    assert_close(ratio, ratio[0, 0].item() + 0 * ratio, scale=10)


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.inner, self.head = nn.Linear(6, 5), nn.Linear(5, 5), nn.Linear(5, 2)

    def forward(self, x):
        x = torch.relu(self.stem(x))
        return self.head(x + torch.relu(self.inner(x)))


class Plain(Residual):
    def forward(self, x):
        return self.head(torch.relu(self.inner(torch.relu(self.stem(x)))))


@pytest.mark.parametrize("keep", ["norms", "predictions"])
@pytest.mark.parametrize(
    ("build", "shape"),
    [
        (Residual, (4, 6)),
        (lambda: nn.Sequential(Residual(), nn.ReLU(), nn.Linear(2, 2)), (4, 6)),
        (lambda: networks.ResidualNet().eval(), (2, 3, 8, 8)),
    ],
    ids=["block", "nested", "wide_resnet"],
)
def test_residual_networks_are_refused_and_left_alone(build, shape, keep):
    net = build()
    saved = deepcopy(net.state_dict())
    reference = layer_norms(net)
    with pytest.raises(DomainError, match="residual"):
        rescale_to_(net, reference, keep=keep)
    with pytest.raises(DomainError, match="residual"):
        rescale_to_(net, reference, keep=keep, inputs=torch.randn(shape, generator=seeded()))
    assert all(torch.equal(value, saved[key]) for key, value in net.state_dict().items())


@pytest.mark.parametrize("keep", ["norms", "predictions"])
def test_a_plain_network_of_ones_own_needs_a_few_examples(keep):
    torch.manual_seed(0)
    net, start, x = Plain().double(), Plain().double(), torch.randn(9, 6, dtype=torch.float64)
    with pytest.raises(DomainError, match="inputs="):
        rescale_to_(net, start, keep=keep)
    rescale_to_(net, start, keep=keep, inputs=x)
    norms, expected = (layer_norms(item, bias=keep == "norms") for item in (net, start))
    assert_close(list(norms.values()), list(expected.values()))


def test_predictions_that_cannot_be_kept_leave_the_model_as_it_was():
    net = networks.mlp([6, 5, 2], "tanh", generator=seeded())
    saved = deepcopy(net.state_dict())
    x = torch.randn(9, 6, generator=seeded())
    halves = {name: norm / 2 for name, norm in layer_norms(net).items()}
    with pytest.raises(DomainError, match="does not scale"):
        rescale_to_(net, halves, keep="predictions")
    with pytest.raises(DomainError, match="did not scale"):
        rescale_to_(net, halves, keep="predictions", inputs=x)
    assert all(torch.equal(value, saved[key]) for key, value in net.state_dict().items())
    rescale_to_(net, halves)
    assert abs(layer_norms(net)["fc1"] - halves["fc1"]) < 1e-5


def test_bad_references():
    zero = deep()
    nn.init.zeros_(zero.fc2.weight)
    for net, reference in ((zero, deep()), (deep(), zero)):
        with pytest.raises(DomainError, match=r"'fc2'.*positive norm"):
            rescale_to_(net, reference)
    with pytest.raises(UnknownNameError, match="fc9"):
        rescale_to_(deep(), {"fc9": 1.0})
    with pytest.raises(UnknownNameError, match="reference"):
        rescale_to_(deep(), {"fc1": 1.0}, layers="fc2")
    shared = nn.Linear(4, 4)
    with pytest.raises(DomainError, match="used once"):
        rescale_to_(nn.Sequential(shared, nn.ReLU(), shared), {"0": 1.0})
    with pytest.raises(DomainError, match="order"):
        layer_norms(deep(), order=3)
