import math

import numpy as np
import pytest
import torch

from tests.reference import kernel_regression as reference
from tests.tolerances import assert_close
from theodolite.errors import DomainError
from theodolite.theory import kernel_regression as theory
from theodolite.theory.kernel_regression import _effective_ridge, shortcut_parts

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
    weights = theory.linear_probe(features, targets, ridge)
    expected = reference.ridge_weights(features.numpy(), targets.numpy(), ridge)
    # The reference solves d x d equations, which a ridge of 1e-6 alone makes regular for n < d.
    assert_close(weights, expected, scale=10)
    gram, cross = features @ features.T, fresh @ features.T
    predictions = theory.kernel_regression(gram, targets, cross, ridge)
    # Null modes of a tall Gram: rounding of the cross products, 1e-15, over a ridge of 1e-6.
    assert_close(fresh @ weights, predictions, scale=10)


@pytest.mark.spec("3.P32")
def test_rank_deficient_probe_has_the_smallest_norm(generator):
    base = torch.randn(7, 2, dtype=F64, generator=generator)
    features = torch.cat([base, base], dim=1)
    targets = torch.randn(7, 1, dtype=F64, generator=generator)
    weights = theory.linear_probe(features, targets)
    assert_close(weights[:2], weights[2:])
    assert_close(features @ weights, base @ theory.linear_probe(base, targets))
    gram = features @ features.T
    assert_close(theory.kernel_regression(gram, targets, gram), features @ weights)


@pytest.mark.parametrize("samples", [0.0, 1.0, 3.0, 7.5, 40.0, 1e6])
@pytest.mark.parametrize("ridge", [1e-9, 0.1, 10.0])
def test_theory_equals_arbitrary_precision(samples, ridge):
    eigenvalues = torch.tensor([10.0**-k for k in range(8)] + [0.0], dtype=F64)
    power = torch.tensor([1.0 / (1 + k) for k in range(9)], dtype=F64)
    kappa, _, error = reference.precise_error(
        eigenvalues.tolist(), power.tolist(), samples, ridge, 0.2
    )
    assert theory.effective_ridge(eigenvalues, samples, ridge).item() == pytest.approx(
        kappa, rel=1e-12
    )
    found = theory.generalization_error(eigenvalues, power, samples, ridge, 0.2)
    assert found.item() == pytest.approx(error, rel=1e-10)


@pytest.mark.spec("3.P33")
@pytest.mark.parametrize("ridge", [0.0, 1e-12, 0.5])
@pytest.mark.parametrize("samples", [1.0, 4.0, 6.0, 20.0])
def test_effective_ridge_is_the_fixed_point(samples, ridge):
    eta = torch.tensor([3.0, 1.0, 0.5, 0.1, 1e-3, 1e-7, 0.0], dtype=F64)
    kappa = theory.effective_ridge(eta, samples, ridge)
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
        found = theory.effective_ridge(
            scale * eta, torch.tensor([1.0, 2.5], dtype=F64), scale * 0.1
        )
        expected = theory.effective_ridge(eta, torch.tensor([1.0, 2.5], dtype=F64), 0.1)
        assert_close(found / scale, expected)


@pytest.mark.spec("3.P33")
@pytest.mark.parametrize("small", [0.3, 1e-20, 1e-200])
def test_effective_ridge_of_two_modes_and_one_sample(small):
    """Here the fixed point is the geometric mean of the two eigenvalues."""
    kappa = theory.effective_ridge(torch.tensor([1.0, small], dtype=F64), 1.0)
    assert kappa.item() == pytest.approx(math.sqrt(small), rel=1e-12)


@pytest.mark.spec("3.P34")
def test_without_samples_the_error_is_the_power_and_zero_modes_keep_theirs():
    eta = torch.tensor([1.0, 0.1, 0.0], dtype=F64)
    power = torch.tensor([0.5, 0.3, 0.2], dtype=F64)
    samples = torch.tensor([0.0, 3.0, 1e9], dtype=F64)
    errors = theory.generalization_error(eta, power, samples)
    assert errors[0].item() == pytest.approx(1.0)
    assert errors[1].item() == pytest.approx(0.2 * 3.0)  # 1 / (1 - 2/3)
    assert errors[2].item() == pytest.approx(0.2, rel=1e-6)
    zero = theory.generalization_error(torch.zeros(2, dtype=F64), power[:2], 10.0)
    assert zero.item() == pytest.approx(0.8)


@pytest.mark.spec("3.P34")
def test_interpolation_peak_is_infinite():
    eta, power = torch.tensor([1.0, 0.1], dtype=F64), torch.tensor([0.5, 0.5], dtype=F64)
    assert theory.generalization_error(eta, power, 2.0).item() == math.inf
    assert theory.generalization_error(eta, power, 2.0, ridge=0.1).isfinite()
    assert theory.generalization_error(eta, power, 3.0).item() == 0
    noisy = theory.generalization_error(eta, power, 3.0, noise=0.3)
    assert noisy.item() == pytest.approx(0.3 * (2 / 3) / (1 - 2 / 3))


@pytest.mark.spec("3.P35")
@pytest.mark.parametrize("modes", range(7))
def test_shortcut_bound_holds_on_ten_thousand_problems(modes):
    generator = torch.Generator().manual_seed(modes)
    eta, power = torch.rand(2, 10_000, 6, dtype=F64, generator=generator)
    eta = (10 ** (-6 * eta)).sort(-1, descending=True).values
    samples = 30 * torch.rand(10_000, dtype=F64, generator=generator)
    kappa = _effective_ridge(eta, samples, 1e-3)
    remaining = (kappa[:, None] / (kappa[:, None] + samples[:, None] * eta)).square()
    value, target, bound = shortcut_parts(remaining, power, modes)
    assert ((value - target).abs() <= bound + 1e-12).all()
    assert ((value - target).abs() > 0.5 * bound).any()


@pytest.mark.spec("3.P35")
@pytest.mark.parametrize("seed", range(5))
def test_shortcut_is_that_of_the_error(seed):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(10):
        eta = 10 ** (-6 * torch.rand(8, dtype=F64, generator=generator))
        eta = eta.sort(descending=True).values
        power = torch.rand(8, dtype=F64, generator=generator)
        samples = 30 * torch.rand((), dtype=F64, generator=generator).item()
        ridge = 10 ** (-4 * torch.rand((), dtype=F64, generator=generator).item())
        modes = int(torch.randint(0, 9, (), generator=generator))
        shortcut = theory.power_shortcut(eta, power, samples, ridge, modes)
        assert (shortcut.target - shortcut.value).abs() <= shortcut.bound + 1e-12
        error = theory.generalization_error(eta, power, samples, ridge)
        scaled = (1 - shortcut.gamma) * error / power.sum()
        assert scaled.item() == pytest.approx(shortcut.target.item(), rel=1e-9)
        assert shortcut.value.item() == pytest.approx((power[modes:].sum() / power.sum()).item())


@pytest.mark.spec("3.P35")
def test_shortcut_is_good_where_the_spectrum_has_a_gap():
    eta = torch.tensor([1.0, 0.9] + [1e-8] * 40, dtype=F64)
    power = torch.tensor([0.6, 0.1] + [0.3 / 40] * 40, dtype=F64)
    shortcut = theory.power_shortcut(eta, power, 400.0, ridge=1e-3)
    assert shortcut.modes == 2
    assert shortcut.bound < 0.01
    error = theory.generalization_error(eta, power, 400.0, ridge=1e-3)
    assert error.item() == pytest.approx(shortcut.value.item(), rel=0.02)


@pytest.mark.spec("3.P35")
def test_printed_condition_is_not_enough():
    """At ``P eta = kappa`` the mode itself still keeps a quarter of its error."""
    eta, power = torch.tensor([1.0, 1e-9], dtype=F64), torch.tensor([1.0, 0.0], dtype=F64)
    shortcut = theory.power_shortcut(eta, power, samples=1.0, ridge=0.5, modes=1)
    kappa = theory.effective_ridge(eta, 1.0, 0.5)
    assert kappa.item() == pytest.approx(1.0, abs=1e-6)
    assert shortcut.value == 0
    assert shortcut.target.item() == pytest.approx(0.25, abs=1e-6)


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
    predicted = theory.generalization_error(
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
        found = theory.kernel_regression(gram, (train @ a)[:, None], cross, 0.1)
        errors.append((found[:, 0] - test @ a).square().mean().item())
    predicted = theory.generalization_error(eta, a.square(), 25.0, ridge=0.1).item()
    assert np.mean(errors) == pytest.approx(predicted, rel=0.1)


@pytest.mark.spec("3.P35")
def test_one_mode_is_enough():
    eta, power = torch.tensor([0.5], dtype=F64), torch.tensor([2.0], dtype=F64)
    shortcut = theory.power_shortcut(eta, power, 4.0, ridge=0.1)
    kappa = theory.effective_ridge(eta, 4.0, 0.1)
    assert shortcut.modes == 1
    assert_close(shortcut.target, (kappa / (kappa + 2)).square())
    assert_close(shortcut.bound, shortcut.target)


@pytest.mark.spec("3.P36")
def test_learning_curve_is_one_call():
    eta, power = torch.tensor([1.0, 0.3, 0.1]), torch.tensor([0.5, 0.3, 0.2])
    samples = torch.tensor([[0.0, 1.0], [2.0, 10.0]])
    curve = theory.generalization_error(eta, power, samples, 0.01)
    assert curve.shape == (2, 2)
    assert curve.dtype == torch.float32
    assert (curve.flatten().diff() < 0).all()
    single = theory.generalization_error(eta, power, 2.0, 0.01)
    assert_close(curve[1, 0], single, dtype=torch.float32)


@pytest.mark.spec("3.P37")
def test_scalar_optimal_kernel_learns_from_one_sample(generator):
    values = torch.randn(8, 1, dtype=F64, generator=generator)
    kernel = values @ values.T
    found = theory.kernel_regression(kernel[3:4, 3:4], values[3:4], kernel[:, 3:4])
    assert_close(found, values, scale=10)


@pytest.mark.spec("3.P37")
def test_target_kernel_learns_from_one_sample_per_class():
    labels = torch.tensor([0, 1, 2, 2, 1, 0, 0])
    targets = torch.eye(3, dtype=F64)[labels]
    kernel = targets @ targets.T
    train = [0, 1, 2]
    found = theory.kernel_regression(kernel[train][:, train], targets[train], kernel[:, train])
    assert_close(found, targets)


@pytest.mark.spec("3.P37")
def test_operator_optimal_kernel_learns_all_classes_from_one_sample(generator):
    values = torch.randn(6, 4, dtype=F64, generator=generator)
    kernel = torch.einsum("mi,nj->minj", values, values)
    block, cross = kernel[2, :, 2, :], kernel[:, :, 2, :].reshape(24, 4)
    found = theory.kernel_regression(block, values[2][:, None], cross).reshape(6, 4)
    assert_close(found, values, scale=10)


@pytest.mark.spec("3.P54")
@pytest.mark.parametrize("start", [None, 1.5], ids=["from zero", "from elsewhere"])
def test_modes_of_a_static_kernel_decay_exponentially(start, generator):
    features, targets = features_and_targets((5, 8), generator)
    gram = features @ features.T / 8
    begin = None if start is None else torch.full_like(targets, start)
    times = torch.tensor([0.0, 0.3, 2.0], dtype=F64)
    flow = theory.gradient_flow_predictions(gram, targets, times, begin)
    values, vectors = np.linalg.eigh(gram.numpy())
    first = targets - (0 if begin is None else begin)
    for index, time in enumerate(times.tolist()):
        error = vectors.T @ (targets - flow[index]).numpy()
        expected = np.exp(-values * time)[:, None] * (vectors.T @ first.numpy())
        assert_close(error, expected)


@pytest.mark.spec("3.P54")
def test_flow_is_the_limit_of_small_steps(generator):
    features, targets = features_and_targets((5, 8), generator)
    gram = features @ features.T / 8
    flow = theory.gradient_flow_predictions(gram, targets, torch.tensor([1.0], dtype=F64))[0]
    errors = []
    for steps in (1000, 2000):
        predictions = torch.zeros_like(targets)
        for _ in range(steps):
            predictions = predictions - gram @ (predictions - targets) / steps
        errors.append((flow - predictions).abs().max().item())
    assert errors[0] < 1e-2
    assert errors[0] / errors[1] == pytest.approx(2, rel=0.01)  # first order in the step


def test_alignment_from_the_spectrum(generator):
    features, targets = features_and_targets((9, 4), generator)
    gram, target = (features @ features.T).numpy(), (targets @ targets.T).numpy()
    values, vectors = np.linalg.eigh(gram)
    eta = np.clip(values[::-1], 0, None) / 9
    power = np.square(vectors[:, ::-1].T @ targets.numpy()).sum(1) / 9
    found = theory.spectral_alignment(eta, power, float(np.linalg.norm(target) / 9))
    assert_close(found, reference.alignment(gram, target))
    curve = np.cumsum(power) / power.sum()
    by_parts = power.sum() * np.sum((eta - np.append(eta[1:], 0)) * curve)
    assert_close(found, by_parts / (np.linalg.norm(eta) * np.linalg.norm(target) / 9))


def test_undefined_values_are_nan():
    zero = torch.zeros(3, dtype=F64)
    assert theory.spectral_alignment(zero, zero, 1.0).isnan()
    assert theory.power_shortcut(torch.ones(3, dtype=F64), zero, 2.0).value.isnan()


ONES = torch.ones(2, dtype=F64)


@pytest.mark.parametrize(
    "call",
    [
        lambda: theory.effective_ridge(-ONES, 1.0),
        lambda: theory.effective_ridge(ONES, -1.0),
        lambda: theory.effective_ridge(ONES, 1.0, ridge=-1.0),
        lambda: theory.effective_ridge(ONES * math.nan, 1.0),
        lambda: theory.generalization_error(ONES, -ONES, 1.0),
        lambda: theory.generalization_error(ONES, ONES, 1.0, noise=-1.0),
        lambda: theory.power_shortcut(torch.tensor([1.0, 2.0]), torch.ones(2), 1.0),
        lambda: theory.power_shortcut(ONES, ONES, 1.0, modes=3),
        lambda: theory.linear_probe(torch.ones(2, 1), torch.ones(2, 1), -1.0),
        lambda: theory.kernel_regression(torch.eye(1), torch.ones(1, 1), torch.ones(1, 1), -1.0),
        lambda: theory.kernel_regression(
            torch.tensor([[1.0, 0.0], [1.0, 1.0]]), torch.ones(2, 1), torch.ones(1, 2)
        ),
        lambda: theory.gradient_flow_predictions(
            torch.eye(1), torch.ones(1, 1), torch.tensor([-1.0])
        ),
    ],
    ids=[
        "eigenvalue", "samples", "ridge", "nan", "power", "noise", "order", "modes",
        "probe ridge", "kernel ridge", "asymmetric", "time",
    ],
)  # fmt: skip
def test_malformed_numbers_are_refused(call):
    with pytest.raises(DomainError):
        call()


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
    found = theory.kernel_regression(train.float(), targets[:300].float(), test.float(), ridge)
    # Rounding of the Gram moves eigenvalues by 1e-6 at most, a hundredth of the smaller ridge.
    torch.testing.assert_close(found.double(), exact, rtol=0, atol=2e-2 * 1e-4 / ridge)


def test_a_ridge_below_rounding_does_not_blow_up_the_null_space(generator):
    features = torch.randn(20, 3, dtype=F64, generator=generator)
    gram = features @ features.T
    targets = torch.randn(20, 1, dtype=F64, generator=generator)
    found = theory.kernel_regression(gram, targets, gram, 1e-30)
    assert_close(found, theory.kernel_regression(gram, targets, gram))


def operator_problem(generator):
    """Tangent-like features (n, c, p) of training and test examples, and targets."""
    train, test = (torch.randn(n, 2, 30, dtype=F64, generator=generator) for n in (6, 4))
    kernel = torch.einsum("xip,yjp->xiyj", train, train)
    cross = torch.einsum("xip,yjp->xiyj", test, train)
    return kernel, cross, torch.randn(6, 2, dtype=F64, generator=generator), (train, test)


@pytest.mark.parametrize("ridge", [0.0, 0.5])
def test_operator_valued_kernels_are_regressed_over_stacked_outputs(ridge, generator):
    kernel, cross, targets, (train, test) = operator_problem(generator)
    weights = theory.linear_probe(train.flatten(0, 1), targets.reshape(-1, 1), ridge)
    found = theory.kernel_regression(kernel, targets, cross, ridge)
    assert_close(found, (test @ weights).squeeze(-1), scale=10)


def test_flow_of_an_operator_valued_kernel_ends_at_the_regression(generator):
    kernel, cross, targets, _ = operator_problem(generator)
    start, beyond = torch.randn(6, 2, dtype=F64, generator=generator), cross.sum((1, 2, 3))
    late = torch.tensor([0.0, 1e9], dtype=F64)
    fitted = theory.gradient_flow_predictions(kernel, targets, late, start)
    assert_close(fitted[0], start)
    assert_close(fitted[1], targets, scale=100)
    offset = beyond.unsqueeze(1).expand(4, 2)
    found = theory.gradient_flow_predictions(
        kernel, targets, late, start, cross=cross, cross_start=offset
    )
    assert_close(found[0], offset)
    regression = theory.kernel_regression(kernel, targets - start, cross)
    assert_close(found[1], offset + regression, scale=100)


def test_flow_on_test_points_is_that_of_the_parameters(generator):
    """Small steps of gradient descent on a linear model, where the flow has no closed form."""
    features, fresh = (torch.randn(n, 9, dtype=F64, generator=generator) for n in (5, 3))
    targets = torch.randn(5, 2, dtype=F64, generator=generator)
    weights, rate = torch.zeros(9, 2, dtype=F64), 1e-4
    for _ in range(2000):
        weights = weights - rate * features.T @ (features @ weights - targets)
    time = torch.tensor([2000 * rate], dtype=F64)
    gram, cross = features @ features.T, fresh @ features.T
    found = theory.gradient_flow_predictions(gram, targets, time, cross=cross)
    torch.testing.assert_close(found[0], fresh @ weights, rtol=1e-2, atol=1e-3)


def test_flow_of_a_rank_deficient_kernel_predicts_on_test_points(generator):
    features = torch.randn(8, 2, dtype=F64, generator=generator)
    gram, targets = features @ features.T, torch.randn(8, 1, dtype=F64, generator=generator)
    late = torch.tensor([1e9], dtype=F64)
    found = theory.gradient_flow_predictions(gram, targets, late, cross=gram)
    assert_close(found[0], theory.kernel_regression(gram, targets, gram), scale=10)
