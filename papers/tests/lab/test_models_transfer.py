"""New heads, and the first layers of one network copied into another."""

from copy import deepcopy
from math import sqrt

import pytest
import torch
from torch import nn

from tests import networks
from tests.networks import mlp_of_seed, seeded
from theodolite.errors import DomainError, ShapeError, UnknownNameError
from theodolite_papers.lab.models.transfer import replace_head_, transfer_layers_
from theodolite_papers.maennel2020.formulas.rescaling import layer_norms, rescale_to_


def equal_layers(one, other):
    return [
        torch.equal(a, b)
        for (name, a), (_, b) in zip(one.named_parameters(), other.named_parameters(), strict=True)
        if name.endswith("weight") and a.shape == b.shape
    ]


@pytest.mark.spec("2.P42")
@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_first_layers_are_copied_and_the_others_stay_fresh(count):
    model, source = mlp_of_seed(1), mlp_of_seed(2)
    fresh, trained = deepcopy(model), deepcopy(source)
    assert transfer_layers_(model, source, count) is model
    assert equal_layers(model, trained) == [index < count for index in range(4)]
    assert equal_layers(model, fresh) == [index >= count for index in range(4)]
    biases = [model.get_parameter(f"fc{i}.bias")[0].item() for i in (1, 2, 3, 4)]
    origin = [(trained if i <= count else fresh).get_parameter(f"fc{i}.bias") for i in (1, 2, 3, 4)]
    assert biases == [bias[0].item() for bias in origin]
    assert equal_layers(source, trained) == [True] * 4


@pytest.mark.spec("2.P42")
@pytest.mark.parametrize("layers", [4, "fc4", ["fc1", "fc*"]], ids=["count", "name", "pattern"])
def test_the_head_is_never_copied(layers):
    with pytest.raises(DomainError, match="head 'fc4'"):
        transfer_layers_(mlp_of_seed(1), mlp_of_seed(2), layers)


def test_all_but_the_head_and_other_classes():
    model, source = mlp_of_seed(1, classes=7), mlp_of_seed(2, classes=3)
    transfer_layers_(model, source, "all")
    assert equal_layers(model, source) == [True, True, True]
    assert model.fc4.weight.shape == (7, 5)


def test_biases_can_be_reset_and_norms_restored():
    model, source = mlp_of_seed(1), mlp_of_seed(2)
    stored = layer_norms(networks.mlp([6, 5, 5, 5, 4], generator=seeded(9)))
    transfer_layers_(model, source, 2, reset_biases=True)
    assert not model.fc1.bias.any()
    assert not model.fc2.bias.any()
    assert model.fc3.bias.any()
    rescale_to_(model, stored, layers=["fc1", "fc2"])
    assert abs(layer_norms(model)["fc2"] - stored["fc2"]) < 1e-5
    assert abs(layer_norms(model)["fc3"] - stored["fc3"]) > 0.1


def test_norm_layers_go_with_the_convolution_before_them():
    def build(seed):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Conv2d(2, 2, 3), nn.BatchNorm2d(2),
            nn.Flatten(), nn.Linear(8, 2),
        )  # fmt: skip

    model, source = build(0), build(1)
    for module in (source[1], source[4]):
        nn.init.constant_(module.weight, 5.0)
        module.running_mean.fill_(3.0)
    transfer_layers_(model, source, 1)
    assert (model[1].weight == 5).all()
    assert (model[1].running_mean == 3).all()
    assert (model[4].running_mean == 0).all()
    assert (model[4].weight == 1).all()


def test_blocks_by_name():
    model, source = (networks.ResidualNet(seeded(seed)) for seed in (0, 1))
    transfer_layers_(model, source, ["stem", "stages.0"])
    theirs = source.state_dict()
    copied = {
        key.split(".")[0] + key.split(".")[1]
        for key, value in model.state_dict().items()
        if value.ndim == 4 and torch.equal(value, theirs[key])
    }
    assert copied == {"stemweight", "stages0"}


@pytest.mark.parametrize(
    ("source", "layers", "error"),
    [
        (networks.mlp([7, 5, 5, 5, 4]), 1, ShapeError),
        (nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 4)), 1, UnknownNameError),
        (networks.mlp([6, 5, 5, 5, 4]), 9, DomainError),
        (networks.mlp([6, 5, 5, 5, 4]), -1, DomainError),
        (networks.mlp([6, 5, 5, 5, 4]), ["fc7"], UnknownNameError),
    ],
    ids=["shape", "names", "too-many", "negative", "unknown"],
)
def test_transfers_that_do_not_fit(source, layers, error):
    with pytest.raises(error):
        transfer_layers_(mlp_of_seed(1), source, layers)


def test_a_new_head_has_new_weights_zero_bias_and_the_asked_width():
    net = mlp_of_seed(1).double()
    old, first = net.fc4.weight.clone(), net.fc1.weight.clone()
    replace_head_(net, 300, scale=2.0, generator=seeded())
    assert net.fc4.weight.shape == (300, 5)
    assert net.fc4.weight.dtype == torch.float64
    assert abs(net.fc4.weight.std() / (2 * sqrt(2 / 5)) - 1) < 4 / sqrt(2 * 1500)
    assert not net.fc4.bias.any()
    assert torch.equal(net.fc1.weight, first)
    assert net(torch.zeros(2, 6).double()).shape == (2, 300)
    replace_head_(net, 4)
    assert not torch.equal(net.fc4.weight, old)
    assert list(dict(net.named_children()))[-1] == "fc4"


def test_heads_inside_and_heads_by_name():
    net = nn.ModuleDict({"body": mlp_of_seed(1), "extra": nn.Linear(2, 2, bias=False)})
    replace_head_(net, head="body.fc4", num_classes=9)
    assert net["body"].fc4.out_features == 9
    replace_head_(net, 3)
    assert net["extra"].weight.shape == (3, 2)
    assert net["extra"].bias is None
    with pytest.raises(DomainError, match=r"nn\.Linear"):
        replace_head_(nn.Sequential(nn.Conv2d(1, 2, 3)))
    with pytest.raises(UnknownNameError):
        replace_head_(mlp_of_seed(1), head="fc5")


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: replace_head_(nn.Linear(4, 2)), DomainError, ["inside the model", "head="]),
        (lambda: replace_head_(networks.mlp([4, 3, 2]), 0), DomainError, ["num_classes", "0"]),
        (
            lambda: transfer_layers_(networks.mlp([4, 3, 2]), networks.mlp([4, 3, 2]), 2),
            DomainError,
            ["head 'fc2'", "'all'"],
        ),
        (
            lambda: transfer_layers_(networks.mlp([4, 3, 2]), networks.mlp([4, 3, 2]), 5),
            DomainError,
            ["at most 1", "got 5"],
        ),
        (
            lambda: transfer_layers_(networks.mlp([4, 3, 2]), networks.mlp([5, 3, 2]), 1),
            ShapeError,
            ["layer 'fc1'", "(3, 4)", "(3, 5)"],
        ),
    ],
)
def test_bad_input_is_rejected(call, error, words):
    with pytest.raises(error) as caught:
        call()
    assert all(word in str(caught.value) for word in words)
