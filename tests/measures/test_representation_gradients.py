"""Alignment as a regulariser: its derivatives against finite differences, also at ties."""

import pytest
import torch

from tests.measures.absolute import alignment_area, alignment_curve, top_share
from theodolite.measures.representation import representation_alignment

MEASURES = {
    "area": lambda features, y: alignment_area(features, y),
    "normalized area": lambda features, y: alignment_area(features, y, normalized=True),
    "alignment": lambda features, y: representation_alignment(features, y, 1.2),
    "curve": lambda features, y: (
        alignment_curve(
            features, y, torch.tensor([0.0, 0.4, 1.2, 2.5], dtype=torch.float64), scale="relative"
        ).values
    ),
    "top share": lambda features, y: top_share(features, y, 2),
}
SPECTRA = {"distinct": [3.0, 2.0, 1.0], "tied": [3.0, 3.0, 1.0], "all tied": [1.5, 1.5, 1.5]}


def with_spectrum(generator, n, sigma):
    """Features with the given singular values; zeros are appended when fewer than columns."""
    left = torch.linalg.qr(torch.randn(n, 3, dtype=torch.float64, generator=generator)).Q
    right = torch.linalg.qr(torch.randn(5, 3, dtype=torch.float64, generator=generator)).Q
    return left * torch.tensor(sigma, dtype=torch.float64) @ right.mT


@pytest.mark.parametrize("name", MEASURES)
@pytest.mark.parametrize("columns", [1, 2], ids=str)
def test_derivatives_agree_with_finite_differences(name, columns, generator):
    features = torch.randn(7, 4, dtype=torch.float64, generator=generator, requires_grad=True)
    y = torch.randn(7, columns, dtype=torch.float64, generator=generator, requires_grad=True)
    assert torch.autograd.gradcheck(MEASURES[name], (features, y), fast_mode=True)


@pytest.mark.parametrize("spectrum", SPECTRA)
def test_derivative_of_the_area_at_ties(spectrum, generator):
    """Targets inside the range: there the area is smooth, ties or not."""
    features = with_spectrum(generator, 3, SPECTRA[spectrum])
    y = torch.randn(3, dtype=torch.float64, generator=generator)
    assert torch.autograd.gradcheck(MEASURES["area"], (features.requires_grad_(), y))


@pytest.mark.parametrize("name", MEASURES)
@pytest.mark.parametrize("spectrum", [*SPECTRA.values(), [2.0, 0.0, 0.0], [0.0, 0.0, 0.0]], ids=str)
def test_gradients_are_finite_at_ties_and_lost_rank(name, spectrum, generator):
    features = with_spectrum(generator, 6, spectrum).requires_grad_()
    y = torch.randn(6, dtype=torch.float64, generator=generator, requires_grad=True)
    value = MEASURES[name](features, y)
    value = value[~value.isnan()].sum()
    if value.requires_grad:
        value.backward()
        assert features.grad.isfinite().all()
        assert y.grad.isfinite().all()


def test_gradients_survive_extreme_scales(generator):
    features = torch.randn(6, 3, dtype=torch.float64, generator=generator)
    y = torch.randn(6, dtype=torch.float64, generator=generator)
    gradients = []
    for size in (1.0, 1e180):
        leaf = (size * features).requires_grad_()
        alignment_area(leaf, y).backward()
        gradients.append(leaf.grad)
    torch.testing.assert_close(gradients[0], gradients[1])


def test_ascending_the_area_aligns_the_features(generator):
    features = torch.randn(20, 5, dtype=torch.float64, generator=generator)
    y = torch.tensor([1.0, -1.0] * 10, dtype=torch.float64)
    start = alignment_area(features / features.norm(), y)
    for _ in range(30):
        leaf = (features / features.norm()).requires_grad_()
        alignment_area(leaf, y).backward()
        features = leaf.detach() + 0.05 * leaf.grad
    end = alignment_area(features / features.norm(), y)
    assert end > 2 * start
    assert end <= (1 + 1e-12) * (y @ y)  # the bound is reached, up to rounding


def test_without_autograd_the_cheap_route_is_taken(generator):
    features = torch.randn(3000, 30, dtype=torch.float64, generator=generator, requires_grad=True)
    grid, y = torch.tensor([50.0], dtype=torch.float64), torch.ones(3000, dtype=torch.float64)
    assert alignment_curve(features, y, grid).route == "svd"
    with torch.no_grad():
        assert alignment_curve(features, y, grid).route == "gram"
