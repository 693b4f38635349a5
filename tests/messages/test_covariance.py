"""What the measures of covariance alignment say about bad input."""

import math

import numpy as np
import pytest
import torch

from theodolite.errors import DomainError, DtypeError, ShapeError
from theodolite.measures import covariance
from theodolite_papers.maennel2020.formulas import (
    activation,
    alignment,
    basis,
    bounds,
    curves,
    divergence,
    overlap,
    symmetry,
)

EYE = torch.eye(3, dtype=torch.float64)
ASYMMETRIC = EYE + torch.ones(3, 3, dtype=torch.float64).triu(1)
SINGULAR = torch.diag(torch.tensor([2.0, 1.0, 0.0], dtype=torch.float64))
NEARLY_SINGULAR = torch.diag(torch.tensor([2.0, 1.0, 1e-16], dtype=torch.float64))
INDEFINITE = torch.diag(torch.tensor([2.0, 1.0, -1.0], dtype=torch.float64))
BROKEN = torch.full((3, 3), math.nan, dtype=torch.float64)
RECTANGLE = torch.ones(3, 2, dtype=torch.float64)
EMPTY = torch.ones(0, 0, dtype=torch.float64)
WEIGHTS = torch.arange(12.0, dtype=torch.float64).reshape(4, 3)
DATA = torch.diag(torch.tensor([3.0, 2.0, 1.0], dtype=torch.float64))
TIED = torch.diag(torch.tensor([3.0, 1.0, 1.0], dtype=torch.float64))

# A matrix that must be positive definite, as each function takes it.
DEFINITE = {
    "misalignment": lambda bad: covariance.misalignment(DATA, bad),
    "closest_aligned": lambda bad: bounds.closest_aligned(DATA, bad),
    "one_sided_misalignment": lambda bad: bounds.one_sided_misalignment(DATA, bad),
    "basis_misalignment": lambda bad: basis.basis_misalignment(EYE, bad),
    "basis_misalignment_terms": lambda bad: basis.basis_misalignment_terms(EYE, bad),
    "random_basis_misalignment": covariance.random_basis_misalignment,
    "relative_misalignment": lambda bad: covariance.relative_misalignment(DATA, bad, EYE[None]),
    "compare_misalignment": lambda bad: covariance.compare_misalignment(DATA, bad, 100),
    "kantorovich_bound": bounds.kantorovich_bound,
    "haar_bound": bounds.haar_bound,
    "symmetric_kl first": lambda bad: divergence.symmetric_kl(bad, EYE),
    "symmetric_kl second": lambda bad: divergence.symmetric_kl(EYE, bad),
    "gaussian_kl": lambda bad: divergence.gaussian_kl(EYE, bad),
    "fisher_rao_length": lambda bad: divergence.fisher_rao_length(bad, EYE),
    "gaussian_information": lambda bad: divergence.gaussian_information(bad, EYE),
}
# A matrix that must be symmetric.
SYMMETRIC = {
    **DEFINITE,
    "misalignment data": lambda bad: covariance.misalignment(bad, EYE),
    "one_sided data": lambda bad: bounds.one_sided_misalignment(bad, EYE),
    "relative data": lambda bad: covariance.relative_misalignment(bad, EYE, EYE[None]),
    "compare data": lambda bad: covariance.compare_misalignment(bad, EYE, 100),
    "is_aligned matrix": lambda bad: alignment.is_aligned(bad, EYE),
    "is_aligned reference": lambda bad: alignment.is_aligned(EYE, bad),
    "alignment_defect": lambda bad: alignment.alignment_defect(EYE, bad),
    "corresponding_eigenvalues": lambda bad: alignment.corresponding_eigenvalues(bad, EYE),
    "random_symmetry": symmetry.random_symmetry,
    "symmetrize": lambda bad: symmetry.symmetrize(EYE, bad),
    "transfer_function": lambda bad: covariance.transfer_function(bad, WEIGHTS),
    "eigenvector_overlap first": lambda bad: overlap.eigenvector_overlap(bad, EYE),
    "eigenvector_overlap second": lambda bad: overlap.eigenvector_overlap(EYE, bad),
    "subspace_overlap": lambda bad: covariance.subspace_overlap(EYE, bad, [0]),
    "match data": lambda bad: overlap.match_eigenvectors(bad, EYE),
    "match weights": lambda bad: overlap.match_eigenvectors(EYE, bad),
    "direction": lambda bad: divergence.gaussian_information(EYE, bad),
}
SINGLE = {"random_basis_misalignment", "random_symmetry", "kantorovich_bound", "haar_bound"}
PAIRED = [name for name in SYMMETRIC if name not in SINGLE]
EACH_DEFINITE = pytest.mark.parametrize("call", DEFINITE.values(), ids=DEFINITE)
EACH_SYMMETRIC = pytest.mark.parametrize("call", SYMMETRIC.values(), ids=SYMMETRIC)


@pytest.mark.spec("2.P26")
@EACH_DEFINITE
@pytest.mark.parametrize(
    "bad", [SINGULAR, NEARLY_SINGULAR, INDEFINITE], ids=["singular", "nearly", "indefinite"]
)
def test_matrices_must_be_positive_definite(call, bad):
    with pytest.raises(DomainError, match=r"positive definite.*eigenvalues from .* to 2; .*pool"):
        call(bad)


@pytest.mark.spec("2.P26")
@EACH_SYMMETRIC
def test_matrices_must_be_symmetric(call):
    with pytest.raises(DomainError, match=r"symmetric matrix, got a relative asymmetry of 1\.0e"):
        call(ASYMMETRIC)


@pytest.mark.spec("2.P26")
@EACH_SYMMETRIC
def test_matrices_must_be_finite(call):
    with pytest.raises(DomainError, match=r"expected finite numbers, got nan at index"):
        call(BROKEN)


@pytest.mark.spec("2.P26")
@EACH_SYMMETRIC
@pytest.mark.parametrize("bad", [RECTANGLE, EMPTY], ids=["rectangle", "empty"])
def test_matrices_must_be_square_and_not_empty(call, bad):
    with pytest.raises(ShapeError, match=r"expected (a square matrix|at least one).*got shape"):
        call(bad)


@pytest.mark.spec("2.P26")
@pytest.mark.parametrize("call", [SYMMETRIC[name] for name in PAIRED], ids=PAIRED)
def test_matrices_must_agree_in_size(call):
    with pytest.raises(ShapeError, match=r"expected dimension \d"):
        call(torch.diag(torch.arange(1.0, 5.0, dtype=torch.float64)))


@pytest.mark.spec("2.P26")
@pytest.mark.parametrize(
    "call",
    [
        lambda bad: basis.basis_misalignment(bad, EYE),
        lambda bad: basis.basis_misalignment_terms(bad, EYE),
        lambda bad: covariance.relative_misalignment(DATA, EYE, bad[None]),
        lambda bad: symmetry.rotation_equivariance_check(lambda w, x: (w,), WEIGHTS, EYE, bad),
    ],
    ids=["basis", "basis terms", "relative", "rotation"],
)
def test_bases_must_be_orthonormal(call):
    with pytest.raises(DomainError, match=r"orthonormal columns, got a deviation of 3\.0e.*qr"):
        call(2 * EYE)


@pytest.mark.spec("2.P26")
def test_every_error_is_a_value_error():
    with pytest.raises(ValueError, match="positive definite"):
        covariance.misalignment(DATA, SINGULAR)


def test_thresholds_are_those_of_the_dtype():
    """Definite in double precision, singular within the rounding of single precision."""
    weights = torch.diag(torch.tensor([1.0, 1e-8], dtype=torch.float64))
    covariance.misalignment(torch.eye(2).double(), weights)
    with pytest.raises(DomainError, match="positive definite"):
        covariance.misalignment(torch.eye(2), weights.float())


def test_a_stack_names_the_first_bad_matrix():
    with pytest.raises(DomainError, match=r"from -1 to 2"):
        covariance.misalignment(DATA, torch.stack([EYE, INDEFINITE, SINGULAR]))


CASES = {
    "subspace too large": (
        lambda: covariance.misalignment(DATA, EYE, subspace=4),
        DomainError,
        "subspace: expected at most 3 directions, got 4",
    ),
    "subspace cuts": (
        lambda: covariance.misalignment(TIED, EYE, subspace=2),
        DomainError,
        r"keeps equal eigenvalues together, got 2, but eigenvalues 2 to 3 .*; pass 1",
    ),
    "subspace cuts everything": (
        lambda: covariance.misalignment(EYE, EYE, subspace=2),
        DomainError,
        "pass a larger one",
    ),
    "subspace of nothing": (
        lambda: covariance.misalignment(DATA, EYE, subspace=0),
        DomainError,
        "subspace: expected an integer of at least 1, got 0",
    ),
    "rtol": (
        lambda: bounds.one_sided_misalignment(DATA, EYE, rtol=-1.0),
        DomainError,
        r"rtol: expected a number in \[0.0, 1.0\], got -1.0",
    ),
    "tolerance": (
        lambda: alignment.is_aligned(DATA, EYE, tolerance=2.0),
        DomainError,
        "tolerance: expected a number in",
    ),
    "one side": (
        lambda: bounds.one_sided_misalignment(DATA, EYE, first="both"),
        DomainError,
        "first: expected one of 'weights', 'aligned', got 'both'",
    ),
    "draws": (
        lambda: covariance.random_basis_misalignment(EYE, draws=0),
        DomainError,
        "draws: expected an integer of at least 1, got 0",
    ),
    "symmetry draws": (
        lambda: symmetry.random_symmetry(EYE, draws=0),
        DomainError,
        "draws: expected",
    ),
    "bases": (lambda: covariance.random_bases(0), DomainError, "dimensions: expected an integer"),
    "floor": (
        lambda: covariance.misalignment_floor(0, 3),
        DomainError,
        "filters: expected an integer of at least 1, got 0",
    ),
    "subspace_size": (lambda: covariance.subspace_size(4, 0), DomainError, "dimensions: expected"),
    "stacks": (
        lambda: divergence.symmetric_kl(EYE.expand(2, 3, 3), EYE),
        ShapeError,
        r"covariance_2: expected shape \(2, 3, 3\).*expand the leading axes",
    ),
    "zero eigenvalue": (
        lambda: divergence.rotation_information(0.0, 1.0),
        DomainError,
        "eigenvalue_1: expected positive eigenvalues, got 0.0",
    ),
    "eigenvalues of two lengths": (
        lambda: divergence.rotation_information(torch.ones(2), torch.ones(3)),
        ShapeError,
        r"that broadcast, but eigenvalue_1 is \(2,\), eigenvalue_2 is \(3,\)",
    ),
    "no samples": (
        lambda: divergence.rotation_angle_deviation(2.0, 1.0, 0),
        DomainError,
        "count: expected an integer of at least 1",
    ),
    "chain of no samples": (
        lambda: divergence.rotation_chain(0.1, 2.0, 1.0, 0),
        DomainError,
        "count: expected an integer",
    ),
    "angle": (
        lambda: divergence.rotation_length(math.inf, 2.0, 1.0),
        DomainError,
        "angle: expected finite",
    ),
    "negative variance of data": (
        lambda: covariance.transfer_function(INDEFINITE, WEIGHTS),
        DomainError,
        "data_covariance: expected a covariance, without negative variances, got -1",
    ),
    "weights as a vector": (
        lambda: covariance.transfer_function(DATA, WEIGHTS[0]),
        ShapeError,
        r"weights: expected at least one filter as a row.*flatten\(1\)",
    ),
    "weights of another dimension": (
        lambda: covariance.transfer_function(DATA, WEIGHTS[:, :2]),
        ShapeError,
        r"weights: expected dimension 3.*got shape \(4, 2\)",
    ),
    "too many directions": (
        lambda: covariance.transfer_function(DATA, WEIGHTS, count=4),
        DomainError,
        "count: expected at most 3 directions, got 4",
    ),
    "nan weights": (
        lambda: covariance.transfer_function(DATA, WEIGHTS * math.nan),
        DomainError,
        "weights: expected finite",
    ),
    "curves": (
        lambda: curves.curve_deviation(WEIGHTS[0], WEIGHTS[0, :2]),
        ShapeError,
        r"curve_2: expected a curve of shape \(3,\).*same points",
    ),
    "empty curve": (
        lambda: curves.unimodality_defect(WEIGHTS[0, :0]),
        ShapeError,
        "curve: expected at least one point",
    ),
    "nan curve": (
        lambda: curves.unimodality_defect(WEIGHTS[0] * math.nan),
        DomainError,
        "curve: expected finite",
    ),
    "rank out of range": (
        lambda: covariance.subspace_overlap(EYE, EYE, [3]),
        DomainError,
        r"indices: expected different ranks from 0 to 2, got \[3\]",
    ),
    "rank twice": (lambda: covariance.subspace_overlap(EYE, EYE, [1, 1]), DomainError, "different"),
    "no ranks": (lambda: covariance.subspace_overlap(EYE, EYE, []), DomainError, "different ranks"),
    "negative eigenvalue": (
        lambda: overlap.predicted_overlap_loss(torch.tensor([1.0, -1.0]), 5, 5),
        DomainError,
        "eigenvalues: expected numbers of at least 0, got -1.0",
    ),
    "matrix of eigenvalues": (
        lambda: overlap.predicted_overlap_loss(EYE, 5, 5),
        ShapeError,
        "eigenvalues: expected 1 axes",
    ),
    "empty sample": (
        lambda: overlap.predicted_overlap_loss(torch.ones(2), 5, 0),
        DomainError,
        "count_2: expected an integer",
    ),
    "threshold": (
        lambda: overlap.match_eigenvectors(DATA, EYE, threshold=1.0),
        DomainError,
        r"threshold: expected a number in \(0.0, 1.0\), got 1.0",
    ),
    "match nothing": (
        lambda: overlap.match_eigenvectors(DATA, EYE, count=0),
        DomainError,
        "count: expected an integer of at least 1",
    ),
    "no examples": (
        lambda: activation.activation_fractions(torch.ones(0, 3)),
        ShapeError,
        "activations: expected at least one entry",
    ),
    "no neurons": (
        lambda: activation.activation_fractions(torch.ones(3)),
        ShapeError,
        "activations: expected an axis of examples and one of neurons",
    ),
    "nan activation": (
        lambda: activation.activation_fractions(torch.full((2, 2), math.nan)),
        DomainError,
        "activations: expected finite",
    ),
    "neuron": (
        lambda: activation.activation_fractions(WEIGHTS, neuron="pixel"),
        DomainError,
        "neuron: expected one of 'element', 'channel', 'channel_mean', got 'pixel'",
    ),
    "no parts": (
        lambda: activation.merge_activation_fractions([]),
        ShapeError,
        "parts: expected batches of one layer, got 0",
    ),
    "parts of two layers": (
        lambda: activation.merge_activation_fractions(
            [activation.activation_fractions(WEIGHTS), activation.activation_fractions(EYE[:, :2])]
        ),
        ShapeError,
        r"got 2 of \[2, 3\] neurons",
    ),
    "bins": (
        lambda: activation.activation_histogram(torch.ones(2), bins=0),
        DomainError,
        "bins: expected an integer of at least 1, got 0",
    ),
    "percentages": (
        lambda: activation.activation_histogram(torch.tensor([12.0, 50.0])),
        DomainError,
        "fractions: expected fractions from 0 to 1, got values from 12.0 to 50.0; percentages",
    ),
    "training that changes shape": (
        lambda: symmetry.rotation_equivariance_check(
            lambda w, x: (w,) if bool((w == WEIGHTS).all()) else (w, x), WEIGHTS, EYE
        ),
        ShapeError,
        "train: expected results of the same shapes in both runs",
    ),
    "inputs of another dimension": (
        lambda: symmetry.rotation_equivariance_check(lambda w, x: (w,), WEIGHTS, WEIGHTS.T),
        ShapeError,
        "inputs: expected dimension 3",
    ),
    "NumPy with torch": (
        lambda: covariance.misalignment(DATA.numpy(), EYE),
        DtypeError,
        "all NumPy arrays or all tensors",
    ),
    "complex": (
        lambda: covariance.misalignment(np.eye(2) * 1j, np.eye(2)),
        DtypeError,
        "expected real numbers",
    ),
}


@pytest.mark.parametrize(("call", "error", "message"), CASES.values(), ids=CASES)
def test_messages_say_what_was_expected(call, error, message):
    with pytest.raises(error, match=message):
        call()
