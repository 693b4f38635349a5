"""Misalignment: closed form, laws, and its minimiser."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from tests.measures.covariances import function_of, orthogonal, random_spd, with_eigenvalues
from tests.reference import covariance as literal
from tests.tolerances import assert_close
from theodolite.measures.covariance import misalignment
from theodolite.measures.covariance._misalignment import quadratic_forms

SIMPLE = with_eigenvalues([5.0, 3.0, 2.0, 1.0], seed=1)
DEGENERATE = with_eigenvalues([5.0, 2.0, 2.0, 2.0], seed=1)
SCALAR = 2 * torch.eye(4, dtype=torch.float64)
SPECTRA = {"simple": SIMPLE, "degenerate": DEGENERATE, "scalar": SCALAR}
EVERY_SPECTRUM = pytest.mark.parametrize("data", SPECTRA.values(), ids=SPECTRA)
B = random_spd(4, seed=5)
LOOSE = 100.0  # B's condition number is about 20


def projectors(matrix):
    values, vectors = literal.eigenpairs(matrix.numpy())
    groups = literal.spaces_of(values, 1e-12)
    return [vectors[:, group] @ vectors[:, group].T for group in groups]


def smallest(objective, data, start=0.0):
    """Numerical minimum over all covariances aligned with the data."""
    parts = projectors(data)

    def of_logarithms(t):
        sigma = sum(math.exp(value) * part for value, part in zip(t, parts, strict=True))
        return objective(sigma, B.numpy())

    return minimize(of_logarithms, np.full(len(parts), start), method="BFGS").fun


@pytest.mark.spec("2.P15")
@pytest.mark.parametrize("seed", range(10))
def test_never_negative(seed):
    data = random_spd(6, seed)
    assert misalignment(data, function_of(data, lambda v: v**3 + 1)) >= 0
    assert misalignment(data, random_spd(6, seed + 100)) > 0


@pytest.mark.spec("2.P16")
@EVERY_SPECTRUM
def test_invariant_under_joint_rotation_and_scaling(data):
    U = orthogonal(4, seed=9)
    turned = [U @ matrix @ U.T for matrix in (data, B)]
    assert_close(misalignment(*((m + m.T) / 2 for m in turned)), misalignment(data, B), scale=LOOSE)
    assert_close(misalignment(data, 1e-6 * B), misalignment(data, B), scale=LOOSE)


@pytest.mark.spec("2.P16")
@pytest.mark.parametrize(
    "injective", [lambda v: v**3, lambda v: -v, lambda v: v - 2.5, torch.log], ids=range(4)
)
@EVERY_SPECTRUM
def test_only_eigenspaces_of_the_data_matter(data, injective):
    assert_close(misalignment(function_of(data, injective), B), misalignment(data, B), scale=LOOSE)


@pytest.mark.spec("2.P17")
@EVERY_SPECTRUM
def test_same_for_the_inverse_of_the_weights(data):
    inverse = function_of(B, torch.reciprocal)
    assert_close(misalignment(data, inverse), misalignment(data, B), scale=LOOSE)


@pytest.mark.spec("2.P19")
def test_finer_eigenspaces_are_less_misaligned():
    fine, coarse, coarsest = (float(misalignment(data, B)) for data in SPECTRA.values())
    assert fine <= coarse <= coarsest
    assert coarsest == pytest.approx(math.sqrt(B.trace() * B.inverse().trace()) - 4, abs=1e-9)


@pytest.mark.spec("2.P22")
@EVERY_SPECTRUM
def test_continuous_in_the_weights(data):
    direction = random_spd(4, seed=8)
    steps = [
        abs(float(misalignment(data, B + size * direction) - misalignment(data, B)))
        for size in (1e-3, 1e-6)
    ]
    assert steps[1] < 1e-4
    assert steps[1] < 0.01 * steps[0] + 1e-9


@pytest.mark.spec("2.P22")
@pytest.mark.parametrize("gap", [1e-1, 1e-6, -1e-3])
def test_jumps_where_data_eigenvalues_meet(gap):
    weights = torch.diag(torch.tensor([1.0, 2.0], dtype=torch.float64))
    apart = torch.diag(torch.tensor([1.0, 1.0 + gap], dtype=torch.float64))
    assert float(misalignment(torch.eye(2).double(), weights)) == pytest.approx(math.sqrt(4.5) - 2)
    assert round(math.sqrt(4.5) - 2, 4) == 0.1213
    assert_close(misalignment(apart, weights), 0)


@pytest.mark.parametrize(("gap", "same"), [(1e-12, True), (1e-8, False)])
def test_eigenvalues_within_rounding_are_equal(gap, same):
    weights = torch.diag(torch.tensor([1.0, 2.0], dtype=torch.float64))
    data = torch.diag(torch.tensor([1.0, 1.0 + gap], dtype=torch.float64))
    assert (float(misalignment(data, weights)) > 0.1) is same


def test_rounding_is_that_of_the_dtype():
    data = DEGENERATE.float()  # equal eigenvalues are now apart by single-precision rounding
    expected = float(misalignment(DEGENERATE, B))
    assert float(misalignment(data, B.float())) == pytest.approx(expected, rel=1e-3)
    assert abs(float(misalignment(data.double(), B)) - expected) > 0.01


@pytest.mark.spec("2.P23")
def test_additive_over_blocks_with_different_eigenvalues():
    first, second = with_eigenvalues([9.0, 8.0, 8.0], seed=3), with_eigenvalues([2.0, 1.0], seed=4)
    upper, lower = random_spd(3, seed=6), random_spd(2, seed=7)
    together = misalignment(torch.block_diag(first, second), torch.block_diag(upper, lower))
    apart = misalignment(first, upper) + misalignment(second, lower)
    assert_close(together, apart, scale=LOOSE)


@pytest.mark.spec("2.P25")
def test_not_symmetric_in_its_arguments():
    assert abs(float(misalignment(SIMPLE, B) - misalignment(B, SIMPLE))) > 0.01


def test_the_formula_vmaps():
    factors = torch.linalg.cholesky(torch.stack([random_spd(4, seed) for seed in range(3)]))
    V = orthogonal(4)
    mapped = torch.func.vmap(quadratic_forms, in_dims=(None, 0))(V, factors)
    assert_close(mapped[1], quadratic_forms(V, factors)[1], scale=LOOSE)


def test_gradient_descends_to_alignment():
    weights = B.clone()
    for _ in range(15):
        weights.requires_grad_()
        (gradient,) = torch.autograd.grad(misalignment(SIMPLE, weights), weights)
        weights = (weights - 0.3 * gradient).detach()
    assert misalignment(SIMPLE, weights) < 0.3 * misalignment(SIMPLE, B)


def test_data_may_be_singular_or_indefinite():
    data = with_eigenvalues([2.0, 0.0, -1.0, -3.0], seed=1)
    shifted = with_eigenvalues([7.0, 5.0, 4.0, 2.0], seed=1)
    assert_close(misalignment(data, B), misalignment(shifted, B), scale=LOOSE)


def test_a_stack_with_a_stubborn_matrix_is_taken_one_by_one(monkeypatch):
    plain = torch.linalg.eigvalsh

    def fails_on_stacks(matrices):
        if matrices.ndim > 2:
            raise torch.linalg.LinAlgError("failed to converge")
        return plain(matrices)

    stack = torch.stack([B, random_spd(4, seed=6)])
    expected = misalignment(SIMPLE, stack)
    monkeypatch.setattr(torch.linalg, "eigvalsh", fails_on_stacks)
    assert_close(misalignment(SIMPLE, stack), expected, scale=LOOSE)
