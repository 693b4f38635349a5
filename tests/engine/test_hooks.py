from collections import OrderedDict

import pytest
import torch
from torch import nn

from theodolite.engine.hooks import capture_inputs, capture_outputs, first_tensor


@pytest.fixture
def model():
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True), nn.Linear(4, 2))


@pytest.fixture
def inputs(generator):
    return torch.randn(5, 3, generator=generator)


def hooks(model):
    return [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]


def test_captured_tensors_survive_in_place_operations(model, inputs):
    with capture_outputs(model, ["0", "1"]) as outputs, capture_inputs(model, ["1"]) as given:
        model(inputs)
    before = model[0](inputs)
    torch.testing.assert_close(outputs["0"][0], before)
    torch.testing.assert_close(given["1"][0], before)
    torch.testing.assert_close(outputs["1"][0], before.relu())
    assert not outputs["0"][0].requires_grad


def test_each_call_of_a_layer_is_kept(model, inputs):
    with capture_outputs(model, ["0"]) as outputs:
        model(inputs)
        model(2 * inputs)
    torch.testing.assert_close(outputs["0"][1], model[0](2 * inputs))


def test_what_is_kept_can_be_reduced_at_once(model, inputs):
    with capture_outputs(
        model, ["2"], lambda name, value: value.sum() if name == "2" else value
    ) as kept:
        model(inputs)
    torch.testing.assert_close(kept["2"][0], model(inputs).sum())


@pytest.mark.parametrize("capture", [capture_inputs, capture_outputs])
def test_hooks_are_gone_after_an_error(model, capture):
    with pytest.raises(RuntimeError), capture(model, ["0", "2"]):
        model(torch.ones(5, 7))
    assert set(hooks(model)) == {0}


@pytest.mark.parametrize("capture", [capture_inputs, capture_outputs])
def test_unknown_names_leave_no_hooks(model, capture):
    with pytest.raises(LookupError, match="unknown layer '3'"), capture(model, ["0", "3"]):
        pass
    assert set(hooks(model)) == {0}


def test_inputs_given_by_keyword_are_seen():
    class Keyword(nn.Module):
        def forward(self, *, x):
            return x

    model = nn.ModuleDict({"inner": Keyword()})
    with capture_inputs(model, ["inner"]) as inputs:
        model["inner"](x=torch.ones(2))
    assert inputs["inner"][0].tolist() == [1.0, 1.0]


ONE = torch.ones(1)


@pytest.mark.parametrize(
    "value",
    [
        ONE,
        (ONE, torch.zeros(1)),
        (None, [ONE]),
        {"loss": torch.zeros(()), "last_hidden_state": ONE},
        OrderedDict(states=(ONE,)),
        ((), ONE),
    ],
    ids=["tensor", "pair", "nested", "hidden state", "mapping", "empty first"],
)
def test_the_tensor_in_an_output(value):
    assert first_tensor(value, "output") is ONE


@pytest.mark.parametrize("value", [None, "text", (), {}, (None, 3)], ids=repr)
def test_outputs_without_a_tensor(value):
    with pytest.raises(ValueError, match="output: expected a tensor"):
        first_tensor(value, "output")
