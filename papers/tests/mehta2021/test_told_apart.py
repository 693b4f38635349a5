"""Networks with true and with shuffled labels, and one of a large initial scale, told apart."""

import pytest
import torch

import theodolite
from theodolite.data import digits, image_standardized, shuffled_labels
from theodolite.interventions import scale_init_
from theodolite.report._memorisation import memorization_sentence
from theodolite.report._reading import groups_of
from theodolite_papers.lab.models import mlp
from theodolite_papers.lab.training import Recipe, Stop, train


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
        net, (inputs, labels), families="gradient", read="raw", options={"split": "train"}
    )
    return memorization_sentence(groups_of([found.run], 60)[0])


def test_true_labels_look_like_learning(images):
    inputs, labels = images
    assert told(trained(inputs, labels), inputs, labels).startswith("Looks like learning")


def test_shuffled_labels_look_like_memorising(images):
    inputs, labels = images
    wrong = shuffled_labels(labels, torch.Generator().manual_seed(1))
    text = told(trained(inputs, wrong), inputs, wrong)
    assert text.startswith("Looks like memorising")
    assert "gradients of a class agree" in text  # the features tell


def test_a_sin_layer_of_large_scale_looks_like_memorising(images):
    inputs, labels = images
    text = told(trained(inputs, labels, "sin", sigma=7.0), inputs, labels)
    assert text.startswith("Looks like memorising")
    assert "gradients of a class do not agree" in text  # the gradients tell


def test_a_monitored_run_says_it_too(images, tmp_path):
    inputs, labels = images
    net = trained(inputs, labels)
    with theodolite.Monitor(
        net, (inputs, labels), folder=tmp_path, families=("gradient",), read="raw"
    ) as watch:
        watch.step(0)
        watch.step(1)
    run = theodolite.load(tmp_path).run
    assert "Looks like" in memorization_sentence(groups_of([run], 60)[0])


def test_features_read_elsewhere_get_no_verdict(images):
    inputs, labels = images
    found = theodolite.survey(mlp([64, 32, 10]), (inputs, labels), families="gradient")
    text = memorization_sentence(groups_of([found.run], 60)[0])
    assert text.startswith("No verdict: features were read after relu, and the rules were chosen")
