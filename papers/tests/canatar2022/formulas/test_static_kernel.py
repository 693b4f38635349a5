"""Gradient flow with a static kernel, and the shortcut from cumulative power to the test error."""

import math

import numpy as np
import pytest
import torch

from tests.reference import kernel_regression as reference
from tests.tolerances import assert_close
from theodolite.errors import DomainError
from theodolite.theory import kernel_regression
from theodolite.theory.kernel_regression import solve_effective_ridge
from theodolite_papers.canatar2022.formulas import static_kernel
from theodolite_papers.canatar2022.formulas.static_kernel import shortcut_parts

F64 = torch.float64


def features_and_targets(shape, generator):
    features = torch.randn(*shape, dtype=F64, generator=generator)
    return features, torch.randn(shape[0], 3, dtype=F64, generator=generator)


ONES = torch.ones(2, dtype=F64)


def operator_problem(generator):
    """Tangent-like features (n, c, p) of training and test examples, and targets."""
    train, test = (torch.randn(n, 2, 30, dtype=F64, generator=generator) for n in (6, 4))
    kernel = torch.einsum("xip,yjp->xiyj", train, train)
    cross = torch.einsum("xip,yjp->xiyj", test, train)
    return kernel, cross, torch.randn(6, 2, dtype=F64, generator=generator), (train, test)


@pytest.mark.spec("3.P35")
@pytest.mark.parametrize("modes", range(7))
def test_shortcut_bound_holds_on_ten_thousand_problems(modes):
    generator = torch.Generator().manual_seed(modes)
    eta, power = torch.rand(2, 10_000, 6, dtype=F64, generator=generator)
    eta = (10 ** (-6 * eta)).sort(-1, descending=True).values
    samples = 30 * torch.rand(10_000, dtype=F64, generator=generator)
    kappa = solve_effective_ridge(eta, samples, 1e-3)
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
        shortcut = static_kernel.power_shortcut(eta, power, samples, ridge, modes)
        assert (shortcut.target - shortcut.value).abs() <= shortcut.bound + 1e-12
        error = kernel_regression.generalization_error(eta, power, samples, ridge)
        scaled = (1 - shortcut.gamma) * error / power.sum()
        assert scaled.item() == pytest.approx(shortcut.target.item(), rel=1e-9)
        assert shortcut.value.item() == pytest.approx((power[modes:].sum() / power.sum()).item())


@pytest.mark.spec("3.P35")
def test_shortcut_is_good_where_the_spectrum_has_a_gap():
    eta = torch.tensor([1.0, 0.9] + [1e-8] * 40, dtype=F64)
    power = torch.tensor([0.6, 0.1] + [0.3 / 40] * 40, dtype=F64)
    shortcut = static_kernel.power_shortcut(eta, power, 400.0, ridge=1e-3)
    assert shortcut.modes == 2
    assert shortcut.bound < 0.01
    error = kernel_regression.generalization_error(eta, power, 400.0, ridge=1e-3)
    assert error.item() == pytest.approx(shortcut.value.item(), rel=0.02)


@pytest.mark.spec("3.P35")
def test_printed_condition_is_not_enough():
    """At ``P eta = kappa`` the mode itself still keeps a quarter of its error."""
    eta, power = torch.tensor([1.0, 1e-9], dtype=F64), torch.tensor([1.0, 0.0], dtype=F64)
    shortcut = static_kernel.power_shortcut(eta, power, samples=1.0, ridge=0.5, modes=1)
    kappa = kernel_regression.effective_ridge(eta, 1.0, 0.5)
    assert kappa.item() == pytest.approx(1.0, abs=1e-6)
    assert shortcut.value == 0
    assert shortcut.target.item() == pytest.approx(0.25, abs=1e-6)


@pytest.mark.spec("3.P35")
def test_one_mode_is_enough():
    eta, power = torch.tensor([0.5], dtype=F64), torch.tensor([2.0], dtype=F64)
    shortcut = static_kernel.power_shortcut(eta, power, 4.0, ridge=0.1)
    kappa = kernel_regression.effective_ridge(eta, 4.0, 0.1)
    assert shortcut.modes == 1
    assert_close(shortcut.target, (kappa / (kappa + 2)).square())
    assert_close(shortcut.bound, shortcut.target)


@pytest.mark.spec("3.P54")
@pytest.mark.parametrize("start", [None, 1.5], ids=["from zero", "from elsewhere"])
def test_modes_of_a_static_kernel_decay_exponentially(start, generator):
    features, targets = features_and_targets((5, 8), generator)
    gram = features @ features.T / 8
    begin = None if start is None else torch.full_like(targets, start)
    times = torch.tensor([0.0, 0.3, 2.0], dtype=F64)
    flow = static_kernel.gradient_flow_predictions(gram, targets, times, begin)
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
    flow = static_kernel.gradient_flow_predictions(gram, targets, torch.tensor([1.0], dtype=F64))[0]
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
    found = static_kernel.spectral_alignment(eta, power, float(np.linalg.norm(target) / 9))
    assert_close(found, reference.alignment(gram, target))
    curve = np.cumsum(power) / power.sum()
    by_parts = power.sum() * np.sum((eta - np.append(eta[1:], 0)) * curve)
    assert_close(found, by_parts / (np.linalg.norm(eta) * np.linalg.norm(target) / 9))


def test_undefined_values_are_nan():
    zero = torch.zeros(3, dtype=F64)
    assert static_kernel.spectral_alignment(zero, zero, 1.0).isnan()
    assert static_kernel.power_shortcut(torch.ones(3, dtype=F64), zero, 2.0).value.isnan()


@pytest.mark.parametrize(
    "call",
    [
        lambda: kernel_regression.effective_ridge(-ONES, 1.0),
        lambda: kernel_regression.effective_ridge(ONES, -1.0),
        lambda: kernel_regression.effective_ridge(ONES, 1.0, ridge=-1.0),
        lambda: kernel_regression.effective_ridge(ONES * math.nan, 1.0),
        lambda: kernel_regression.generalization_error(ONES, -ONES, 1.0),
        lambda: kernel_regression.generalization_error(ONES, ONES, 1.0, noise=-1.0),
        lambda: static_kernel.power_shortcut(torch.tensor([1.0, 2.0]), torch.ones(2), 1.0),
        lambda: static_kernel.power_shortcut(ONES, ONES, 1.0, modes=3),
        lambda: kernel_regression.linear_probe(torch.ones(2, 1), torch.ones(2, 1), -1.0),
        lambda: kernel_regression.kernel_regression(*[ONES[:1, None]] * 3, -1.0),
        lambda: kernel_regression.kernel_regression(
            torch.tensor([[1.0, 0.0], [1.0, 1.0]]), torch.ones(2, 1), torch.ones(1, 2)
        ),
        lambda: static_kernel.gradient_flow_predictions(
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


def test_flow_of_an_operator_valued_kernel_ends_at_the_regression(generator):
    kernel, cross, targets, _ = operator_problem(generator)
    start, beyond = torch.randn(6, 2, dtype=F64, generator=generator), cross.sum((1, 2, 3))
    late = torch.tensor([0.0, 1e9], dtype=F64)
    fitted = static_kernel.gradient_flow_predictions(kernel, targets, late, start)
    assert_close(fitted[0], start)
    assert_close(fitted[1], targets, scale=100)
    offset = beyond.unsqueeze(1).expand(4, 2)
    found = static_kernel.gradient_flow_predictions(
        kernel, targets, late, start, cross=cross, cross_start=offset
    )
    assert_close(found[0], offset)
    regression = kernel_regression.kernel_regression(kernel, targets - start, cross)
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
    found = static_kernel.gradient_flow_predictions(gram, targets, time, cross=cross)
    torch.testing.assert_close(found[0], fresh @ weights, rtol=1e-2, atol=1e-3)


def test_flow_of_a_rank_deficient_kernel_predicts_on_test_points(generator):
    features = torch.randn(8, 2, dtype=F64, generator=generator)
    gram, targets = features @ features.T, torch.randn(8, 1, dtype=F64, generator=generator)
    late = torch.tensor([1e9], dtype=F64)
    found = static_kernel.gradient_flow_predictions(gram, targets, late, cross=gram)
    assert_close(found[0], kernel_regression.kernel_regression(gram, targets, gram), scale=10)
