"""What users read when a recipe or its data cannot be used."""

import pytest
import torch
from torch import nn

from theodolite.errors import DomainError, ShapeError
from theodolite_papers.lab.training import Recipe, Stop, recipe_from_mapping, train


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: Recipe(epochs=1, optimizer="lion"),
            DomainError,
            "optimizer: expected one of 'sgd', 'momentum', 'nesterov', 'adam', 'rmsprop', "
            "got 'lion'",
        ),
        (
            lambda: Recipe(epochs=1, schedule="cosine"),
            DomainError,
            "schedule: expected one of 'constant', 'thirds', 'linear', 'step_decay', got 'cosine'",
        ),
        (
            lambda: Recipe(epochs=1, loss=nn.functional.cross_entropy),
            DomainError,
            "loss: expected Softmax(), Hinge(), Squared() or Logistic()",
        ),
        (
            lambda: Recipe(),
            DomainError,
            "epochs, steps: expected exactly one of them, got epochs=None and steps=None; "
            "e.g. Recipe(epochs=20)",
        ),
        (lambda: Recipe(epochs=1, log="never"), DomainError, "log: expected one of 'epoch'"),
        (lambda: Stop(patience=0), DomainError, "patience: expected an integer of at least 1"),
        (
            lambda: recipe_from_mapping({"epochs": 1, "learning_rate": "big"}),
            DomainError,
            "setting: a value has the wrong type",
        ),
        (
            lambda: train(nn.ReLU(), (torch.ones(2, 2), torch.ones(2)), Recipe(epochs=1)),
            DomainError,
            "model: expected at least one parameter to train",
        ),
        (
            lambda: train(
                nn.Linear(2, 2), (torch.ones(3, 2), torch.zeros(2).long()), Recipe(epochs=1)
            ),
            ShapeError,
            "expected one row per example in every argument, but data[0] has 3, data[1] has 2",
        ),
    ],
    ids=["optimizer", "schedule", "loss", "length", "log", "stop", "type", "model", "rows"],
)
def test_messages(call, error, message):
    with pytest.raises(error) as caught:
        call()
    assert message in str(caught.value)
