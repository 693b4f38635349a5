"""What formulas of kernel alignment say about bad input."""

import pytest
import torch

from theodolite.errors import DomainError, ShapeError
from theodolite_papers.canatar2022.formulas import spectrum

F = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 7.0], [0.0, 1.0]])
CURVE = torch.tensor([0.0, 0.5, 1.0])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: spectrum.optimal_kernel(F.unsqueeze(0)), ShapeError, "targets: expected 2 axes"),
        (lambda: spectrum.power_evenness(F, 2), ShapeError, "curve: expected 1 axes"),
        (lambda: spectrum.power_evenness(CURVE, 0), DomainError, "num_classes: .* at least 1"),
        (lambda: spectrum.spectral_gap(CURVE, 1), DomainError, "decreasing order.*kernel_spectrum"),
    ],
)
def test_bad_input_is_named_with_what_to_do(call, error, message):
    with pytest.raises(error, match=message):
        call()
