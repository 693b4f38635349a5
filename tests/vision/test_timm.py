"""``timm:NAME`` on the command line with the real timm: tiny networks of its own test suite."""

import json

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import theodolite as th
from theodolite.cli import app
from theodolite.surveys.named_models import ModelSource, build_model

timm = pytest.importorskip(
    "timm", reason="timm is not installed: make test-vision runs these tests", exc_type=ImportError
)

FAMILIES = {"representation", "covariance", "kernel", "tangent", "gradient"}
FRESH = {"pretrained": False, "num_classes": 3}
NETWORKS = ("test_resnet", "test_vit", "test_convnext")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Images of 64x64 in three classes."""
    rng = np.random.default_rng(0)
    y = np.arange(24) % 3
    x = (rng.normal(size=(24, 3, 64, 64)) + y[:, None, None, None]).astype(np.float32)
    path = tmp_path_factory.mktemp("data") / "images.npz"
    np.savez(path, x_train=x, y_train=y, x_test=x[:6], y_test=y[:6])
    return path


def call(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def arguments(name):
    size = ["--arg", "img_size=64"] if name == "test_vit" else []
    return ["--arg", "pretrained=false", "--arg", "num_classes=3", *size]


@pytest.mark.parametrize("name", NETWORKS)
def test_every_family_of_a_network(name, data, tmp_path):
    found = call("survey", f"timm:{name}", data, *arguments(name), "-o", tmp_path / "run")
    assert found.exit_code == 0, found.output
    survey = th.load(tmp_path / "run")
    assert set(survey.to_frame().family) == FAMILIES
    assert survey.record.contents["skipped"] == {}
    assert survey.record.contents["data"]["outputs"] == 3
    assert (tmp_path / "run" / "report.html").stat().st_size > 10**6


def test_the_layers_are_those_of_timm(data, tmp_path):
    words = (*arguments("test_resnet"), "--family", "kernel", "--json", "-o", tmp_path / "run")
    found = call("survey", "timm:test_resnet", data, *words)
    assert found.exit_code == 0, found.output
    names = {name for name, _ in timm.create_model("test_resnet").named_modules()}
    rows = json.loads(found.stdout)["steps"][0]["rows"]
    layers = {row["layer"] for row in rows if row["layer"]}
    assert layers <= names
    assert {"conv1.0", "layer1.0.conv1", "layer1.0.conv2", "fc"} <= layers


def test_checkpoints_take_the_place_of_pretrained_weights(tmp_path):
    torch.manual_seed(7)
    saved = timm.create_model("test_resnet", **FRESH)
    torch.save(saved.state_dict(), tmp_path / "net.pt")
    options = {"num_classes": 3}  # pretrained weights would be downloaded here
    loaded = build_model(ModelSource("timm:test_resnet", options, tmp_path / "net.pt"))
    assert torch.equal(loaded.fc.weight, saved.fc.weight)
    assert not loaded.training


@pytest.mark.parametrize(
    ("word", "part"),
    [
        ("timm:no_such_network", "timm could not build it"),
        ("timm:test_resnet", "labels out of range: the model has 2 outputs"),
    ],
    ids=["unknown", "outputs"],
)
def test_networks_that_do_not_fit_are_refused_in_a_sentence(word, part, data):
    options = ("--arg", "pretrained=false", "--arg", "num_classes=2")
    found = call("survey", word, data, *options)
    assert found.exit_code == 2
    assert part in found.stderr
    assert "Traceback" not in found.stderr
