"""What the theory of kernel regression says about bad input."""

import pytest
import torch

from theodolite.errors import DomainError, ShapeError
from theodolite.theory import kernel_regression

K, Y, ETA = torch.eye(3), torch.ones(3, 2), torch.tensor([2.0, 1.0])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: kernel_regression.linear_probe(K, Y[:2]),
            ShapeError,
            "features has 3, targets has 2",
        ),
        (
            lambda: kernel_regression.linear_probe(K, Y, ridge=-1.0),
            DomainError,
            r"ridge: expected a number in \[0.0, inf\), got -1.0",
        ),
        (
            lambda: kernel_regression.kernel_regression(K, Y, torch.ones(4, 2)),
            ShapeError,
            r"cross: expected one column per training example, 3, got shape \(4, 2\)",
        ),
        (
            lambda: kernel_regression.kernel_regression(K[:2], Y, K),
            ShapeError,
            r"gram: expected a square matrix, got shape \(2, 3\)",
        ),
        (
            lambda: kernel_regression.generalization_error(ETA, torch.ones(3), 5.0),
            ShapeError,
            r"eigenvalues is \(2,\), power is \(3,\)",
        ),
        (
            lambda: kernel_regression.effective_ridge(torch.tensor([1.0, -1e-9]), 5.0),
            DomainError,
            r"eigenvalues: expected numbers of at least 0.*clamp\(min=0\)",
        ),
        (
            lambda: kernel_regression.effective_ridge(K, 5.0),
            ShapeError,
            r"eigenvalues: expected 1 axes, got shape \(3, 3\)",
        ),
    ],
)
def test_message_says_what_was_expected(call, error, message):
    with pytest.raises(error, match=message):
        call()
