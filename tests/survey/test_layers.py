"""Layers: blocks and matrices, not every ReLU, in order of execution."""

import pytest
import torch
from torch import nn

import theodolite as th
from tests.survey.subjects import Residual, blobs, cnn, images, mlp
from theodolite.engine.batches import Batch
from theodolite.errors import UnknownNameError
from theodolite.surveys._layers import survey_layers


def chosen(model, x, layers=None):
    with torch.no_grad():
        return survey_layers(model.eval(), Batch((x,)), layers, None)


def test_blocks_and_matrices_in_order_of_execution():
    found = chosen(Residual(), blobs()[0]).layers
    assert [layer.name for layer in found] == [
        "stem",
        "blocks.0.inner",
        "blocks.0.outer",
        "blocks.0",
        "blocks.1.inner",
        "blocks.1.outer",
        "blocks.1",
        "head",
    ]
    assert [layer.role for layer in found].count("block") == 2
    assert found[1].parent == "blocks.0"
    assert found[3].parameters == found[1].parameters + found[2].parameters == 144


def test_deep_models_show_blocks_alone():
    names = [layer.name for layer in chosen(Residual(20), blobs()[0]).layers]
    assert names == ["stem", *(f"blocks.{index}" for index in range(20)), "head"]


def test_neither_norms_nor_activations():
    assert [layer.name for layer in chosen(cnn(), images()[0]).layers] == ["0", "3", "7"]


def test_layers_that_are_never_called_are_left_out():
    block = nn.TransformerEncoderLayer(6, 2, 8, batch_first=True)
    model = nn.Sequential(nn.Unflatten(1, (1, 6)), block, nn.Flatten(), nn.Linear(6, 3))
    names = [layer.name for layer in chosen(model.train(), blobs()[0]).layers]
    assert "1.self_attn.out_proj" not in names
    assert {"1", "3"} <= set(names)


def test_outputs_without_a_row_per_example_have_no_features():
    class Turned(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(5, 5)
            self.head = nn.Linear(6, 3)

        def forward(self, x):
            return self.head(x + self.inner(x.new_ones(7, 5)).mean())

    found = chosen(Turned(), blobs()[0])
    assert {layer.name: layer.shape for layer in found.layers} == {"inner": None, "head": (3,)}
    survey = th.survey(Turned(), blobs(), families=["representation", "tangent"])
    assert set(survey.to_frame().layer) == {"head"}
    assert "mixes them" in survey.record.contents["skipped"]["tangent"]


@pytest.mark.parametrize("layers", ["0", ["0"], lambda name, _: name == "0"])
def test_layers_by_name_list_or_predicate(layers):
    found = th.survey(mlp(), blobs(), layers=layers, families="kernel")
    assert found.layers == ["0"]


def test_unknown_layers_are_named():
    with pytest.raises(UnknownNameError, match="stem"):
        th.survey(Residual(), blobs(), layers="stm")


def test_a_single_layer_is_a_model():
    assert th.survey(nn.Linear(6, 3), blobs(), families="kernel").layers == [""]


class Fed(nn.Module):
    def __init__(self, change):
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 3)
        self.change = change

    def forward(self, x):
        return self.second(self.first(self.change(x)))


@pytest.mark.parametrize(
    ("change", "fed"),
    [
        (lambda x: x, True),
        (lambda x: x.flatten(1).reshape(-1, 6), True),
        (lambda x: x.t().t(), True),
        (lambda x: x + 0, False),
        (lambda x: x[:, [5, 4, 3, 2, 1, 0]], False),
        (lambda x: x.add_(0.0), False),
    ],
    ids=["itself", "reshaped", "turned", "copied", "picked", "written to"],
)
def test_layers_that_take_the_data_as_they_are(change, fed):
    batch = Batch((torch.randn(5, 6),))
    found = survey_layers(Fed(change), batch, None, None)
    assert found.fed == ({"first"} if fed else set())


def test_data_whose_changes_are_not_counted_are_not_taken_for_the_same():
    with torch.inference_mode():
        batch = Batch((torch.randn(5, 6),))
        found = survey_layers(Fed(lambda x: x), batch, None, None)
    assert found.fed == set()
