"""Shapes, parameter counts and initial distributions, against the specifications' numbers."""

from math import sqrt

import pytest
import torch
from torch import nn

from theodolite import interventions
from theodolite.errors import DomainError, ShapeError, UnknownNameError
from theodolite_papers.lab import models
from theodolite_papers.mehta2021.formulas.scale_init import scale_init_

IMAGES = torch.zeros(2, 3, 32, 32)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def count(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


@pytest.mark.spec("2.P45")
@pytest.mark.spec("3.P58")
@pytest.mark.spec("5.P59")
@pytest.mark.parametrize(
    ("build", "parameters"),
    [
        (models.vgg16, 14_719_818),
        (models.resnet18, 11_173_962),
        (lambda: models.resnet50(1000), 25_557_032),
        (lambda: models.densenet121(1000), 7_978_856),
        (models.kernel_resnet, 9_062_464),
        (models.conv_net, 1_703_370),
        (lambda: models.ntk_mlp([784, 200, 200, 200, 200, 10]), 279_610),
        (lambda: models.mlp([784, 200, 200, 200, 200, 10]), 279_610),
        (lambda: models.mlp([3072, 1024, 10], bias=False), 3_155_968),
    ],
    ids=lambda value: value if isinstance(value, int) else "",
)
def test_parameter_counts(build, parameters):
    assert count(build()) == parameters


@pytest.mark.parametrize(
    "build",
    [
        models.vgg19,
        models.resnet18_v2,
        lambda: models.resnet18_v2(stem="cifar"),
        models.wide_resnet,
        lambda: models.resnet50(stem="cifar"),
        lambda: models.densenet121(stem="cifar"),
        models.simple_cnn_pooled,
        models.conv_net,
    ],
    ids=["vgg19", "v2", "v2-cifar", "wrn", "resnet50", "densenet", "pooled", "conv_net"],
)
def test_images_become_logits(build):
    with torch.no_grad():
        assert build().eval()(IMAGES[:1]).shape == (1, 10)


@pytest.mark.spec("2.P45")
@pytest.mark.parametrize("padding", ["same", "valid"])
@pytest.mark.parametrize("depth", [1, 4])
def test_simple_cnn_formula(depth, padding):
    network = models.simple_cnn(5, conv_layers=depth, filters=8, units=32, padding=padding)
    side = 32 if padding == "same" else 32 - 2 * depth
    convs = (27 + 1) * 8 + (depth - 1) * (72 + 1) * 8
    assert count(network) == convs + (8 * side**2 + 1) * 32 + 33 * 5
    assert network(IMAGES).shape == (2, 5)


@pytest.mark.spec("5.P59")
def test_conv_net_shapes():
    shapes, x = [], IMAGES[:1]
    for module in models.conv_net():
        x = module(x)
        shapes.append(tuple(x.shape[1:]))
    for shape in [(32, 32, 32), (32, 15, 15), (64, 11, 11), (64, 5, 5), (1600,), (1024,), (10,)]:
        assert shape in shapes


@pytest.mark.spec("3.P59")
def test_kernel_resnet_has_eleven_convolutions_and_ten_studied_layers():
    network = models.kernel_resnet().eval()
    assert sum(isinstance(module, nn.Conv2d) for module in network.modules()) == 11
    assert len(network.studied_layers) == 10
    seen = {}
    for name in network.studied_layers:
        network.get_submodule(name).register_forward_hook(
            lambda module, inputs, output, name=name: seen.__setitem__(name, output)
        )
    x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    outputs = network(x)
    assert list(seen) == list(network.studied_layers)
    assert seen["block3"].shape[1] == 512
    assert seen["flatten"].shape == (2, 256)
    assert torch.equal(outputs, seen["flatten"] @ network.head.weight.T)


@pytest.mark.spec("3.P59")
def test_skip_adds_no_parameters_and_a_silent_branch_is_the_identity():
    with_skip, without = models.kernel_resnet(skip=True), models.kernel_resnet(skip=False)
    assert count(with_skip) == count(without)
    block = with_skip.block1.eval()
    x = torch.randn(1, 128, 4, 4, generator=torch.Generator().manual_seed(0))
    nn.init.zeros_(block.second[1].weight)
    assert torch.equal(block(x), x)
    plain = without.block1.eval()
    nn.init.zeros_(plain.second[1].weight)
    assert not plain(x).any()


def test_output_scale(generator):
    seeds = [torch.Generator().manual_seed(1) for _ in range(2)]
    one = models.kernel_resnet(generator=seeds[0]).eval()
    fifth = models.kernel_resnet(output_scale=0.2, generator=seeds[1]).eval()
    x = torch.randn(1, 3, 32, 32, generator=generator)
    torch.testing.assert_close(fifth(x), 0.2 * one(x))


@pytest.mark.spec("3.P58")
def test_literal_parametrization_of_the_mnist_network():
    network = models.mlp(
        [784, 200, 200, 200, 200, 10],
        initializer="normal",
        scale=1 / sqrt(200),
        generator=torch.Generator().manual_seed(0),
    )
    for name, parameter in network.named_parameters():
        if name.endswith("bias"):
            assert not parameter.any()
        else:
            # 4 standard errors of a standard deviation over the entries of the weight
            error = 4 / sqrt(2 * parameter.numel())
            assert parameter.std().item() * sqrt(200) == pytest.approx(1.0, abs=error)


def test_ntk_parametrization_computes_the_same_function(generator):
    network = models.ntk_mlp([6, 5, 3], variance=1 / 200, generator=generator).double()
    x = torch.randn(4, 6, generator=generator).double()
    hidden = (x @ network.fc1.weight.T / sqrt(200)).relu()
    torch.testing.assert_close(network(x), hidden @ network.fc2.weight.T / sqrt(200))
    he = models.ntk_mlp([6, 5, 3], generator=generator)
    assert he.fc2.factor == pytest.approx(sqrt(2 / 5))


@pytest.mark.spec("2.P38")
@pytest.mark.parametrize("scale", [0.5, 2.0])
@pytest.mark.parametrize("shape", [(300, 100), (64, 16, 5, 5)], ids=["linear", "conv"])
def test_he_scale(shape, scale, generator):
    weight = interventions.init_weight_(torch.empty(shape), "he", scale, generator)
    fan_in = weight[0].numel()
    error = 4 / sqrt(2 * weight.numel())
    assert weight.std().item() / (scale * sqrt(2 / fan_in)) == pytest.approx(1, abs=error)


@pytest.mark.spec("2.P38")
@pytest.mark.parametrize("shape", [(5, 12), (12, 5), (4, 3, 2, 2)])
def test_orthogonal_scale(shape, generator):
    weight = interventions.init_weight_(torch.empty(shape).double(), "orthogonal", 3.0, generator)
    rows = weight.flatten(1)
    gram = rows @ rows.T if rows.shape[0] <= rows.shape[1] else rows.T @ rows
    torch.testing.assert_close(gram, 9 * torch.eye(len(gram)).double())


@pytest.mark.spec("5.P58")
@pytest.mark.parametrize("shape", [(400, 300), (64, 32, 3, 3)], ids=["linear", "conv"])
def test_glorot_range_and_variance(shape, generator):
    weight = interventions.init_weight_(torch.empty(shape), "glorot", generator=generator)
    fan_in, fan_out = interventions.fans(weight)
    bound = sqrt(6 / (fan_in + fan_out))
    assert weight.abs().max() <= bound
    assert weight.abs().max() > 0.99 * bound
    error = 4 / sqrt(weight.numel())
    assert weight.var().item() * (fan_in + fan_out) / 2 == pytest.approx(1, abs=error)


def test_scales_per_layer(generator):
    network = models.mlp([50, 40, 10], initializer="normal", scale=[10.0, 0.1], generator=generator)
    assert network.fc1.weight.std().item() == pytest.approx(10, rel=0.1)
    assert network.fc2.weight.std().item() == pytest.approx(0.1, rel=0.2)
    with pytest.raises(ShapeError, match=r"one entry per layer \(2\), got 1"):
        models.mlp([50, 40, 10], scale=[1.0])


def test_equal_seeds_give_equal_networks():
    def weights(seed):
        return models.resnet18_v2(generator=torch.Generator().manual_seed(seed)).state_dict()

    first, second, other = weights(0), weights(0), weights(1)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


@pytest.mark.parametrize("initializer", interventions.INITIALIZERS)
@pytest.mark.parametrize(
    "change",
    [
        lambda net, name, generator: interventions.initialize_(net, name, 2.0, generator),
        lambda net, name, generator: scale_init_(net, 0.5, generator=generator),
        lambda net, name, generator: models.replace_head_(
            net, 7, initializer=name, generator=generator
        ),
    ],
    ids=["initialize", "scale", "head"],
)
@pytest.mark.parametrize("device", ["meta", *(["cuda"] if torch.cuda.is_available() else [])])
def test_one_seed_gives_the_same_network_on_every_device(change, initializer, device):
    here, there = (models.mlp([6, 5, 4], generator=seeded()).to(at) for at in ("cpu", device))
    mine, yours = seeded(1), seeded(1)
    change(here, initializer, mine)
    change(there, initializer, yours)
    assert mine.get_state().equal(yours.get_state())  # of "meta" this is all there is to see
    for name, parameter in there.named_parameters():
        assert parameter.device.type == device
        assert parameter.shape == here.get_parameter(name).shape
        assert device == "meta" or parameter.cpu().equal(here.get_parameter(name))


@pytest.mark.parametrize(
    "name", ["relu", "leaky_relu", "prelu", "tanh", "sigmoid", "sin", "linear"]
)
def test_every_activation_builds_a_network(name):
    assert models.mlp([4, 3, 2], name)(torch.zeros(5, 2, 2)).shape == (5, 2)


def test_activations_compute_what_they_say():
    x = torch.linspace(-2, 2, 9)
    assert torch.equal(models.mlp([1, 1, 1], "sin").act1(x), x.sin())
    assert torch.equal(models.mlp([1, 1, 1], "linear").act1(x), x)
    assert models.mlp([1, 1, 1], "leaky_relu").act1(torch.tensor(-1.0)) == pytest.approx(-0.01)


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: models.mlp([4]), ShapeError, "input and output width"),
        (lambda: models.mlp([4, 0, 2]), DomainError, "at least 1, got 0"),
        (lambda: models.mlp([4, 2, 2], "rleu"), UnknownNameError, "did you mean .*'relu'"),
        (lambda: models.wide_resnet(depth=27), DomainError, "6 N [+] 4 .* got 27"),
        (lambda: interventions.init_weight_(torch.empty(3), "he"), ShapeError, "at least 2 axes"),
        (lambda: models.ntk_mlp([4, 2], variance=-1.0), DomainError, "variance"),
    ],
    ids=["one size", "zero width", "typo", "depth", "vector", "variance"],
)
def test_bad_input(build, error, message):
    with pytest.raises(error, match=message):
        build()
