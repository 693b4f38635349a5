import math

import numpy as np
import pytest
import torch

from tests.reference import kernel_regression as reference
from tests.tolerances import assert_close
from theodolite.theory import kernel_regression

F64 = torch.float64
SHAPES = {"tall": (9, 4), "wide": (4, 9), "square": (5, 5)}


def features_and_targets(shape, generator):
    features = torch.randn(*shape, dtype=F64, generator=generator)
    return features, torch.randn(shape[0], 3, dtype=F64, generator=generator)


@pytest.mark.spec("3.P32")
@pytest.mark.parametrize("ridge", [0.0, 1e-6, 0.3, 50.0])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_probe_equals_kernel_regression(shape, ridge, generator):
    features, targets = features_and_targets(shape, generator)
    fresh = torch.randn(6, shape[1], dtype=F64, generator=generator)
    weights = kernel_regression.linear_probe(features, targets, ridge)
    expected = reference.ridge_weights(features.numpy(), targets.numpy(), ridge)
    # The reference solves d x d equations, which a ridge of 1e-6 alone makes regular for n < d.
    assert_close(weights, expected, scale=10)
    gram, cross = features @ features.T, fresh @ features.T
    predictions = kernel_regression.kernel_regression(gram, targets, cross, ridge)
    # Null modes of a tall Gram: rounding of the cross products, 1e-15, over a ridge of 1e-6.
    assert_close(fresh @ weights, predictions, scale=10)


@pytest.mark.spec("3.P32")
def test_rank_deficient_probe_has_the_smallest_norm(generator):
    base = torch.randn(7, 2, dtype=F64, generator=generator)
    features = torch.cat([base, base], dim=1)
    targets = torch.randn(7, 1, dtype=F64, generator=generator)
    weights = kernel_regression.linear_probe(features, targets)
    assert_close(weights[:2], weights[2:])
    assert_close(features @ weights, base @ kernel_regression.linear_probe(base, targets))
    gram = features @ features.T
    assert_close(kernel_regression.kernel_regression(gram, targets, gram), features @ weights)


@pytest.mark.parametrize("samples", [0.0, 1.0, 3.0, 7.5, 40.0, 1e6])
@pytest.mark.parametrize("ridge", [1e-9, 0.1, 10.0])
def test_theory_equals_arbitrary_precision(samples, ridge):
    eigenvalues = torch.tensor([10.0**-k for k in range(8)] + [0.0], dtype=F64)
    power = torch.tensor([1.0 / (1 + k) for k in range(9)], dtype=F64)
    kappa, _, error = reference.precise_error(
        eigenvalues.tolist(), power.tolist(), samples, ridge, 0.2
    )
    assert kernel_regression.effective_ridge(eigenvalues, samples, ridge).item() == pytest.approx(
        kappa, rel=1e-12
    )
    found = kernel_regression.generalization_error(eigenvalues, power, samples, ridge, 0.2)
    assert found.item() == pytest.approx(error, rel=1e-10)


@pytest.mark.spec("3.P33")
@pytest.mark.parametrize("ridge", [0.0, 1e-12, 0.5])
@pytest.mark.parametrize("samples", [1.0, 4.0, 6.0, 20.0])
def test_effective_ridge_is_the_fixed_point(samples, ridge):
    eta = torch.tensor([3.0, 1.0, 0.5, 0.1, 1e-3, 1e-7, 0.0], dtype=F64)
    kappa = kernel_regression.effective_ridge(eta, samples, ridge)
    assert ridge <= kappa.item() <= ridge + eta.sum().item()
    if ridge == 0 and samples >= 6:
        assert kappa.item() == 0
    else:
        right = ridge + (kappa * eta / (kappa + samples * eta)).sum()
        assert kappa.item() == pytest.approx(right.item(), rel=1e-9)
        assert kappa.item() > 0


@pytest.mark.spec("3.P33")
def test_effective_ridge_scales_with_the_kernel():
    eta = torch.tensor([3.0, 1.0, 0.5, 1e-5], dtype=F64)
    for scale in (1e-200, 1e200):
        found = kernel_regression.effective_ridge(
            scale * eta, torch.tensor([1.0, 2.5], dtype=F64), scale * 0.1
        )
        expected = kernel_regression.effective_ridge(eta, torch.tensor([1.0, 2.5], dtype=F64), 0.1)
        assert_close(found / scale, expected)


@pytest.mark.spec("3.P33")
@pytest.mark.parametrize("small", [0.3, 1e-20, 1e-200])
def test_effective_ridge_of_two_modes_and_one_sample(small):
    """Here the fixed point is the geometric mean of the two eigenvalues."""
    kappa = kernel_regression.effective_ridge(torch.tensor([1.0, small], dtype=F64), 1.0)
    assert kappa.item() == pytest.approx(math.sqrt(small), rel=1e-12)


@pytest.mark.spec("3.P34")
def test_without_samples_the_error_is_the_power_and_zero_modes_keep_theirs():
    eta = torch.tensor([1.0, 0.1, 0.0], dtype=F64)
    power = torch.tensor([0.5, 0.3, 0.2], dtype=F64)
    samples = torch.tensor([0.0, 3.0, 1e9], dtype=F64)
    errors = kernel_regression.generalization_error(eta, power, samples)
    assert errors[0].item() == pytest.approx(1.0)
    assert errors[1].item() == pytest.approx(0.2 * 3.0)  # 1 / (1 - 2/3)
    assert errors[2].item() == pytest.approx(0.2, rel=1e-6)
    zero = kernel_regression.generalization_error(torch.zeros(2, dtype=F64), power[:2], 10.0)
    assert zero.item() == pytest.approx(0.8)


@pytest.mark.spec("3.P34")
def test_interpolation_peak_is_infinite():
    eta, power = torch.tensor([1.0, 0.1], dtype=F64), torch.tensor([0.5, 0.5], dtype=F64)
    assert kernel_regression.generalization_error(eta, power, 2.0).item() == math.inf
    assert kernel_regression.generalization_error(eta, power, 2.0, ridge=0.1).isfinite()
    assert kernel_regression.generalization_error(eta, power, 3.0).item() == 0
    noisy = kernel_regression.generalization_error(eta, power, 3.0, noise=0.3)
    assert noisy.item() == pytest.approx(0.3 * (2 / 3) / (1 - 2 / 3))


@pytest.mark.spec("3.P36")
@pytest.mark.parametrize(
    ("samples", "ridge", "noise"),
    [(10, 0.05, 0.0), (40, 0.05, 0.0), (40, 1e-9, 0.1), (150, 0.5, 0.1)],
    ids=["few", "more", "noisy ridgeless", "many"],
)
def test_theory_predicts_regressions_on_fresh_samples(samples, ridge, noise):
    rng = np.random.default_rng(0)
    eigenvalues = np.arange(1, 101) ** -1.5
    coefficients = np.arange(1, 101) ** -1.0
    mean, error = reference.sampled_error(
        eigenvalues, coefficients, samples, ridge, noise, draws=200, rng=rng
    )
    predicted = kernel_regression.generalization_error(
        torch.from_numpy(eigenvalues),
        torch.from_numpy(coefficients**2),
        float(samples),
        ridge,
        noise,
    ).item()
    assert predicted == pytest.approx(mean, rel=0.1)
    assert error < 0.04 * mean


@pytest.mark.spec("3.P36")
def test_library_regression_has_the_predicted_error(generator):
    eta = torch.arange(1, 41, dtype=F64) ** -1.5
    a = torch.arange(1, 41, dtype=F64) ** -1.0
    errors = []
    for _ in range(60):
        train = torch.randn(25, 40, dtype=F64, generator=generator)
        test = torch.randn(200, 40, dtype=F64, generator=generator)
        gram, cross = (train * eta) @ train.T, (test * eta) @ train.T
        found = kernel_regression.kernel_regression(gram, (train @ a)[:, None], cross, 0.1)
        errors.append((found[:, 0] - test @ a).square().mean().item())
    predicted = kernel_regression.generalization_error(eta, a.square(), 25.0, ridge=0.1).item()
    assert np.mean(errors) == pytest.approx(predicted, rel=0.1)


@pytest.mark.spec("3.P36")
def test_learning_curve_is_one_call():
    eta, power = torch.tensor([1.0, 0.3, 0.1]), torch.tensor([0.5, 0.3, 0.2])
    samples = torch.tensor([[0.0, 1.0], [2.0, 10.0]])
    curve = kernel_regression.generalization_error(eta, power, samples, 0.01)
    assert curve.shape == (2, 2)
    assert curve.dtype == torch.float32
    assert (curve.flatten().diff() < 0).all()
    single = kernel_regression.generalization_error(eta, power, 2.0, 0.01)
    assert_close(curve[1, 0], single, dtype=torch.float32)


@pytest.mark.spec("3.P37")
def test_scalar_optimal_kernel_learns_from_one_sample(generator):
    values = torch.randn(8, 1, dtype=F64, generator=generator)
    kernel = values @ values.T
    found = kernel_regression.kernel_regression(kernel[3:4, 3:4], values[3:4], kernel[:, 3:4])
    assert_close(found, values, scale=10)


@pytest.mark.spec("3.P37")
def test_target_kernel_learns_from_one_sample_per_class():
    labels = torch.tensor([0, 1, 2, 2, 1, 0, 0])
    targets = torch.eye(3, dtype=F64)[labels]
    kernel = targets @ targets.T
    train = [0, 1, 2]
    found = kernel_regression.kernel_regression(
        kernel[train][:, train], targets[train], kernel[:, train]
    )
    assert_close(found, targets)


@pytest.mark.spec("3.P37")
def test_operator_optimal_kernel_learns_all_classes_from_one_sample(generator):
    values = torch.randn(6, 4, dtype=F64, generator=generator)
    kernel = torch.einsum("mi,nj->minj", values, values)
    block, cross = kernel[2, :, 2, :], kernel[:, :, 2, :].reshape(24, 4)
    found = kernel_regression.kernel_regression(block, values[2][:, None], cross).reshape(6, 4)
    assert_close(found, values, scale=10)


ONES = torch.ones(2, dtype=F64)


def smooth_kernel(n, generator):
    """Gram of a smooth kernel, whose eigenvalues fall by many decades, with labels it can fit."""
    x = torch.randn(n, 3, dtype=F64, generator=generator)
    gram = torch.exp(-torch.cdist(x, x).square() / 18)
    return gram, torch.sin(2 * x[:, :1])


@pytest.mark.parametrize("ridge", [1e-4, 1e-3])
def test_a_ridge_above_rounding_keeps_every_mode_of_a_float32_gram(ridge, generator):
    gram, targets = smooth_kernel(400, generator)
    train, test = gram[:300, :300], gram[300:, :300]
    exact = test @ torch.linalg.solve(train + ridge * torch.eye(300, dtype=F64), targets[:300])
    found = kernel_regression.kernel_regression(
        train.float(), targets[:300].float(), test.float(), ridge
    )
    # Rounding of the Gram moves eigenvalues by 1e-6 at most, a hundredth of the smaller ridge.
    torch.testing.assert_close(found.double(), exact, rtol=0, atol=2e-2 * 1e-4 / ridge)


def test_a_ridge_below_rounding_does_not_blow_up_the_null_space(generator):
    features = torch.randn(20, 3, dtype=F64, generator=generator)
    gram = features @ features.T
    targets = torch.randn(20, 1, dtype=F64, generator=generator)
    found = kernel_regression.kernel_regression(gram, targets, gram, 1e-30)
    assert_close(found, kernel_regression.kernel_regression(gram, targets, gram))


def operator_problem(generator):
    """Tangent-like features (n, c, p) of training and test examples, and targets."""
    train, test = (torch.randn(n, 2, 30, dtype=F64, generator=generator) for n in (6, 4))
    kernel = torch.einsum("xip,yjp->xiyj", train, train)
    cross = torch.einsum("xip,yjp->xiyj", test, train)
    return kernel, cross, torch.randn(6, 2, dtype=F64, generator=generator), (train, test)


@pytest.mark.parametrize("ridge", [0.0, 0.5])
def test_operator_valued_kernels_are_regressed_over_stacked_outputs(ridge, generator):
    kernel, cross, targets, (train, test) = operator_problem(generator)
    weights = kernel_regression.linear_probe(train.flatten(0, 1), targets.reshape(-1, 1), ridge)
    found = kernel_regression.kernel_regression(kernel, targets, cross, ridge)
    assert_close(found, (test @ weights).squeeze(-1), scale=10)
