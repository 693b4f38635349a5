"""Energy of layers and normalised spectra."""

import pytest
import torch

from tests.tolerances import assert_close
from theodolite.measures.tangent import stacked_kernel
from theodolite_papers.lou2022.formulas.energy import normalized_spectrum
from theodolite_papers.lou2022.formulas.feature_evolution import feature_kernel
from theodolite_papers.lou2022.formulas.updates import rank_one_model

N, K = 6, 3


@pytest.fixture
def features(generator):
    return torch.randn(N, K, 4, generator=generator, dtype=torch.float64)


@pytest.fixture
def targets(generator):
    return torch.eye(K, dtype=torch.float64)[torch.randint(K, (N,), generator=generator)]


@pytest.mark.spec("4.P56")
def test_rank_one_model_is_exact_on_rank_one_features(targets, generator):
    direction = torch.nn.functional.normalize(
        torch.randn(5, generator=generator, dtype=torch.float64), dim=0
    )
    y = targets - 1 / K
    model = rank_one_model(3 * y.unsqueeze(-1) * direction, targets)
    assert_close(model.error, 0.0)
    assert_close(model.direction, direction)
    assert_close(model.strength, 3 * y.norm(), scale=10)


@pytest.mark.spec("4.P56")
def test_rank_one_model_ignores_a_common_offset_but_not_noise(targets, generator):
    direction = torch.randn(5, generator=generator, dtype=torch.float64)
    rank_one = (targets - 1 / K).unsqueeze(-1) * direction
    noise = torch.randn(N, K, 5, generator=generator, dtype=torch.float64)
    assert_close(rank_one_model(rank_one + direction, targets).error, 0.0, scale=10)
    assert rank_one_model(rank_one + noise, targets).error > 0.1


def test_rank_one_model_of_features_orthogonal_to_the_labels_is_undefined():
    targets = torch.tensor([[1.0], [-1.0], [0.0], [0.0]])
    features = torch.tensor([0.0, 0.0, 1.0, -1.0]).reshape(4, 1, 1)
    model = rank_one_model(features, targets)
    assert model.error.isnan()
    assert model.direction.isnan().all()


@pytest.mark.spec("4.P57")
def test_normalized_spectrum_starts_at_1_and_does_not_increase(features):
    spectrum = normalized_spectrum(stacked_kernel(feature_kernel(features)))
    assert len(spectrum) == N * K
    assert spectrum[0] == 1
    assert (spectrum[1:] <= spectrum[:-1]).all()
    assert int((spectrum > 0).sum()) == 4  # rank; the rest is noise, clipped


@pytest.mark.parametrize("count", [5, 200], ids=["lanczos", "dense"])
def test_spectrum_of_a_large_matrix(count, generator):
    factor = torch.randn(600, 30, generator=generator, dtype=torch.float64)
    matrix = factor @ factor.T
    values = torch.linalg.eigvalsh(matrix).flip(0)[:count].clamp(min=0)
    assert_close(normalized_spectrum(matrix, count), values / values[0])


def test_spectrum_without_positive_eigenvalue_is_undefined():
    assert normalized_spectrum(-torch.eye(3)).isnan().all()
