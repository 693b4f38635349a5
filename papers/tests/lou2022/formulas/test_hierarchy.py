"""Curves over depth: spec 4, P53 (shape), P50 (equilibrium fit), and energies of eigenvectors."""

from math import nan

import jaxtyping
import numpy as np
import pytest
import torch
from scipy.stats import linregress

from tests.tolerances import assert_close
from theodolite.measures.tangent import peak_layer
from theodolite_papers.lou2022.formulas.energy import layer_energy
from theodolite_papers.lou2022.formulas.hierarchy import (
    fit_equilibrium,
    is_ascent_descent,
    prominence,
    relative_alignment,
)

CURVE = torch.tensor([0.1, 0.3, 0.5, 0.4, 0.2], dtype=torch.float64)


@pytest.mark.spec("4.P53")
@pytest.mark.parametrize(
    ("curve", "peak"),
    [
        ([0.1, 0.3, 0.2], 2),
        ([0.3, 0.1, 0.3], 1),
        ([0.1, 0.3, 0.3, 0.3], 2),
        ([nan, 0.1, nan, 0.2], 4),
        ([-0.2, -0.1], 2),
        ([0.7], 1),
    ],
    ids=["inside", "ends-tie", "plateau", "nan", "negative", "single"],
)
def test_peak_is_the_first_largest(curve, peak):
    assert peak_layer(torch.tensor(curve)) == peak


@pytest.mark.parametrize(
    ("covariance", "peak"),
    [
        (torch.zeros(3, 3), 2),
        (0.01**2 * torch.eye(3), 2),
        (0.1**2 * torch.eye(3), nan),
        (0.1**2 * torch.ones(3, 3), 2),  # errors that all layers share cancel in differences
    ],
    ids=["exact", "resolved", "unresolved", "common"],
)
def test_an_estimated_peak_must_exceed_the_errors_of_differences(covariance, peak):
    found = peak_layer(torch.tensor([0.1, 0.3, nan]).double(), covariance.double())
    assert_close(found, peak)


def test_a_tie_of_estimates_has_no_peak():
    assert peak_layer(torch.tensor([0.3, 0.3]), torch.zeros(2, 2)).isnan()


@pytest.mark.spec("4.P53")
@pytest.mark.parametrize(
    ("curve", "expected"),
    [
        ([0.1, 0.5, 0.2], 0.3),
        ([0.5, 0.1, 0.2], 0.0),
        ([nan, 0.1, 0.5, 0.2, nan], 0.3),
        ([0.4], 0.0),
    ],
    ids=["inside", "end", "nan-ends", "single"],
)
def test_prominence_is_the_height_above_the_higher_end(curve, expected):
    assert_close(prominence(torch.tensor(curve, dtype=torch.float64)), expected)


@pytest.mark.spec("4.P53")
@pytest.mark.parametrize(
    ("curve", "tolerance", "expected"),
    [
        ([0.1, 0.3, 0.5, 0.2], 0.0, True),
        ([0.1, 0.3, 0.28, 0.5, 0.2], 0.0, False),
        ([0.1, 0.3, 0.28, 0.5, 0.2], 0.1, True),
        ([0.1, 0.5, 0.2, 0.4], 0.1, False),
        ([0.1, 0.2, 0.3], 0.0, True),
        ([0.3, 0.2, 0.2], 0.0, True),
        ([0.1, nan, 0.3, 0.2], 0.0, True),
        ([0.1], 0.0, True),
    ],
    ids=["clean", "dent", "dent-allowed", "second-peak", "rising", "falling", "nan", "single"],
)
def test_ascent_then_descent(curve, tolerance, expected):
    assert is_ascent_descent(torch.tensor(curve), tolerance).item() is expected


@pytest.mark.spec("4.P53")
def test_relative_alignment_is_1_at_the_peak():
    assert_close(relative_alignment(CURVE), CURVE / 0.5)
    with_gap = relative_alignment(torch.tensor([nan, 0.2, 0.4]))
    assert_close(with_gap, [nan, 0.5, 1.0])


@pytest.mark.parametrize("summary", [peak_layer, prominence, relative_alignment])
def test_curve_without_a_defined_layer_has_no_summary(summary):
    assert summary(torch.tensor([nan, nan])).isnan().all()


def test_share_of_a_peak_that_is_not_positive_is_undefined():
    assert relative_alignment(torch.tensor([-0.2, -0.1])).isnan().all()


@pytest.mark.parametrize("summary", [peak_layer, prominence, relative_alignment, is_ascent_descent])
def test_summaries_answer_numpy_in_kind(summary):
    value = summary(CURVE.numpy())
    assert isinstance(value, (np.ndarray, np.generic))
    assert_close(value, summary(CURVE))


class TestEquilibrium:
    """Lines through log peak against log depth."""

    DEPTHS = torch.arange(10, 110, 10, dtype=torch.float64)

    @pytest.mark.spec("4.P50")
    @pytest.mark.parametrize("factor", [0.7, 1.0, 1.859])
    def test_recovers_exponent_and_constant(self, factor):
        fit = fit_equilibrium(self.DEPTHS, factor * self.DEPTHS**0.6)
        assert_close(fit.slope, 0.6)
        assert_close(fit.constant.exp(), factor)
        assert_close(fit.intercept, fit.constant)
        assert_close(fit.r_squared, 1.0)
        assert_close(fit.slope_error, 0.0)

    @pytest.mark.spec("4.P50")
    def test_least_squares_is_that_of_scipy(self, generator):
        depths = self.DEPTHS.repeat(3)
        peaks = (depths * (0.2 + 0.6 * torch.rand(30, generator=generator))).round()
        fit = fit_equilibrium(depths, peaks)
        expected = linregress(depths.log().numpy(), peaks.log().numpy())
        assert_close(fit.slope, expected.slope)
        assert_close(fit.intercept, expected.intercept)
        assert_close(fit.slope_error, expected.stderr)
        assert_close(fit.r_squared, expected.rvalue**2)
        assert_close(fit.constant, (peaks.log() - 0.6 * depths.log()).mean())

    def test_integers_are_welcome(self):
        fit = fit_equilibrium(torch.tensor([10, 20, 40]), torch.tensor([3, 5, 8]))
        assert fit.slope.dtype == torch.float64

    @pytest.mark.parametrize("peaks", [[3.0], [3.0, 4.0, 5.0]], ids=["one", "several"])
    def test_one_depth_has_a_constant_but_no_slope(self, peaks):
        fit = fit_equilibrium(torch.full((len(peaks),), 10.0), torch.tensor(peaks))
        assert fit.constant.isfinite()
        for undefined in (fit.slope, fit.intercept, fit.r_squared, fit.slope_error):
            assert undefined.isnan()

    def test_undefined_slope_has_gradient_zero(self):
        depths = torch.tensor([10.0, 10.0], requires_grad=True)
        fit = fit_equilibrium(depths, torch.tensor([3.0, 4.0]))
        undefined = fit.slope + fit.intercept + fit.r_squared + fit.slope_error
        (gradient,) = torch.autograd.grad(undefined, depths)
        assert torch.equal(gradient, torch.zeros(2))

    def test_two_points_have_no_standard_error(self):
        fit = fit_equilibrium(torch.tensor([10.0, 20.0]), torch.tensor([3.0, 5.0]))
        assert fit.slope.isfinite()
        assert fit.slope_error.isnan()

    def test_equal_peaks_have_slope_zero_and_no_r_squared(self):
        fit = fit_equilibrium(self.DEPTHS, torch.full_like(self.DEPTHS, 3.0))
        assert_close(fit.slope, 0.0)
        assert fit.r_squared.isnan()


class TestLayerEnergy:
    """Where eigenvectors live."""

    SIZES = (2, 5, 3)

    @pytest.fixture
    def vectors(self, generator):
        draw = torch.randn(10, 4, generator=generator, dtype=torch.float64)
        return torch.linalg.qr(draw).Q

    def test_three_views_and_their_mean(self, vectors):
        energy = layer_energy(vectors, self.SIZES)
        assert_close(energy.squared.sum(1), torch.ones(4))
        assert_close(energy.norm.square(), energy.squared)
        assert_close(energy.per_parameter, energy.squared / torch.tensor(self.SIZES))
        assert_close(energy.mean, energy.squared.mean(0))

    def test_equal_eigenvalues_share_their_energy_whatever_the_basis(self, vectors, generator):
        values = torch.tensor([3.0, -3.0, 3.0, 1.0], dtype=torch.float64)  # by size, as Lanczos
        pair = [0, 2]
        turn = torch.linalg.qr(torch.randn(2, 2, generator=generator, dtype=torch.float64)).Q
        turned = vectors.clone()
        turned[:, pair] = vectors[:, pair] @ turn
        before = layer_energy(vectors, self.SIZES, values)
        after = layer_energy(turned, self.SIZES, values)
        plain = layer_energy(vectors, self.SIZES)
        assert_close(after.squared, before.squared)
        assert_close(before.squared[0], plain.squared[pair].mean(0))
        assert_close(before.squared[[1, 3]], plain.squared[[1, 3]])
        assert_close(before.mean, plain.mean)

    def test_gradient_of_one_share(self, vectors):
        leaf = vectors.clone().requires_grad_()
        assert torch.autograd.gradcheck(lambda v: layer_energy(v, self.SIZES).squared, leaf)
        assert torch.autograd.gradcheck(lambda v: layer_energy(v, self.SIZES).norm, leaf)

    def test_vector_of_zeros_is_undefined(self):
        energy = layer_energy(torch.tensor([[0.0, 3.0], [0.0, 4.0]]), (1, 1))
        assert_close(energy.squared, [[nan, nan], [0.36, 0.64]], dtype=torch.float32)
        assert_close(energy.norm, [[nan, nan], [0.6, 0.8]], dtype=torch.float32)


def test_the_shape_checker_is_on_for_formulas():
    with pytest.raises(jaxtyping.TypeCheckError):
        prominence(torch.zeros(2, 2))
