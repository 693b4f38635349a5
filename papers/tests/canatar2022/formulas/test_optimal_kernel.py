"""The optimal kernel."""

from functools import partial

import pytest
import torch

from tests.tolerances import assert_close
from theodolite.measures import kernel
from theodolite.measures.kernel import cka, kta, linear_cka, linear_kta, target_cka
from theodolite_papers.canatar2022.formulas import spectrum

biased = partial(cka, debiased=False)


linear_biased = partial(linear_cka, debiased=False)


@pytest.fixture
def normal(generator):
    return lambda *shape: torch.randn(*shape, dtype=torch.float64, generator=generator)


def rank(matrix):
    return int(torch.linalg.matrix_rank(matrix, hermitian=True))


@pytest.mark.spec("3.P2")
def test_optimal_kernel_has_rank_one_and_the_target_kernel_as_its_trace(normal):
    targets = normal(5, 3)
    K = spectrum.optimal_kernel(targets)
    assert K.shape == (5, 3, 5, 3)
    assert_close(torch.einsum("mini->mn", K), kernel.target_gram(targets))
    assert rank(K.reshape(15, 15)) == 1
    for i in range(3):
        for j in range(3):
            assert_close(K[:, i, :, j], torch.outer(targets[:, i], targets[:, j]))


@pytest.mark.spec("3.P61")
@pytest.mark.parametrize(
    "value",
    [
        lambda: kta(torch.zeros(3, 3), torch.eye(3)),
        lambda: biased(torch.ones(3, 3), torch.eye(3)),
        lambda: biased(torch.eye(1), torch.eye(1)),
        lambda: cka(torch.eye(3), torch.eye(3)),
        lambda: cka(torch.eye(6), torch.eye(6)),
        lambda: linear_kta(torch.zeros(3, 2), torch.ones(3, 1)),
        lambda: linear_biased(torch.full((5, 2), 0.1), torch.eye(5)),
        lambda: linear_cka(torch.full((50, 2), 1e3), torch.arange(100.0).reshape(50, 2)),
        lambda: linear_cka(torch.eye(3), torch.eye(3)),
        lambda: target_cka(torch.arange(8.0).reshape(4, 2), torch.tensor([1, 1, 1, 1])),
        lambda: target_cka(torch.arange(8.0).reshape(4, 2), torch.tensor([0, 3, 1, 2])),
        lambda: kernel.hsic(torch.eye(3), torch.eye(3)),
        lambda: kernel.participation_ratio(torch.zeros(2, 2)),
        lambda: kernel.participation_ratio(torch.ones(4, 4), center=True),
        lambda: kernel.cumulative_power(torch.eye(3), torch.zeros(3, 1)).curve[-1],
        lambda: spectrum.power_evenness(torch.tensor([0.0, 1.0]), 2),
        lambda: spectrum.spectral_gap(torch.tensor([1.0, 0.0, 0.0]), 2),
    ],
)
def test_undefined_values_are_nan(value):
    assert value().isnan().all()
