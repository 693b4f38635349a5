"""Bounds of misalignment and its one-sided forms."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from tests.measures.covariances import function_of, random_spd, with_eigenvalues
from tests.reference import covariance as literal
from tests.tolerances import assert_close
from theodolite.measures.covariance import misalignment
from theodolite_papers.maennel2020.formulas.alignment import alignment_defect, is_aligned
from theodolite_papers.maennel2020.formulas.bounds import closest_aligned, one_sided_misalignment
from theodolite_papers.maennel2020.formulas.divergence import symmetric_kl

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


@pytest.mark.spec("2.P14")
@EVERY_SPECTRUM
def test_closed_form_is_the_numerical_minimum(data):
    assert float(misalignment(data, B)) == pytest.approx(
        smallest(literal.symmetric_kl, data), abs=1e-6
    )


@pytest.mark.spec("2.P15")
@EVERY_SPECTRUM
def test_zero_exactly_for_aligned_pairs(data):
    aligned = function_of(data, lambda v: (v - 2.5) ** 2 + 0.1)
    assert is_aligned(aligned, data)
    assert_close(misalignment(data, aligned), 0)
    assert not is_aligned(B, data)
    assert misalignment(data, B) > 0.01


@pytest.mark.spec("2.P21")
@EVERY_SPECTRUM
def test_minimiser_is_aligned_and_attains_the_score(data):
    nearest = closest_aligned(data, B)
    assert is_aligned(nearest, data)
    assert_close(symmetric_kl(nearest, B), misalignment(data, B), scale=LOOSE)


@pytest.mark.spec("2.P21")
@EVERY_SPECTRUM
def test_no_aligned_matrix_is_nearer(data, generator):
    logs = torch.randn(200, len(projectors(data)), generator=generator, dtype=torch.float64)
    parts = torch.stack([torch.from_numpy(part) for part in projectors(data)])
    nearest = closest_aligned(data, B)
    scales = torch.stack([(nearest @ part).trace() / part.trace() for part in parts])
    others = torch.einsum("nr,rij->nij", scales * (0.5 * logs).exp(), parts)
    others = (others + others.mT) / 2
    assert (symmetric_kl(others, B.expand_as(others)) > misalignment(data, B)).all()


@pytest.mark.spec("2.P27")
@EVERY_SPECTRUM
@pytest.mark.parametrize("first", ["weights", "aligned"])
def test_one_sided_forms_are_numerical_minima(first, data):
    def divergence(sigma, weights):
        pair = (weights, sigma) if first == "weights" else (sigma, weights)
        return literal.gaussian_kl(*pair)

    value = float(one_sided_misalignment(data, B, first=first))
    assert value == pytest.approx(smallest(divergence, data), abs=1e-6)


@pytest.mark.spec("2.P27")
@EVERY_SPECTRUM
def test_one_sided_forms_add_up_to_no_more_than_misalignment(data):
    total = sum(one_sided_misalignment(data, B, first=side) for side in ("weights", "aligned"))
    assert 0.01 < total <= misalignment(data, B)


@pytest.mark.parametrize(
    "measure",
    [
        misalignment,
        one_sided_misalignment,
        lambda data, weights: alignment_defect(weights, data),
    ],
    ids=["misalignment", "one_sided", "defect"],
)
def test_a_stack_of_checkpoints_gives_one_number_each(measure):
    stack = torch.stack([random_spd(4, seed) for seed in range(6)]).reshape(2, 3, 4, 4)
    values = measure(DEGENERATE, stack)
    singles = [float(measure(DEGENERATE, matrix)) for matrix in stack.reshape(6, 4, 4)]
    assert_close(values.reshape(6), singles, scale=LOOSE)
    assert values.shape == (2, 3)


def test_stacks_of_minimisers():
    stack = torch.stack([B, random_spd(4, seed=6)])
    assert_close(
        closest_aligned(DEGENERATE, stack)[1], closest_aligned(DEGENERATE, stack[1]), scale=LOOSE
    )
