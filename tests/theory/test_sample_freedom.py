"""What a sample says of the population: effective ridge, degrees of freedom, error with more."""

import pytest
import torch

from theodolite.errors import DomainError
from theodolite.theory.kernel_regression import (
    effective_ridge,
    error_with_more,
    generalization_error,
    sample_freedom,
)

ETA = torch.arange(1, 301, dtype=torch.float64) ** -1.2


def spectrum(n, generator):
    modes = torch.randn(n, len(ETA), generator=generator, dtype=torch.float64)
    scaled = modes * ETA.sqrt()
    return torch.linalg.eigvalsh(scaled @ scaled.T).clamp_min(0)


@pytest.mark.parametrize("ridge", [0.5, 5.0, 50.0])
def test_a_sample_knows_the_freedom_of_the_population(ridge, generator):
    n = 150
    kappa = effective_ridge(ETA, float(n), ridge).item() / n
    first, second = (ETA / (ETA + kappa)).sum(), (ETA / (ETA + kappa)).square().sum()
    draws = [
        sample_freedom(spectrum(n, generator), torch.tensor([ridge], dtype=torch.float64), n)
        for _ in range(20)
    ]
    # Means over 20 draws; single ones scatter by up to a tenth.
    for name, expected in (("effective_ridge", kappa), ("first", first), ("second", second)):
        found = torch.cat([getattr(draw, name) for draw in draws]).mean().item()
        assert found == pytest.approx(float(expected), rel=0.05)


def test_the_error_with_more_is_that_of_theory():
    """From exact errors and freedom at 100 examples to 100, 300 and 1000, best ridge each."""
    power = ETA**1.1
    ridges = torch.logspace(-3, 2, 200, dtype=torch.float64)
    noise = 3 * float(power.sum())  # so much that the best effective ridge is one that 100 reach

    def at(n):
        error = torch.stack([generalization_error(ETA, power, n, float(r), noise) for r in ridges])
        return error + noise

    kappa = torch.stack([effective_ridge(ETA, 100.0, float(r)) for r in ridges]) / 100
    second = (ETA / (ETA + kappa.unsqueeze(1))).square().sum(1)
    found = error_with_more(at(100.0), second, 100, torch.tensor([100.0, 300.0, 1000.0]))
    expected = [at(float(n)).min().item() for n in (100, 300, 1000)]
    assert found.tolist() == pytest.approx(expected, rel=2e-3)  # ridges of the grid


def test_too_much_freedom_is_passed_by():
    error, freedom = torch.tensor([0.1, 0.5]), torch.tensor([50.0, 5.0])
    assert error_with_more(error, freedom, 100, torch.tensor([40.0])).item() == pytest.approx(
        0.5 * (1 - 0.05) / (1 - 5 / 40)
    )


def test_a_ridge_of_zero_is_refused():
    with pytest.raises(DomainError, match="above 0"):
        sample_freedom(torch.ones(3), torch.zeros(1), 3)
