"""Layers: each parameter in one of them, in order of execution; containers by name."""

import warnings

import pytest
import torch
from torch import nn

import theodolite as th
from benchmarks.resnet import ResNet18
from tests.survey.subjects import Residual, blobs, cnn, images, mlp
from theodolite.engine import Batch
from theodolite.errors import UnknownNameError
from theodolite.surveys.layers import survey_layers


def chosen(model, x, layers=None, **options):
    with torch.no_grad():
        return survey_layers(model.eval(), Batch((x,)), layers, **options)


def names(found):
    return [layer.name for layer in found.layers]


def test_layers_with_parameters_in_order_of_execution():
    found = chosen(Residual(), blobs()[0])
    assert names(found) == [
        "stem",
        "blocks.0.inner",
        "blocks.0.outer",
        "blocks.1.inner",
        "blocks.1.outer",
        "head",
    ]
    assert set(found["head"].owned) == {"norm.weight", "norm.bias", "head.weight", "head.bias"}
    assert {layer.role for layer in found.layers} == {"layer"}
    assert [layer.read_at for layer in found.layers] == [
        "after relu",
        "after relu",
        "own output",
        "after relu",
        "own output",
        "own output",
    ]


def test_deep_models_show_blocks_instead_of_what_is_in_them():
    found = chosen(Residual(20), blobs()[0], most=39)
    assert names(found) == ["stem", *(f"blocks.{index}" for index in range(20)), "head"]
    assert [layer.role for layer in found.layers].count("block") == 20


def test_containers_are_shown_where_they_are_asked_for():
    found = chosen(Residual(), blobs()[0], ["blocks.0", "blocks.0.inner"])
    assert names(found) == ["blocks.0.inner", "blocks.0"]
    assert [layer.parent for layer in found.layers] == ["blocks.0", None]
    assert found["blocks.0"].parameters == 144


class Mixed(nn.Module):
    """A projection that is never called, bare parameters, an unused layer, tied weights."""

    def __init__(self):
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 1, 6))
        self.block = nn.TransformerEncoderLayer(6, 2, 8, batch_first=True)
        self.scale = nn.Parameter(torch.ones(1))
        self.unused = nn.Linear(4, 4)
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.second.weight = self.first.weight
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        h = self.block(x.unsqueeze(1) + self.token).squeeze(1)
        return self.scale * self.head(self.second(self.first(h).relu()))


@pytest.mark.parametrize(
    ("model", "data"),
    [(Residual(), blobs()[0]), (Residual(20), blobs()[0]), (cnn(), images()[0]),
     (Mixed(), blobs()[0])],
    ids=["residual", "deep", "norms", "mixed"],
)  # fmt: skip
def test_every_parameter_belongs_to_one_layer_and_kernels_add_up(model, data):
    found = chosen(model, data)
    owned = [name for layer in found.layers for name in layer.owned]
    known = {name for name, _ in model.named_parameters() if not name.startswith("unused.")}
    assert sorted(owned) == sorted(known)
    x = data[:7].double()
    partition = {layer.name: layer.owned for layer in found.layers}
    kernels = th.tangent_kernels(model.double().eval(), x, partition)
    total = th.tangent_kernels(model, x, [""])[""]
    torch.testing.assert_close(sum(kernels.values()), total)
    model.float()


def test_layers_without_numbers_are_left_out():
    class Beside(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.head = nn.Linear(4, 8), nn.Linear(8, 3)
            with warnings.catch_warnings():  # torch has nothing to initialise
                warnings.simplefilter("ignore")
                self.empty = nn.Linear(4, 0)

        def forward(self, x):
            return self.head(torch.cat([self.inner(x), self.empty(x)], 1).tanh())

    data = torch.randn(30, 4), torch.arange(30) % 3
    found = th.survey(Beside(), data, permutations=0).record.contents
    assert not found["skipped"]
    assert "empty" not in {row["layer"] for row in found["rows"]}


def test_what_a_module_holds_beside_its_layers_has_no_features():
    found = chosen(Mixed(), blobs()[0])
    rest = found[""]
    assert (rest.role, rest.owned, rest.shape) == ("parameters", ("token", "scale"), None)
    attention = found["block.self_attn"]
    assert (attention.role, len(attention.owned)) == ("layer", 4)  # the projection's two as well


@pytest.mark.parametrize("read", ["next", "raw"])
def test_a_normalisation_has_no_row_and_its_parameters_count_for_the_layer(read):
    found = chosen(cnn(), images()[0], read=read)
    assert names(found) == [layer.name for layer in found.with_features()] == ["0", "3", "7"]
    assert found["0"].owned == ("0.weight", "0.bias", "1.weight", "1.bias")
    expected = "after BatchNorm2d, relu" if read == "next" else "own output"
    assert found["0"].read_at == expected


def test_a_resnet_18_has_21_rows():
    assert len(chosen(ResNet18(), torch.randn(3, 3, 32, 32)).layers) == 21


class Block(nn.Module):
    """Norms before attention and after a sum, as in GPT-2 and BERT."""

    def __init__(self, first):
        super().__init__()
        self.first, self.norm, self.linear = first, nn.LayerNorm(6), nn.Linear(6, 6)

    def forward(self, x):
        if self.first:
            return x + self.linear(self.norm(x))
        return self.norm(x + self.linear(x))


@pytest.mark.parametrize("first", [True, False])
def test_norms_of_a_residual_stream_belong_to_the_layer_beside_them(first):
    model = nn.Sequential(nn.Linear(6, 6), Block(first), nn.Linear(6, 3))
    found = chosen(model, torch.randn(5, 6))
    assert names(found) == ["0", "1.linear", "2"]
    assert set(found["1.linear"].owned) >= {"1.norm.weight", "1.linear.weight"}


def test_rows_say_where_they_were_read():
    found = th.survey(cnn(), images(), permutations=0)
    at = {(r["layer"], r["measure"]): r["read_at"] for r in found.record.contents["rows"]}
    assert at["0", "cka_target"] == at["0", "feature_omega"] == "after BatchNorm2d, relu"
    assert at["7", "alignment_area"] == "own output"
    assert at["0", "relative_misalignment"] == "inputs"
    assert at["0", "tangent_alignment"] == at["0", "omega"] == "parameters"
    assert at[None, "loss"] == "outputs"
    assert found.to_frame().read_at.notna().all()


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
    frame = survey.to_frame()
    assert set(frame[frame.family == "representation"].layer.dropna()) == {"input", "head"}
    assert "inner" in set(frame[frame.family == "tangent"].layer)  # measured one by one


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
    found = survey_layers(Fed(change), batch)
    assert found.fed == ({"first"} if fed else set())


def test_data_whose_changes_are_not_counted_are_not_taken_for_the_same():
    with torch.inference_mode():
        batch = Batch((torch.randn(5, 6),))
        found = survey_layers(Fed(lambda x: x), batch)
    assert found.fed == set()
