"""What gradient flow and the power shortcut say about bad input."""

import pytest
import torch

from theodolite.errors import DomainError, ShapeError
from theodolite_papers.canatar2022.formulas import static_kernel

K, Y, ETA = torch.eye(3), torch.ones(3, 2), torch.tensor([2.0, 1.0])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: static_kernel.power_shortcut(ETA.flip(0), ETA, 5.0),
            DomainError,
            "eigenvalues: expected decreasing order; sort them with their power",
        ),
        (
            lambda: static_kernel.gradient_flow_predictions(K, Y, torch.ones(2), Y[:, :1]),
            ShapeError,
            r"targets is \(3, 2\), start is \(3, 1\)",
        ),
    ],
)
def test_message_says_what_was_expected(call, error, message):
    with pytest.raises(error, match=message):
        call()
