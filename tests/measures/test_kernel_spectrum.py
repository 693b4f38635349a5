"""Spectra and cumulative power: the properties of specification 3, section 5."""

import numpy as np
import pytest
import torch

from tests.tolerances import assert_close
from theodolite.linalg import double_center
from theodolite.measures import kernel
from theodolite.measures.kernel import cumulative_power, kernel_spectrum, linear_spectrum

LABELS = torch.arange(12) % 3
Y = torch.nn.functional.one_hot(LABELS).double()


@pytest.fixture
def normal(generator):
    return lambda *shape: torch.randn(*shape, dtype=torch.float64, generator=generator)


@pytest.mark.spec("3.P22")
@pytest.mark.parametrize(("n", "d"), [(9, 4), (5, 8)], ids=["tall", "wide"])
def test_mercer_decomposition(normal, n, d):
    F = normal(n, d) + 1
    K = kernel.gram(F)
    for spectrum in (kernel_spectrum(K), linear_spectrum(F)):
        eta, phi, rank = spectrum.eigenvalues, spectrum.eigenfunctions, spectrum.rank
        assert_close(phi * eta @ phi.T, K, scale=float(K.norm()))
        assert_close(phi[:, :rank].T @ phi[:, :rank] / n, torch.eye(rank), scale=10)
        assert_close(eta.sum(), K.trace() / n, scale=float(K.norm()))
        assert (eta.diff() <= 0).all()
        assert rank == min(n, d)
        assert spectrum.complete
    sigma = torch.linalg.svdvals(F)
    assert_close(linear_spectrum(F).eigenvalues, sigma.square() / n, scale=10)


@pytest.mark.spec("3.P23")
def test_completeness_and_parseval(normal):
    targets = normal(7, 2)
    spectrum = kernel_spectrum(kernel.gram(normal(7, 3)))
    phi = spectrum.eigenfunctions
    a = phi.T @ targets / 7
    assert_close(phi @ a, targets)
    assert_close(a.square().sum(), targets.square().sum() / 7)


@pytest.mark.spec("3.P24")
def test_curve_from_zero_to_one(normal):
    curve = cumulative_power(kernel.gram(normal(8, 3)), normal(8, 2)).curve
    assert curve.shape == (9,)
    assert curve[0] == 0
    assert_close(curve[-1], 1.0)
    assert (curve.diff() >= -1e-15).all()
    hand = torch.diag(torch.tensor([3.0, 2.0, 1.0])).double()
    inclusive = cumulative_power(hand, torch.tensor([[2.0], [1.0], [0.0]]).double()).curve
    assert_close(inclusive, [0, 0.8, 1, 1])
    strict = [sum([0.8, 0.2, 0.0][: rho - 1]) for rho in range(1, 5)]  # the printed formula
    assert_close(inclusive, strict)


@pytest.mark.spec("3.P25")
def test_invariances_of_the_curve(normal):
    F, targets = normal(9, 4), normal(9, 3)
    curve = cumulative_power(linear_spectrum(F), targets).curve
    order = torch.tensor([3, 1, 4, 0, 5, 8, 2, 6, 7])
    for features, outputs in [
        (5 * F, targets),
        (F, -0.2 * targets),
        (F, targets @ torch.linalg.qr(normal(3, 3)).Q),
        (F @ torch.linalg.qr(normal(4, 4)).Q, targets),
        (F[order], targets[order]),
    ]:
        assert_close(cumulative_power(linear_spectrum(features), outputs).curve, curve)
    assert_close(cumulative_power(kernel.gram(F), targets).curve, curve)


@pytest.mark.spec("3.P26")
def test_what_is_missing_is_the_residual_of_least_squares(normal):
    F, targets = normal(12, 4), normal(12, 2)
    spectrum = linear_spectrum(F)
    result = cumulative_power(spectrum, targets)
    total = targets.square().sum()

    def residual(columns):
        return (targets - columns @ torch.linalg.pinv(columns) @ targets).square().sum() / total

    assert_close(result.null_power, residual(F))
    assert_close(1 - result.curve[4], residual(F))
    for rho in range(1, 5):
        expected = residual(spectrum.eigenfunctions[:, :rho])
        assert_close(1 - result.curve[rho], expected)


@pytest.mark.spec("3.P28")
def test_a_target_independent_of_the_kernel_has_a_straight_curve(normal):
    spectrum = kernel_spectrum(kernel.gram(normal(20, 20)))
    curves = torch.stack([cumulative_power(spectrum, normal(20, 1)).curve for _ in range(225)])
    error = curves.std(0) / 15
    expected = torch.arange(21).double() / 20
    assert ((curves.mean(0) - expected).abs() <= 4 * error + 1e-12).all()
    areas = torch.stack([kernel.power_area(curve) for curve in curves])
    assert areas.mean() == pytest.approx(21 / 40, abs=4 * areas.std().item() / 15)


@pytest.mark.spec("3.P29")
def test_ties_are_spread_evenly(normal):
    values = torch.tensor([4.0, 2.0, 2.0, 2.0, 1.0, 0.0, 0.0]).double()
    basis, y = torch.linalg.qr(normal(7, 7)).Q, normal(7, 2)
    turned = basis.clone()
    turned[:, 1:4] = basis[:, 1:4] @ torch.linalg.qr(normal(3, 3)).Q

    def curve(vectors):
        groups = ((0, 1), (1, 4), (4, 5))
        spectrum = kernel.KernelSpectrum(values / 7, vectors * 7**0.5, 5, groups, True)
        return cumulative_power(spectrum, y).curve

    def raw_curve(vectors):  # in the basis of the solver
        power = (vectors.T @ y).square().sum(1) / y.square().sum()
        return torch.cat([torch.zeros(1).double(), power.cumsum(0)])

    raw, raw_turned = raw_curve(basis), raw_curve(turned)
    ends = [0, 1, 4, 5, 7]
    assert_close(raw[ends], raw_turned[ends])
    assert (raw[2:4] - raw_turned[2:4]).abs().max() > 1e-3
    canonical = curve(basis)
    assert_close(canonical, curve(turned))
    assert_close(canonical[ends], raw[ends])
    assert_close(canonical.diff()[1:4], canonical.diff()[1:4].mean().expand(3))
    matrix = basis * values @ basis.T
    assert kernel_spectrum((matrix + matrix.T) / 2).groups == ((0, 1), (1, 4), (4, 5))
    assert_close(cumulative_power((matrix + matrix.T) / 2, y).curve, canonical)


@pytest.mark.spec("3.P29")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
def test_eigenspaces_are_found_in_the_dtype_of_the_input(normal, dtype):
    sigma = torch.tensor([2.0, 1.0, 1.0, 0.5]).double()
    F = torch.linalg.qr(normal(30, 4)).Q * sigma @ torch.linalg.qr(normal(6, 6)).Q[:4]
    assert linear_spectrum(F.to(dtype)).groups == ((0, 1), (1, 3), (3, 4))
    K = (F @ F.T).to(dtype)
    assert kernel_spectrum((K + K.T) / 2).groups == ((0, 1), (1, 3), (3, 4))


def test_a_long_float32_tail_is_no_single_eigenspace(normal):
    F = (normal(300, 100) * torch.logspace(0, -4, 100).double()).float()
    spectrum = linear_spectrum(F)
    assert spectrum.rank == 100
    assert len(spectrum.groups) == 100


def aligned_share(spectrum, targets):
    """Power of the targets on every mode, weighted by its eigenvalue."""
    power = (spectrum.eigenfunctions.T @ targets / len(targets)).square().sum(1)
    scale = torch.linalg.vector_norm(spectrum.eigenvalues) * (targets @ targets.T).norm()
    return spectrum.eigenvalues @ power * len(targets) / scale


@pytest.mark.spec("3.P30")
@pytest.mark.parametrize("d", [4, 20], ids=["tall", "wide"])
def test_kta_is_a_functional_of_spectrum_and_power(normal, d):
    F, targets = normal(9, d), normal(9, 3)
    spectrum = linear_spectrum(F)
    expected = kernel.linear_kta(F, targets)
    assert_close(aligned_share(spectrum, targets), expected)
    gaps = -torch.cat([spectrum.eigenvalues, torch.zeros(1).double()]).diff()
    scale = torch.linalg.vector_norm(spectrum.eigenvalues) * (targets @ targets.T).norm()
    curve = cumulative_power(spectrum, targets).curve[1 : len(gaps) + 1]
    assert_close(targets.square().sum() * (gaps @ curve) / scale, expected)
    centered = linear_spectrum(F - F.mean(0))
    biased = kernel.linear_cka(F, targets, debiased=False)
    assert_close(aligned_share(centered, targets - targets.mean(0)), biased)


@pytest.mark.spec("3.P31")
def test_participation_ratio_and_modes_to_reach(normal):
    assert_close(kernel.participation_ratio(torch.eye(5).double()), 5.0)
    assert_close(kernel.participation_ratio(torch.ones(5, 5).double()), 1.0)
    K = kernel.gram(normal(8, 4) + 3)
    eta = kernel_spectrum(double_center(K)).eigenvalues
    ratio = kernel.participation_ratio(K, center=True)
    assert_close(ratio, eta.sum().square() / eta.square().sum(), scale=10)
    curve = torch.tensor([0.0, 0.5, 0.75, 0.95, 1.0], dtype=torch.float64)
    reached = [kernel.modes_to_reach(curve, share).item() for share in (0.0, 0.5, 0.51, 0.95, 1.0)]
    assert reached == [0, 1, 2, 3, 4]
    assert kernel.modes_to_reach(curve).item() == 3
    assert kernel.modes_to_reach(curve[:3], 0.9).isnan()


@pytest.mark.parametrize(("n", "d"), [(700, 530), (530, 700)], ids=["tall", "wide"])
def test_leading_modes_by_the_iterative_solver(normal, n, d):
    decay = torch.linspace(0, -3, d).double().exp()
    F, targets = normal(n, d) * decay, normal(n, 2)
    K = kernel.gram(F)
    full, curve = linear_spectrum(F), cumulative_power(linear_spectrum(F), targets).curve
    top = kernel_spectrum(K, count=6)
    assert not top.complete
    assert_close(top.eigenvalues, full.eigenvalues[:6], scale=float(full.eigenvalues[0]))
    result = cumulative_power(top, targets)
    assert_close(result.curve, curve[:7])
    assert result.null_power.isnan()


def test_few_modes_of_a_small_problem(normal):
    F, targets = normal(10, 4), normal(10, 1)
    top = kernel_spectrum(kernel.gram(F), count=2)
    assert (top.rank, top.complete, top.eigenfunctions.shape) == (2, False, (10, 2))
    whole = cumulative_power(linear_spectrum(F), targets)
    assert_close(cumulative_power(top, targets).curve, whole.curve[:3])
    beyond = kernel_spectrum(kernel.gram(F), count=6)  # reaches into the null space
    assert (beyond.rank, beyond.complete) == (4, True)
    assert_close(cumulative_power(beyond, targets).curve, whole.curve)


def test_curves_of_classes_average_to_the_curve_of_all(normal):
    K = kernel.gram(normal(12, 4))
    single = [cumulative_power(K, Y[:, [label]]).curve for label in range(3)]
    whole = cumulative_power(K, LABELS)
    assert_close(torch.stack(single).mean(0), whole.curve)  # balanced classes
    assert_close(whole.null_power, 1 - whole.curve[4])


def test_a_constant_target_is_legal_and_zeros_are_not(normal):
    F, constant = normal(8, 3), torch.full((8, 1), 0.3).double()
    assert cumulative_power(linear_spectrum(F), constant).curve.isfinite().all()
    undefined = cumulative_power(linear_spectrum(F), 0 * constant)
    assert undefined.curve.isnan().all()
    assert undefined.null_power.isnan()


def test_zero_kernel_has_rank_zero_and_a_straight_curve():
    result = cumulative_power(torch.zeros(4, 4), torch.eye(4))
    assert result.rank == 0
    assert_close(result.curve, np.arange(5) / 4)
    assert_close(result.null_power, 1.0)
    assert linear_spectrum(torch.zeros(4, 2)).rank == 0


def test_modes_of_the_null_space_do_not_count(generator):
    """Ten units on a thousand examples: the target outside their span is reached by no mode."""
    features = torch.randn(1000, 10, dtype=torch.float64, generator=generator)
    labels = torch.randint(0, 4, (1000,), generator=generator)
    power = kernel.cumulative_power(kernel.linear_spectrum(features), labels)
    assert power.rank == 10
    inside = 1 - power.null_power.item()
    assert kernel.modes_to_reach(power, inside / 2) <= 10
    assert kernel.modes_to_reach(power, inside) == 10
    assert kernel.modes_to_reach(power, (1 + inside) / 2) == torch.inf
    leading = kernel.cumulative_power(kernel_spectrum(kernel.gram(features), count=3), labels)
    assert kernel.modes_to_reach(leading, inside).isnan()
    assert kernel.modes_to_reach(power.curve, (1 + inside) / 2) > 400
