"""What the theory of random features says about bad input."""

import pytest
import torch

from theodolite.errors import DomainError, ShapeError
from theodolite_papers.mehta2021.formulas import loss_gradients, random_features

X, Z, Y = torch.eye(2), torch.zeros(2, 3), torch.tensor([0, 2])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: random_features.sin_kernel(X, torch.ones(1, 3), 1.0),
            ShapeError,
            "x and y: expected one input dimension, got 2 and 3",
        ),
        (
            lambda: random_features.sin_kernel(X, X, -1.0),
            DomainError,
            r"sigma: expected a number in \(0.0, inf\), got -1.0",
        ),
        (
            lambda: random_features.sin_bound(X, X, 1.0, "exact"),
            DomainError,
            "form: expected one of 'printed', 'one_sided', 'corrected', 'proof', got 'exact'",
        ),
        (
            lambda: random_features.expected_alignment(X[:1], 1.0),
            ShapeError,
            "inputs: expected at least two rows, got 1",
        ),
        (
            lambda: random_features.wide_cosine(torch.tensor(1.5), "relu"),
            DomainError,
            "cosine: expected a number in .-1.0, 1.0., got 1.5",
        ),
        (
            lambda: loss_gradients.softmax_logit_gradient(Z, Y.float()),
            DomainError,
            r"labels: expected integer class labels.*\.long\(\)",
        ),
        (
            lambda: loss_gradients.softmax_logit_gradient(Z, Y + 1),
            DomainError,
            "labels below num_classes = 3, got 3",
        ),
        (
            lambda: loss_gradients.softmax_logit_gradient(Z, Y[:1]),
            ShapeError,
            "logits has 2, labels has 1",
        ),
        (
            lambda: loss_gradients.sigmoid_logit_gradient(torch.zeros(2), Y),
            DomainError,
            "labels below num_classes = 2, got 2",
        ),
        (
            lambda: loss_gradients.compensate("huber", 2.0),
            DomainError,
            "loss: expected one of 'softmax', 'hinge', 'squared', got 'huber'",
        ),
    ],
)
def test_message_says_what_was_expected(call, error, message):
    with pytest.raises(error, match=message):
        call()
