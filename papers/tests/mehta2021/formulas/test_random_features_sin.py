import math

import numpy as np
import pytest
import torch

from tests.reference import random_features as reference
from tests.tolerances import assert_close
from theodolite_papers.mehta2021.formulas import random_features

F64 = torch.float64
SIGMAS = [1e-6, 0.1, 1.0, 3.0, 40.0]
BOUNDED = 1 + 1e-12


@pytest.fixture
def inputs(generator):
    x = torch.randn(5, 3, dtype=F64, generator=generator)
    return torch.cat([x, -x[:1], x[1:2] * (1 + 1e-7), torch.zeros(1, 3, dtype=F64)])


@pytest.fixture(scope="module")
def crowd():
    """Ten thousand random pairs: each of 100 inputs against each of 100 others."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(100, 4, dtype=F64, generator=generator)
    y = torch.randn(100, 4, dtype=F64, generator=generator)
    y[:30] = -x[:30] + 0.1 * y[:30]  # nearly opposite pairs are where bounds are tight
    return x, y


@pytest.mark.parametrize("sigma", SIGMAS)
def test_kernel_equals_arbitrary_precision(sigma, inputs):
    found = random_features.sin_kernel(inputs, inputs, sigma)
    for i, x in enumerate(inputs.tolist()):
        for j, y in enumerate(inputs.tolist()):
            expected = reference.sin_kernel(x, y, sigma)
            assert found[i, j].item() == pytest.approx(expected, rel=1e-9, abs=1e-300)


def test_kernel_with_bias_is_the_gaussian_kernel(inputs):
    distance = (inputs[:, None] - inputs).square().sum(-1)
    found = random_features.sin_kernel(inputs, inputs, 0.7, bias=True)
    assert_close(found, torch.exp(-(0.7**2) * distance / 2) / 2)


@pytest.mark.parametrize("sigma", [0.01, 1.0, 700.0])
def test_extreme_scales_neither_overflow_nor_cancel(sigma):
    x = torch.tensor([[30.0, 0.0], [30.0, 1e-3]], dtype=F64)
    found = random_features.sin_kernel(x, x, sigma)
    for i in range(2):
        for j in range(2):
            expected = reference.sin_kernel(x[i].tolist(), x[j].tolist(), sigma)
            assert found[i, j].item() == pytest.approx(expected, rel=1e-9)


@pytest.mark.spec("5.P47")
@pytest.mark.parametrize("sigma", SIGMAS)
def test_one_sided_bound_and_where_it_is_two_sided(sigma, crowd):
    x, y = crowd
    exact = random_features.sin_kernel(x, y, sigma)
    half = random_features.sin_bound(x, y, sigma, "one_sided")
    assert (exact <= half * BOUNDED).all()
    assert_close(random_features.sin_bound(x, y, sigma, "printed"), 2 * half)
    acute = x @ y.T >= 0
    assert (exact.abs() <= half * BOUNDED)[acute].all()
    if sigma >= 1:
        assert not (exact.abs() <= 2 * half)[~acute].all()


@pytest.mark.spec("5.P48")
@pytest.mark.parametrize("sigma", SIGMAS)
def test_corrected_and_proof_bounds_always_hold(sigma, crowd):
    x, y = crowd
    exact = random_features.sin_kernel(x, y, sigma).abs()
    corrected, proof = (
        random_features.sin_bound(x, y, sigma, form) for form in ("corrected", "proof")
    )
    assert (exact <= corrected * BOUNDED).all()
    assert (exact <= proof * BOUNDED).all()
    assert (corrected <= proof / 2 * BOUNDED).all()
    x0, y0 = x.numpy()[0], y.numpy()[0]
    delta = y0 - np.dot(x0, y0) / np.dot(x0, x0) * x0
    assert proof[0, 0].item() == pytest.approx(math.exp(-(sigma**2) * np.dot(delta, delta) / 2))


@pytest.mark.spec("5.P48")
def test_proof_bound_of_a_zero_input():
    zero, y = torch.zeros(1, 2, dtype=F64), torch.ones(1, 2, dtype=F64)
    assert random_features.sin_bound(zero, y, 1.0, "proof").item() == pytest.approx(math.exp(-1))
    assert random_features.sin_bound(y, zero, 1.0, "proof").item() == 1
    assert random_features.sin_kernel(zero, y, 1.0).item() == 0


@pytest.mark.spec("5.P49")
def test_opposite_inputs_break_the_printed_bound():
    x = torch.tensor([[1.0, 2.0]], dtype=F64)
    assert random_features.sin_kernel(x, -x, 3.0).item() == pytest.approx(-0.5)
    assert random_features.sin_bound(x, -x, 3.0, "printed").item() < 1e-30
    assert random_features.sin_bound(x, -x, 3.0, "corrected").item() == 0.5


@pytest.mark.spec("5.P50")
@pytest.mark.parametrize("sigma", [0.2, 1.0])
def test_simulated_layers_agree(sigma, inputs, generator):
    check = random_features.check_sin_theorem(
        inputs, sigma, width=64, draws=400, generator=generator
    )
    assert check.simulation_agrees.all()
    assert check.standard_error.max() < 0.01
    assert check.printed_holds.all()
    assert check.corrected_holds.all()
    assert check.proof_holds.all()
    acute = inputs @ inputs.T >= 0
    assert check.printed_holds_absolute[acute].all()
    assert_close(check.exact, random_features.sin_kernel(inputs, inputs, sigma))


@pytest.mark.spec("5.P50")
def test_simulated_layers_with_bias_agree(inputs, generator):
    weights = 0.6 * torch.randn(40_000, 3, dtype=F64, generator=generator)
    phases = 2 * torch.pi * torch.rand(40_000, dtype=F64, generator=generator)
    hidden = torch.sin(inputs @ weights.T + phases)
    products = hidden[:, None] * hidden
    error = products.std(-1) / 40_000**0.5
    exact = random_features.sin_kernel(inputs, inputs, 0.6, bias=True)
    assert ((products.mean(-1) - exact).abs() <= 5 * error).all()


@pytest.mark.spec("5.P50")
def test_check_notices_a_wrong_simulation(inputs):
    """A layer of another scale is found out: the agreement is not vacuous."""
    generator = torch.Generator().manual_seed(0)
    right = random_features.check_sin_theorem(inputs, 0.5, width=64, draws=400, generator=generator)
    wrong = random_features.sin_kernel(inputs, inputs, 0.55)
    assert ((right.simulated - wrong).abs() > 5 * right.standard_error).any()


def test_standard_error_is_that_of_the_draws(inputs):
    generator = torch.Generator().manual_seed(5)
    layers = [torch.randn(16, 3, dtype=F64, generator=generator) for _ in range(3)]
    hidden = [torch.sin(inputs @ (0.7 * weights).T) for weights in layers]
    products = torch.stack([h @ h.T / 16 for h in hidden])
    again = torch.Generator().manual_seed(5)
    check = random_features.check_sin_theorem(inputs, 0.7, width=16, draws=3, generator=again)
    assert_close(check.simulated, products.mean(0))
    assert_close(check.standard_error, products.std(0) / 3**0.5, scale=100)


@pytest.mark.spec("5.P51")
@pytest.mark.parametrize("sigma", SIGMAS)
def test_energy_is_the_diagonal(sigma, inputs):
    energy = random_features.sin_energy(inputs, sigma)
    assert_close(energy, torch.diagonal(random_features.sin_kernel(inputs, inputs, sigma)))
    norms = inputs.square().sum(1).tolist()
    expected = [-math.expm1(-2 * sigma**2 * norm) / 2 for norm in norms]
    np.testing.assert_allclose(energy, expected, rtol=1e-12)


@pytest.mark.spec("5.P51")
def test_energy_of_a_simulated_layer(inputs, generator):
    weights = 0.4 * torch.randn(40_000, 3, dtype=F64, generator=generator)
    squares = torch.sin(inputs @ weights.T).square()
    error = squares.std(1) / 200
    assert ((squares.mean(1) - random_features.sin_energy(inputs, 0.4)).abs() <= 5 * error).all()


@pytest.mark.spec("5.P52")
@pytest.mark.parametrize("sigma", [1e-200, 1e-6, 0.02, 0.3, 1.0, 4.0])
def test_cosine_equals_the_sinh_form(sigma, generator):
    x = torch.randn(4, 3, dtype=F64, generator=generator)
    found = random_features.sin_cosine(x, x, sigma)
    for i in range(4):
        for j in range(4):
            expected = reference.sin_cosine(x[i].tolist(), x[j].tolist(), sigma)
            assert found[i, j].item() == pytest.approx(expected, rel=1e-9)


@pytest.mark.spec("5.P52")
def test_cosine_limits(generator):
    x = torch.randn(4, 3, dtype=F64, generator=generator)
    unit = x / x.norm(dim=1, keepdim=True)
    assert_close(random_features.sin_cosine(x, x, 1e-5), unit @ unit.T, scale=10)
    assert_close(random_features.sin_cosine(x, x, 1e3), torch.eye(4))
    assert_close(random_features.sin_cosine(x, -x, 1e3), -torch.eye(4))
    assert random_features.sin_cosine(x, torch.zeros(1, 3, dtype=F64), 1.0).isnan().all()


@pytest.mark.spec("5.P52")
def test_cosine_of_equal_norms_falls_with_scale(generator):
    x = torch.randn(6, 4, dtype=F64, generator=generator)
    x = x / x.norm(dim=1, keepdim=True)
    sigmas = np.linspace(0.05, 4, 60).tolist()
    values = torch.stack([random_features.sin_cosine(x, x, sigma).abs() for sigma in sigmas])
    off_diagonal = ~torch.eye(6, dtype=torch.bool)
    assert (values.diff(dim=0)[:, off_diagonal] < 0).all()


@pytest.mark.spec("5.P53")
def test_wide_layer_reproduces_the_alignment(generator):
    x = torch.randn(6, 4, dtype=F64, generator=generator) + 0.5
    for sigma in (0.1, 0.5):
        weights = sigma * torch.randn(60_000, 4, dtype=F64, generator=generator)
        simulated, error = reference.layer_omega(torch.sin(x @ weights.T).numpy())
        assert abs(random_features.expected_alignment(x, sigma).item() - simulated) <= 5 * error
        assert error < 0.003


@pytest.mark.spec("5.P53")
def test_alignment_falls_with_scale_for_equal_norms_and_acute_angles(generator):
    x = torch.rand(8, 5, dtype=F64, generator=generator)
    x = x / x.norm(dim=1, keepdim=True)
    sigmas = np.geomspace(0.01, 30, 60).tolist()
    values = torch.stack([random_features.expected_alignment(x, sigma) for sigma in sigmas])
    assert (values.diff() < 0).all()
    assert values[-1] < 1e-3
    cosines = random_features.sin_cosine(x, x, 0.8)
    mean = (cosines.sum() - 8) / 56
    assert_close(random_features.expected_alignment(x, 0.8), mean)


@pytest.mark.spec("5.P53")
def test_alignment_need_not_fall_for_unequal_norms():
    x = torch.tensor([[1.0, 0.0], [0.2, 0.0], [0.2, 0.0]], dtype=F64)
    values = torch.stack(
        [random_features.expected_alignment(x, sigma) for sigma in (0.1, 1.0, 2.0)]
    )
    assert (values.diff() > 0).any()
