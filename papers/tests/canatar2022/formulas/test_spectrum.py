"""Shapes of kernel spectra and of cumulative power."""

import pytest
import torch

from tests.tolerances import assert_close
from theodolite.measures.kernel import cumulative_power, linear_spectrum
from theodolite_papers.canatar2022.formulas import spectrum

LABELS = torch.arange(12) % 3


Y = torch.nn.functional.one_hot(LABELS).double()


@pytest.fixture
def normal(generator):
    return lambda *shape: torch.randn(*shape, dtype=torch.float64, generator=generator)


@pytest.mark.spec("3.P27")
def test_collapsed_balanced_classes_share_the_modes_evenly(normal):
    Q = torch.linalg.qr(normal(3, 3)).Q
    curve = cumulative_power(linear_spectrum(Y @ Q), LABELS).curve
    expected = torch.clamp(torch.arange(13).double() / 3, max=1)
    assert_close(curve, expected)
    assert_close(spectrum.power_evenness(curve, 3), 0.0)
    # Unequal eigenvalues inside the span of the indicators: any basis gives the same shares.
    stretched = Y @ torch.diag(torch.tensor([3.0, 2.0, 1.0]).double())
    assert_close(cumulative_power(linear_spectrum(stretched), Y @ Q).curve, expected)


def test_spectral_gap_of_an_exact_rank_is_infinite():
    eta = linear_spectrum(Y).eigenvalues
    assert spectrum.spectral_gap(torch.cat([eta, torch.zeros(1).double()]), 3).isinf()
    assert_close(spectrum.spectral_gap(torch.tensor([4.0, 3.0, 1.5]), 2), 2.0)
