"""What the measures of covariance alignment say about bad input."""

import math

import numpy as np
import pytest
import torch

from theodolite.errors import DomainError, DtypeError, ShapeError
from theodolite.measures import covariance

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
    "random_basis_misalignment": covariance.random_basis_misalignment,
    "relative_misalignment": lambda bad: covariance.relative_misalignment(DATA, bad, EYE[None]),
    "compare_misalignment": lambda bad: covariance.compare_misalignment(DATA, bad, 100),
}
# A matrix that must be symmetric.
SYMMETRIC = {
    **DEFINITE,
    "misalignment data": lambda bad: covariance.misalignment(bad, EYE),
    "relative data": lambda bad: covariance.relative_misalignment(bad, EYE, EYE[None]),
    "compare data": lambda bad: covariance.compare_misalignment(bad, EYE, 100),
    "transfer_function": lambda bad: covariance.transfer_function(bad, WEIGHTS),
    "subspace_overlap": lambda bad: covariance.subspace_overlap(EYE, bad, [0]),
}
PAIRED = [name for name in SYMMETRIC if name != "random_basis_misalignment"]
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
def test_bases_must_be_orthonormal():
    with pytest.raises(DomainError, match=r"orthonormal columns, got a deviation of 3\.0e.*qr"):
        covariance.relative_misalignment(DATA, EYE, 2 * EYE[None])


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
    "draws": (
        lambda: covariance.random_basis_misalignment(EYE, draws=0),
        DomainError,
        "draws: expected an integer of at least 1, got 0",
    ),
    "bases": (lambda: covariance.random_bases(0), DomainError, "dimensions: expected an integer"),
    "floor": (
        lambda: covariance.misalignment_floor(0, 3),
        DomainError,
        "filters: expected an integer of at least 1, got 0",
    ),
    "subspace_size": (lambda: covariance.subspace_size(4, 0), DomainError, "dimensions: expected"),
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
    "rank out of range": (
        lambda: covariance.subspace_overlap(EYE, EYE, [3]),
        DomainError,
        r"indices: expected different ranks from 0 to 2, got \[3\]",
    ),
    "rank twice": (lambda: covariance.subspace_overlap(EYE, EYE, [1, 1]), DomainError, "different"),
    "no ranks": (lambda: covariance.subspace_overlap(EYE, EYE, []), DomainError, "different ranks"),
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
