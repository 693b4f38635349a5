"""MODEL on the command line: files, packages, Hugging Face folders, weights."""

import sys

import pytest
import torch
from torch import nn

from theodolite.cli.terminal import keyword_arguments
from theodolite.surveys.named_models import ModelSource, build_model, load_weights_

NET = """
import torch
from torch import nn
from neighbor import WIDTH

class Net(nn.Module):
    def __init__(self, outputs=3):
        super().__init__()
        self.head = nn.Linear(WIDTH, outputs)

    def forward(self, x):
        return self.head(x.flatten(1))

ready = Net(2)

class Zoo:
    small = staticmethod(lambda: Net(1))
"""


@pytest.fixture
def net_file(tmp_path):
    (tmp_path / "neighbor.py").write_text("WIDTH = 64\n")
    path = tmp_path / "net.py"
    path.write_text(NET)
    yield path
    sys.modules.pop("neighbor", None)


def weights(path, model):
    torch.save(model.state_dict(), path)
    return path


@pytest.mark.parametrize(
    ("name", "outputs"),
    [("Net", 3), ("ready", 2), ("Zoo.small", 1)],
    ids=["class", "module", "dotted"],
)
def test_files_give_modules_with_their_neighbors_imported(net_file, name, outputs):
    before = list(sys.path)
    model = build_model(ModelSource(f"{net_file}:{name}"))
    assert model.head.out_features == outputs
    assert not model.training
    assert sys.path == before


def test_packages_take_arguments_and_the_seed_fixes_the_weights():
    word = "tests.networks:mlp"
    arguments = keyword_arguments("--arg", ["sizes=[4, 8, 2]", "activation=tanh"])
    first, again = (build_model(ModelSource(word, arguments, seed=1)) for _ in range(2))
    other = build_model(ModelSource(word, arguments, seed=2))
    assert isinstance(first.act1, nn.Tanh)
    assert torch.equal(first.fc1.weight, again.fc1.weight)
    assert not torch.equal(first.fc1.weight, other.fc1.weight)


def test_the_working_folder_counts_as_a_place_of_packages(net_file, monkeypatch):
    monkeypatch.chdir(net_file.parent)
    (net_file.parent / "package_of_mine.py").write_text(NET)
    try:
        assert build_model(ModelSource("package_of_mine:Net")).head.out_features == 3
    finally:
        sys.modules.pop("package_of_mine", None)


def test_hugging_face_models_are_of_the_class_in_their_configuration(tmp_path):
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=20,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=12,
        num_labels=3,
    )
    saved = BertForSequenceClassification(config)
    saved.save_pretrained(tmp_path / "bert")
    model = build_model(ModelSource(f"hf:{tmp_path / 'bert'}"))
    assert isinstance(model, BertForSequenceClassification)
    assert torch.equal(model.classifier.weight, saved.classifier.weight)
    other = weights(tmp_path / "other.pt", BertForSequenceClassification(config))
    loaded = build_model(ModelSource(f"hf:{tmp_path / 'bert'}", checkpoint=other))
    assert torch.equal(loaded.classifier.weight, torch.load(other)["classifier.weight"])


@pytest.mark.parametrize(
    "wrap",
    [
        lambda state: state,
        lambda state: {"state_dict": state, "epoch": 3},
        lambda state: {"model": state},
        lambda state: {f"module.{key}": value for key, value in state.items()},
        lambda state: {f"module._orig_mod.{key}": value for key, value in state.items()},
    ],
    ids=["plain", "state_dict", "model", "parallel", "compiled"],
)
def test_checkpoints_of_common_forms(tmp_path, wrap):
    trained = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    path = tmp_path / "weights.pt"
    torch.save(wrap(trained.state_dict()), path)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    load_weights_(model, path)
    assert all(
        torch.equal(value, trained.state_dict()[key]) for key, value in model.state_dict().items()
    )


def test_safetensors(tmp_path):
    from safetensors.torch import save_file

    trained, model = nn.Linear(3, 2), nn.Linear(3, 2)
    save_file(trained.state_dict(), tmp_path / "weights.safetensors")
    load_weights_(model, tmp_path / "weights.safetensors")
    assert torch.equal(model.weight, trained.weight)


def test_arguments_are_json_or_text():
    pairs = ["a=1", "b=[1,2]", "c=true", "d=relu", "e=x=y", "f="]
    expected = {"a": 1, "b": [1, 2], "c": True, "d": "relu", "e": "x=y", "f": ""}
    assert keyword_arguments("--arg", pairs) == expected
