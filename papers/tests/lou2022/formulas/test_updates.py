"""One layer moves, the others stay: spec 4, freezing."""

import pytest
import torch

from tests.reference.tangent import frozen_update as reference
from tests.tolerances import assert_close
from theodolite.measures.tangent import centered_labels, stacked_kernel
from theodolite_papers.lou2022.formulas.feature_evolution import feature_kernel
from theodolite_papers.lou2022.formulas.losses import cross_entropy_gradient, squared_error_gradient
from theodolite_papers.lou2022.formulas.updates import (
    frozen_update,
    frozen_update_bounds,
    label_contribution,
)

N, K, RATE = 5, 3, 0.1


@pytest.fixture
def kernels(generator):
    shapes = [2, 7, 20]
    return [
        feature_kernel(torch.randn(N, K, p, generator=generator, dtype=torch.float64))
        for p in shapes
    ]


@pytest.fixture
def targets(generator):
    return torch.eye(K, dtype=torch.float64)[torch.randint(K, (N,), generator=generator)]


def test_update_is_minus_rate_times_kernel_times_gradient(kernels, generator):
    w = torch.randn(N, K, generator=generator, dtype=torch.float64)
    expected = reference(kernels[0].numpy(), w.numpy(), RATE)
    assert_close(frozen_update(kernels[0], w, RATE), expected, scale=10)


@pytest.mark.spec("4.P20")
@pytest.mark.parametrize("layer", range(3))
def test_update_is_bounded_by_spectral_radius_and_trace(kernels, targets, layer, generator):
    logits = torch.randn(N, K, generator=generator, dtype=torch.float64)
    w = cross_entropy_gradient(logits, targets)
    length = frozen_update(kernels[layer], w, RATE).norm()
    bounds = frozen_update_bounds(kernels[layer], w, RATE)
    radius = torch.linalg.eigvalsh(stacked_kernel(kernels[layer], center=False)).max()
    assert_close(bounds.spectral, RATE * radius * w.norm(), scale=float(radius))
    assert length <= bounds.spectral <= bounds.trace


@pytest.mark.spec("4.P20")
@pytest.mark.parametrize("layer", range(3))
def test_contribution_is_bounded_by_spectral_radius_and_trace(kernels, targets, layer):
    energy = centered_labels(targets).square().sum()
    matrix = stacked_kernel(kernels[layer], center=False)
    radius = torch.linalg.eigvalsh(matrix).max()
    contribution = label_contribution(kernels[layer], targets)
    assert contribution <= radius * energy <= matrix.trace() * energy


@pytest.mark.spec("4.P21")
def test_bounds_are_equalities_for_the_label_kernel(targets):
    y = centered_labels(targets)
    kernel = 3 * torch.einsum("xi,yj->xiyj", y, y)
    length = frozen_update(kernel, -y / N, RATE).norm()
    bounds = frozen_update_bounds(kernel, -y / N, RATE)
    assert_close(bounds.spectral, length)
    assert_close(bounds.trace, length)


@pytest.mark.spec("4.P21")
def test_bounds_are_strict_for_other_kernels(kernels, targets):
    bounds = frozen_update_bounds(kernels[1], centered_labels(targets), RATE)
    length = frozen_update(kernels[1], centered_labels(targets), RATE).norm()
    assert length < 0.99 * bounds.spectral < 0.9 * bounds.trace


@pytest.mark.spec("4.P22")
def test_layers_add_up(kernels, targets):
    total = sum(kernels)
    parts = sum(label_contribution(kernel, targets) for kernel in kernels)
    assert_close(label_contribution(total, targets), parts, scale=float(parts))
    w = centered_labels(targets)
    updates = sum(frozen_update(kernel, w, RATE) for kernel in kernels)
    assert_close(frozen_update(total, w, RATE), updates, scale=10)


@pytest.mark.spec("4.P23")
@pytest.mark.parametrize("level", [0.0, 4.0])
def test_equal_logits_move_the_outputs_exactly_along_the_kernel_image(kernels, targets, level):
    logits = torch.full((N, K), level, dtype=torch.float64)
    y = centered_labels(targets)
    update = frozen_update(kernels[0], cross_entropy_gradient(logits, targets), RATE)
    expected = RATE / N * stacked_kernel(kernels[0], center=False) @ y.flatten()
    assert_close(update.flatten(), expected)
    along = RATE / N * label_contribution(kernels[0], targets)
    assert_close((y * update).sum(), along, scale=float(along))


def test_squared_error_gradient_against_autograd(generator):
    outputs = torch.randn(N, K, generator=generator, dtype=torch.float64, requires_grad=True)
    targets = torch.randn(N, K, generator=generator, dtype=torch.float64)
    loss = (outputs - targets).square().sum(1).mean()
    (expected,) = torch.autograd.grad(loss, outputs)
    assert_close(squared_error_gradient(outputs, targets), expected)


@pytest.mark.parametrize("factor", [1e-200, 1e200])
def test_spectral_bound_survives_extreme_scales(kernels, factor):
    w = torch.ones(N, K, dtype=torch.float64)
    plain = frozen_update_bounds(kernels[0], w, RATE).spectral
    scaled = frozen_update_bounds(kernels[0] * factor, w, RATE).spectral
    assert_close(scaled / factor, plain, scale=float(plain))
