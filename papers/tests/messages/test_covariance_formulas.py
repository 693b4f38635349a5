"""What the formulas of maennel2020 say about bad input."""

import math

import pytest
import torch

from theodolite.errors import DomainError, ShapeError
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
SINGULAR = torch.diag(torch.tensor([2.0, 1.0, 0.0], dtype=torch.float64))
WEIGHTS = torch.arange(12.0, dtype=torch.float64).reshape(4, 3)
DATA = torch.diag(torch.tensor([3.0, 2.0, 1.0], dtype=torch.float64))

# A matrix that must be positive definite, as each function takes it.
DEFINITE = {
    "closest_aligned": lambda bad: bounds.closest_aligned(DATA, bad),
    "one_sided_misalignment": lambda bad: bounds.one_sided_misalignment(DATA, bad),
    "basis_misalignment": lambda bad: basis.basis_misalignment(EYE, bad),
    "basis_misalignment_terms": lambda bad: basis.basis_misalignment_terms(EYE, bad),
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
    "one_sided data": lambda bad: bounds.one_sided_misalignment(bad, EYE),
    "is_aligned matrix": lambda bad: alignment.is_aligned(bad, EYE),
    "is_aligned reference": lambda bad: alignment.is_aligned(EYE, bad),
    "alignment_defect": lambda bad: alignment.alignment_defect(EYE, bad),
    "corresponding_eigenvalues": lambda bad: alignment.corresponding_eigenvalues(bad, EYE),
    "random_symmetry": symmetry.random_symmetry,
    "symmetrize": lambda bad: symmetry.symmetrize(EYE, bad),
    "eigenvector_overlap first": lambda bad: overlap.eigenvector_overlap(bad, EYE),
    "eigenvector_overlap second": lambda bad: overlap.eigenvector_overlap(EYE, bad),
    "match data": lambda bad: overlap.match_eigenvectors(bad, EYE),
    "match weights": lambda bad: overlap.match_eigenvectors(EYE, bad),
    "direction": lambda bad: divergence.gaussian_information(EYE, bad),
}
# The instrument's own tests have more kinds of bad matrices for the same checks.
BAD = {
    "asymmetric": (EYE + torch.ones(3, 3, dtype=torch.float64).triu(1), DomainError, "symmetric"),
    "broken": (torch.full((3, 3), math.nan, dtype=torch.float64), DomainError, "got nan at index"),
    "rectangle": (torch.ones(3, 2, dtype=torch.float64), ShapeError, "expected a square matrix"),
}


@pytest.mark.parametrize("call", DEFINITE.values(), ids=DEFINITE)
def test_matrices_must_be_positive_definite(call):
    with pytest.raises(DomainError, match=r"positive definite.*eigenvalues from .* to 2; .*pool"):
        call(SINGULAR)


@pytest.mark.parametrize(("bad", "error", "message"), BAD.values(), ids=BAD)
@pytest.mark.parametrize("call", SYMMETRIC.values(), ids=SYMMETRIC)
def test_matrices_must_be_square_symmetric_and_finite(call, bad, error, message):
    with pytest.raises(error, match=message):
        call(bad)


SINGLE = {"random_symmetry", "kantorovich_bound", "haar_bound"}
PAIRED = [name for name in SYMMETRIC if name not in SINGLE]


@pytest.mark.parametrize("call", [SYMMETRIC[name] for name in PAIRED], ids=PAIRED)
def test_matrices_must_agree_in_size(call):
    with pytest.raises(ShapeError, match=r"expected dimension \d"):
        call(torch.diag(torch.arange(1.0, 5.0, dtype=torch.float64)))


@pytest.mark.parametrize(
    "call",
    [
        lambda bad: basis.basis_misalignment(bad, EYE),
        lambda bad: basis.basis_misalignment_terms(bad, EYE),
        lambda bad: symmetry.rotation_equivariance_check(lambda w, x: (w,), WEIGHTS, EYE, bad),
    ],
    ids=["basis", "basis terms", "rotation"],
)
def test_bases_must_be_orthonormal(call):
    with pytest.raises(DomainError, match=r"orthonormal columns, got a deviation of 3\.0e.*qr"):
        call(2 * EYE)


CASES = {
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
    "symmetry draws": (
        lambda: symmetry.random_symmetry(EYE, draws=0),
        DomainError,
        "draws: expected",
    ),
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
}


@pytest.mark.parametrize(("call", "error", "message"), CASES.values(), ids=CASES)
def test_messages_say_what_was_expected(call, error, message):
    with pytest.raises(error, match=message):
        call()
