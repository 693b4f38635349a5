"""``theodolite train``: a recipe in, numbers out; mistakes are sentences."""

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from theodolite.cli import app
from theodolite_papers.lab.models import mlp
from theodolite_papers.lab.training import evaluate, train
from theodolite_papers.lab.training.experiments import MODELS, read_experiment
from theodolite_papers.lab.training.losses import Softmax

RECIPE = """
[model]
name = "mlp"
sizes = [64, 16, 10]
bias = false

[data]
name = "digits"
scaling = "unit_interval"

[recipe]
loss = "softmax"
optimizer = "momentum"
learning_rate = 0.1
epochs = 2
batch_size = 100
seed = 3
stop = { loss = 0.01 }
"""


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE)
    return path


def call(*arguments):
    return CliRunner().invoke(app, ["train", *map(str, arguments)])


def test_numbers_are_those_of_the_library(recipe, tmp_path):
    weights = tmp_path / "out" / "weights.pt"
    result = call(recipe, "--json", "--save", weights)
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    experiment = read_experiment(recipe)
    data = experiment.load_data()
    net = mlp([64, 16, 10], bias=False, generator=torch.Generator().manual_seed(3))
    test = (data.x_test, data.y_test)
    log = train(net, (data.x_train, data.y_train), experiment.recipe, test=test)
    assert printed["steps"] == log.steps == 30
    assert printed["epoch_losses"] == list(log.epoch_losses)
    assert printed["entries"][-1]["test"]["accuracy"] == log.final.test.accuracy > 0.5
    saved = mlp([64, 16, 10], bias=False)
    saved.load_state_dict(torch.load(weights, weights_only=True))
    assert evaluate(saved, *test, Softmax()) == log.final.test


def test_people_read_three_lines(recipe):
    result = call(recipe)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[-3] == "mlp on digits: 30 steps"
    assert lines[-2].startswith("training  loss")
    assert lines[-1].startswith("test      loss")


def test_the_example_of_the_documentation():
    example = Path(__file__).parents[3] / "docs" / "examples" / "digits.toml"
    result = call(example, "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["entries"][-1]["test"]["accuracy"] > 0.9


def test_a_checkpoint_is_gone_on_from(recipe, tmp_path):
    path = tmp_path / "run.pt"
    first = call(recipe, "--json", "--checkpoint", path)
    again = call(recipe, "--json", "--checkpoint", path)
    assert path.exists()
    assert json.loads(first.stdout) == json.loads(again.stdout)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("[recipe]", "[receipt]"), "'recipe'"),
        (('name = "mlp"', 'name = "mpl"'), "'mlp'"),
        (("bias = false", "bais = false"), "'bias'"),
        (("sizes = [64, 16, 10]", ""), "cannot be built"),
        (('name = "digits"', 'name = "digitz"'), "'digits'"),
        (('scaling = "unit_interval"', ""), "scaling ="),
        (('scaling = "unit_interval"', 'scaling = "unit"'), "scaling"),
        (("epochs = 2", "epochs = 2\nsteps = 3"), "exactly one"),
        (("learning_rate = 0.1", "learning_rate = -1.0"), "learning_rate"),
        (("learning_rate = 0.1", 'learning_rate = "big"'), "wrong type"),
        (("learning_rate = 0.1", "learning_rate = 1e30"), "diverged"),
        (("[model]", "[model"), "TOML"),
        (("sizes = [64, 16, 10]", "sizes = [64, 16, 5]"), "labels below num_classes = 5"),
    ],
    ids=lambda value: value[1] if isinstance(value, tuple) else "",
)
def test_mistakes_are_one_sentence_and_exit_code_two(recipe, change, message):
    recipe.write_text(RECIPE.replace(*change))
    result = call(recipe, "--json")
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize(
    "options", [("--device", "abacus"), ("--checkpoint", "."), ("--nonsense", "1")], ids=str
)
def test_bad_options(recipe, options):
    assert call(recipe, "--json", *options).exit_code == 2


def test_a_missing_file(tmp_path):
    result = call(tmp_path / "none.toml")
    assert result.exit_code == 2
    assert "none.toml" in result.stderr


def test_every_network_builder_is_offered():
    from theodolite_papers.lab import models

    builders = {name for name in models.__all__ if name.islower()} - {
        "activation",
        "fans",
        "language_model",  # takes sequences of tokens, which no data set of this command has
        "pretrained_keys",
    }
    assert {name for name in builders if not name.endswith("_")} == set(MODELS)


@pytest.mark.parametrize("option", ["--save", "--checkpoint"])
def test_a_folder_in_the_place_of_a_file_is_refused_before_the_training(tmp_path, recipe, option):
    result = call(recipe, option, tmp_path)
    assert result.exit_code == 2
    assert result.stderr == (
        f"error: {option}: expected a file, got the folder {tmp_path}; name one in it, e.g. "
        f"{tmp_path / 'weights.pt'}\n"
    )
