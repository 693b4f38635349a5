"""Shapes of transfer functions."""

import numpy as np
import pytest
import torch
from sklearn.isotonic import IsotonicRegression

from tests.measures.covariances import function_of, random_spd, with_eigenvalues
from tests.tolerances import assert_close
from theodolite.measures.covariance import transfer_function
from theodolite_papers.maennel2020.formulas.alignment import corresponding_eigenvalues
from theodolite_papers.maennel2020.formulas.curves import curve_deviation, unimodality_defect

DATA = with_eigenvalues([9.0, 4.0, 2.0, 1.0, 0.5], seed=1)


DEGENERATE = with_eigenvalues([9.0, 4.0, 4.0, 4.0, 0.5], seed=1)


def filters(count=12, size=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, size, generator=generator, dtype=torch.float64) + 2


SHAPES = {
    "rising": torch.arange(9.0),
    "falling": -torch.arange(9.0),
    "rising then falling": torch.tensor([0.0, 1, 5, 6, 4, 4, 2, 1, 0]),
    "constant": torch.full((9,), 0.1),
    "constant up to rounding": 1
    + torch.finfo(torch.float64).eps * (torch.arange(9.0) % 2).double(),
    "single": torch.tensor([2.0]),
}


@pytest.mark.spec("2.P28")
@pytest.mark.parametrize("data", [DATA, DEGENERATE], ids=["simple", "degenerate"])
def test_squares_are_corresponding_eigenvalues_of_aligned_pairs(data):
    weights = function_of(data, lambda v: v / (1 + v**2))
    pairs = corresponding_eigenvalues(weights, data)
    expected = pairs.matrix.repeat_interleave(pairs.dimensions)
    filters = len(weights) ** 0.5 * torch.linalg.cholesky(weights).mT  # of that second moment
    tau = transfer_function(data, filters, centered=False).tau
    assert_close(tau.square(), expected)


def test_deviation_of_curves():
    curve = torch.tensor([1.0, 2.0, 2.0], dtype=torch.float64)
    assert curve_deviation(curve, 5 * curve) < 1e-15
    assert_close(curve_deviation(curve, -curve), 2)
    assert curve_deviation(curve, 0 * curve).isnan()
    stack = torch.stack([curve, -curve])
    assert_close(curve_deviation(stack, stack.flip(0)), [2, 2])


def test_undefined_deviation_has_no_gradient():
    curve = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    other = torch.ones(3, dtype=torch.float64, requires_grad=True)
    curve_deviation(curve, other).backward()
    assert (curve.grad == 0).all()
    assert (other.grad == 0).all()


@pytest.mark.spec("2.P30")
@pytest.mark.parametrize("curve", SHAPES.values(), ids=SHAPES)
def test_unimodal_curves_have_no_defect(curve):
    assert unimodality_defect(curve.double()) == 0


@pytest.mark.spec("2.P30")
@pytest.mark.parametrize("size", [9, 27])
def test_a_valley_has_a_large_defect(size):
    valley = (torch.arange(size).double() - size // 2).abs()
    assert unimodality_defect(valley) > 0.4


def test_defect_agrees_with_isotonic_regression():
    curve = np.random.default_rng(0).standard_normal(20)
    errors = []
    for split in range(21):
        parts = ((curve[:split], True), (curve[split:], False))
        fits = [
            IsotonicRegression(increasing=up).fit_transform(np.arange(len(part)), part)
            for part, up in parts
            if len(part)
        ]
        errors.append(np.square(np.concatenate(fits) - curve).sum())
    expected = min(errors) / np.square(curve - curve.mean()).sum()
    assert_close(unimodality_defect(torch.from_numpy(curve)), expected)


def test_noise_scores_two_thirds():
    noise = np.random.default_rng(0).standard_normal((400, 27))
    defects = unimodality_defect(noise)
    assert defects.shape == (400,)
    assert defects.mean() == pytest.approx(0.67, abs=0.02)


def test_defect_of_a_stack_and_of_reversed_curves():
    curves = torch.from_numpy(np.random.default_rng(1).standard_normal((2, 3, 9)))
    defects = unimodality_defect(curves)
    assert_close(defects[1, 2], unimodality_defect(curves[1, 2]))
    assert_close(unimodality_defect(curves.flip(-1)), defects)


def test_weights_carry_gradients_to_the_shape():
    weights = filters().requires_grad_()
    unimodality_defect(transfer_function(random_spd(5), weights).tau).backward()
    assert weights.grad.isfinite().all()
