"""Networks with true and with shuffled labels, and one of a large initial scale, told apart."""

import pytest
import torch

import theodolite
from theodolite.data import digits, image_standardized, random_labels
from theodolite_papers.lab.models import mlp
from theodolite_papers.lab.training import Recipe, Stop, train
from theodolite_papers.mehta2021.formulas.scale_init import scale_init_


@pytest.fixture(scope="module")
def images():
    data = digits(generator=torch.Generator().manual_seed(0)).mapped(image_standardized, "image")
    return data.x_train[:300], data.y_train[:300]


def trained(inputs, labels, activation="relu", sigma=0.05):
    generator = torch.Generator().manual_seed(0)
    net = mlp([64, 128, 10], activation, bias=False)
    scale_init_(net, sigma, generator=generator)
    recipe = Recipe(
        optimizer="momentum", learning_rate=0.02, batch_size=50, epochs=200, log="ends",
        stop=Stop(accuracy=1.0),
    )  # fmt: skip
    assert train(net, (inputs, labels), recipe).final.train.accuracy == 1
    return net


def told(net, inputs, labels):
    found = theodolite.survey(
        net, (inputs, labels), families="representation", options={"split": "train"}
    )
    return found.record.contents["answers"][0]


def test_true_labels_look_like_learning(images):
    inputs, labels = images
    assert told(trained(inputs, labels), inputs, labels)["finding"] == "learning"


def test_random_labels_without_held_out_examples_are_undecided(images):
    inputs, labels = images
    wrong = random_labels(labels, torch.Generator().manual_seed(0))
    assert told(trained(inputs, wrong), inputs, wrong)["finding"] == "undecided"


def test_a_sin_layer_of_large_scale_is_not_called_learning(images):
    inputs, labels = images
    answer = told(trained(inputs, labels, "sin", sigma=7.0), inputs, labels)
    assert answer["certainty"] != "clear"
