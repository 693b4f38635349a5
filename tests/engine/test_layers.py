"""Selection of layers, and who owns which parameter."""

import pytest
import torch
from torch import nn

from theodolite.engine import tangent_kernels
from theodolite.engine.layers import own_parameters, select_layers, unwrap
from theodolite.errors import DomainError, UnknownNameError


def model():
    body = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 3))
    return nn.ModuleDict({"body": body, "norm": nn.BatchNorm1d(3), "head": nn.Linear(3, 2)})


SELECTIONS = {
    "name": ("head", ["head"]),
    "container": ("body", ["body"]),
    "star": ("body.*", ["body.0", "body.1", "body.2"]),
    "double star": ("**2", ["body.2"]),
    "question mark": ("body.?", ["body.0", "body.1", "body.2"]),
    "list": (["head", "body.0"], ["body.0", "head"]),
    "predicate": (lambda _, module: isinstance(module, nn.Linear), ["body.0", "body.2", "head"]),
    "root": ("", [""]),
    "children": ("*", ["body", "norm", "head"]),
}


@pytest.mark.parametrize("kind", SELECTIONS)
def test_selection(kind):
    layers, wanted = SELECTIONS[kind]
    assert select_layers(model(), layers) == wanted


def test_unknown_names_come_with_near_matches():
    with pytest.raises(UnknownNameError, match=r"body\.0"):
        select_layers(model(), "body.O")
    with pytest.raises(UnknownNameError):
        select_layers(model(), ["head", "tail*"])


def test_selections_that_select_nothing_are_refused():
    with pytest.raises(DomainError):
        select_layers(model(), lambda *_: False)
    with pytest.raises(DomainError):
        select_layers(model(), [])


def test_every_layer_with_parameters_of_its_own():
    owned = own_parameters(model())
    assert list(owned.layers) == ["body.0", "body.2", "norm", "head"]
    assert owned.layers["body.0"] == ("body.0.weight", "body.0.bias")


def test_containers_own_what_is_below_them():
    owned = own_parameters(model(), ["body", "body.0"])
    assert len(owned.layers["body"]) == 4
    assert set(owned.layers["body.0"]) < set(owned.layers["body"])


def test_a_tied_tensor_belongs_to_its_first_name():
    tied = model()
    tied["copy"] = nn.Linear(3, 2)
    tied["copy"].weight, tied["copy"].bias = tied["head"].weight, tied["head"].bias
    owned = own_parameters(tied)
    assert "copy" not in owned.layers
    assert owned.shared == {
        "head.weight": ("copy.weight",),
        "head.bias": ("copy.bias",),
    }
    with pytest.raises(DomainError, match="tied"):
        own_parameters(tied, "copy")


def test_frozen_parameters_and_the_choice_of_parameters():
    frozen = model()
    frozen["body"].requires_grad_(False)
    assert list(own_parameters(frozen).layers) == ["norm", "head"]
    assert list(own_parameters(model(), params="**weight").parameters) == [
        "body.0.weight", "body.2.weight", "norm.weight", "head.weight",
    ]  # fmt: skip
    assert list(own_parameters(model(), params=lambda name, p: p.dim() == 2).layers) == [
        "body.0", "body.2", "head",
    ]  # fmt: skip
    with pytest.raises(DomainError):
        own_parameters(model(), params=lambda *_: False)
    with pytest.raises(DomainError, match="requires_grad"):
        own_parameters(nn.Linear(2, 2).requires_grad_(False))


def test_originals_of_a_reparametrized_weight_belong_to_its_layer():
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(2, 3))
    owned = own_parameters(nn.Sequential(layer))
    assert list(owned.layers) == ["0"]
    assert len(owned.layers["0"]) == 3


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # importing torch's compiler
def test_wrappers_are_seen_through():
    inner = nn.Linear(2, 2)
    assert unwrap(inner) is inner
    assert unwrap(nn.DataParallel(inner)) is inner
    assert unwrap(torch.compile(inner)) is inner
    assert unwrap(nn.DataParallel(torch.compile(inner))) is inner


def test_weights_made_in_inference_mode_are_refused_with_the_reason():
    with torch.inference_mode():
        model = nn.Linear(4, 3)
    with pytest.raises(DomainError, match="inference_mode"):
        tangent_kernels(model, torch.randn(5, 4))
